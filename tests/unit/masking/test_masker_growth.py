"""Whatever is written into a log, masking it takes time in proportion to its length."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies
from support import pace
from tarsy.masking import masker

MASKER = masker.Masker(groups=["kubernetes", "security"])
SHORT, DOUBLINGS = 16_000, 3

HEADS = [
    *("", 'password="', "password='", 'token=\\"', "--token '", "authorization: hmac ", "key=", "password: |\n  "),
    *('{"kind":"Secret","data":{"', '{"kind":"Secret","data":{"a":', '\\"kind\\":\\"Secret\\",\\"data\\":{\\"'),
    *("kind: Secret\ndata:\n  a: ", "kind: Secret\ndata:\n  a: |\n    ", '{"env":{"TOKEN":', "env:\n  TOKEN: "),
    *("-----BEGIN PRIVATE KEY-----\n", "LS0tLS1CRUdJTi", "Data\n====\n", "map[string][]byte{", "https://a:"),
]
"""What makes a reader look far ahead."""
PIECES = [
    *"\\\"'`{}[]:,;=-|><@. \n\t\r%#&?$()/aA1é",
    *('\\"', "\\\\", '\\\\"', '\\\\\\"', "\\n", "\\\\n", "\\'", "\r\n", "''", '""', "\n  ", "\n    ", "- ", "\n- "),
    *(
        "password",
        "token",
        "key=",
        "key='",
        'key="',
        "auth=",
        "token: ",
        "TOKEN=",
        "--token ",
        "api_key=>",
        "password:",
    ),
    *(
        "authorization: ",
        "hmac ",
        "bearer ",
        "Basic ",
        "[MASKED:token]",
        "[MASKED:",
        "MASKED",
        "<x>",
        "$(",
        "{{",
        "***",
    ),
    *("-----BEGIN A-----", "-----END A-----", "-----BEGIN ", "-----", "LS0tLS1CRUdJTi", "eyJaaaaaaaa", "AIza", "AKIA"),
    *('"kind":"Secret",', '"data":{', "kind: Secret\n", "data:\n", "  a: b\n", "items:", "env:", '"env":{', '"name":'),
    *(
        "a@b.cc",
        "://",
        ":x@",
        "ssh-rsa AAAA",
        "password '",
        "Data\n====\n",
        "---\n",
        "# a\n",
        "0123456789abcdef",
        "null",
    ),
]


SAID = 'kind: Secret\nname: DB_PASSWORD\n"kind":"Secret","name":"DB_TOKEN" \\"kind\\":\n'
"""What makes every reader read."""
REPEATED = [
    *("{[", "{]", "{:", "{:,", "[{}", ":'", ",'x", " a:\n", "a:\n", "# a\n  # b\n", "items:\n- data:\n    a: b\n"),
    *('{"kind":"Secret","data":', '{"data":{"a":', '{"kind":"Secret","data":{"a":"b"}}', "data:\n kind: Secret\n"),
    *("token=a ", "token:{", "token:$(", 'token: "', "token: '<", 'token="\\"', "token: a, ", "password: |\n  "),
    *(
        "key=A1aAAAAAAAAAAAAAAAAAAAAA%",
        "--token '-",
        "authorization: bearer ",
        "bearer a1 ",
        "eyJaaaaaaaaaa.",
        "a://b:",
    ),
    *('token,"', "token ?= ", "<token>\n", "[MASKED:token]a", "password=Aa1aaaaa ", "PASSWORD=Aa1aaaaa\nAa1aaaaa"),
    *('{"log":"a"}\n', '{"log":"kind: Secret\\n"}\n', 'msg="a: b"\n', "x y kind: Secret\n", "x y a: b\n", "U2VjcmV0"),
    *(
        "mongosh ",
        "password is ",
        "token aaaaaaa1\n",
        "a:1111:b:c:\n",
        "Key Value\n- -\n",
        "x://a:b/",
        "mc alias set a ",
    ),
    *(
        "password:\n",
        "password:\nA1!a\n",
        "password:\\n",
        "password:\n```\n",
        "password:\n ",
        'password:\n"a',
        "token:\n>",
    ),
    *("\u200b", "pass\u200bword:\n", "\uff50\uff1a", "p\ufe0fassword: A1!aaaaa\n"),
    *("= Secret \n<  a: b=\n", "<   value: aaaaaaa1\n"),
    *(
        'token: Some("',
        "token=&a ",
        "token={",
        "token\n a\n",
        "--token\n  a\n",
        "&quot;token&quot;:&quot;a",
        "<token a>b</",
    ),
    *(
        "<name>token</name>",
        "%22token%22%3A%22a",
        '{"key":"token","value":"a"}',
        "- key: a\n",
        'token = "[MASKED:token]" ->',
    ),
    *("curl -u ", "curl \\\n", "AAAAAAAAAAAAAAAA\n", "\ud800", "\0", '"},', '}, "type": "Opaque"', "a\n b: c\n"),
]
"""What takes the most work, as far as is known."""


def grows_linearly(text: str, longer: str) -> bool:
    """Eight times as much takes at most sixteen times as long; and 0.15 s, and 0.6 s a megabyte, of an idle core.

    Any text takes half a second a megabyte at most, but for the first 0.1 s; the rest is for a busy machine.
    """
    limit = 0.15 + 0.6 * len(longer) / 1_000_000
    return pace.grows_linearly(lambda: MASKER.text(text), lambda: MASKER.text(longer), limit=limit, times=16)


def grown(head: str, piece: str, short: int = SHORT) -> tuple[str, str]:
    return head + piece * (short // len(piece)), head + piece * ((short << DOUBLINGS) // len(piece))


@pytest.mark.parametrize("short", [SHORT // 2, pytest.param(SHORT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("piece", [*PIECES, *REPEATED])
def test_time_grows_with_the_length_of_one_thing_repeated(piece: str, short: int) -> None:
    assert grows_linearly(*grown(SAID, piece, short))


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    head=strategies.lists(strategies.sampled_from(HEADS), max_size=2).map("".join),
    piece=strategies.lists(strategies.sampled_from([*PIECES, *REPEATED]), min_size=1, max_size=6).map("".join),
)
@hypothesis.example(head='password="', piece="\\")
@hypothesis.example(head='{"kind":"Secret","data":{"', piece="\\")
@hypothesis.example(head="", piece="authorization: hmac [MASKED:token] ")
@hypothesis.example(head="", piece="--token '-")
@hypothesis.example(head="", piece="{")
@hypothesis.example(head="kind: Secret\n", piece="a:\n")
def test_time_grows_with_the_length_of_hostile_text_and_no_faster(head: str, piece: str) -> None:
    assert grows_linearly(*grown(head, piece, SHORT // 2)), (head, piece)


def test_a_text_that_is_nothing_but_work_is_withheld_whole_and_that_is_said() -> None:
    text = '{"kind":"Secret","data":{"a":"cnry"}}' + "{" * 1_000_000
    masked = MASKER.text(text)
    assert masked == masker.withheld(len(text))
    assert MASKER.text(masked) == masked


def test_a_text_that_is_not_masked_in_time_is_withheld() -> None:
    ticks = iter(range(1000))
    slow = masker.Masker(groups=["security"], clock=lambda: float(next(ticks)))
    assert slow.text("password=cnry1234") == masker.withheld(17)


def test_a_short_text_is_masked_however_much_work_it_is() -> None:
    for piece in ("{", "a:\n", "token=a ", '{"data":{"a":', "[MASKED:token]"):
        assert "withheld" not in MASKER.text(piece * (2_000 // len(piece)))
