"""Four digits tell whether two places hold the same secret, within one investigation, and nothing else."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import string

import hypothesis
import pytest
from hypothesis import strategies
from support import cluster_text
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.masking import custom_patterns, known_secrets, masker

KNOWN = known_secrets.KnownSecrets()
KNOWN.add(["the-process-key-1"])
KNOWN.set_pepper("database-password")
MASKER = masker.Masker(groups=["security"], fingerprints=True, secrets=KNOWN)
MARKED = re.compile(r"\[MASKED:[a-z0-9_]+:([0-9a-f]{4})\]")
FIRST, SECOND = "cnry4Kd9xQ", "cnry7Zb2wL"


def digits(text: str, *, investigation: str = "one") -> list[str]:
    return MARKED.findall(MASKER.text(text, investigation=investigation))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


PLACES = {
    "a variable": "DB_PASSWORD={}\n",
    "JSON": '{{"password": "{}"}}\n',
    "YAML": "password: '{}'\n",
    "a URL": "postgres://web:{}@db/shop\n",
    "a flag": "run --password {}\n",
}


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(PLACES, 2)))
def test_the_same_secret_looks_alike_and_another_does_not(first: str, second: str) -> None:
    same = digits(PLACES[first].format(FIRST) + PLACES[second].format(FIRST))
    assert len(same) == 2
    assert len(set(same)) == 1
    assert len(set(digits(PLACES[first].format(FIRST) + PLACES[second].format(SECOND)))) == 2
    assert digits(PLACES[first].format(FIRST)) == digits(PLACES[second].format(FIRST))


def test_secret_has_the_same_marker_in_base64_and_plain_text() -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "Secret", "data": {"a": encoded(FIRST), "b": encoded(SECOND)}})
    assert digits(manifest) == [*digits(f"DB_PASSWORD={FIRST}"), *digits(f"DB_PASSWORD={SECOND}")]
    [marked, again, base64d] = digits(f"DB_PASSWORD={FIRST}\nsaid {FIRST} and {encoded(f'web:{FIRST}')}\n")
    assert marked == again == base64d


def test_another_investigation_has_other_digits() -> None:
    seen = {digits(f"DB_PASSWORD={FIRST}", investigation=f"inv-{number}")[0] for number in range(50)}
    assert len(seen) > 40


def test_fingerprint_needs_more_than_the_investigations_id() -> None:
    elsewhere = known_secrets.KnownSecrets()
    elsewhere.set_pepper("another password")
    other = masker.Masker(groups=["security"], fingerprints=True, secrets=elsewhere)
    text = "\n".join(f"P{number}_PASSWORD=cnry{number}xQ9" for number in range(20))
    assert MARKED.findall(other.text(text, investigation="one")) != digits(text)


def test_all_digits_occur_alike() -> None:
    text = "\n".join(f"DB_PASSWORD=cnry{number}xQ9z" for number in range(500))
    seen = digits(text)
    assert len(set(seen)) > 490


def test_fingerprints_appear_only_if_enabled_and_never_in_alerts() -> None:
    text = f"DB_PASSWORD={FIRST}"
    server, alerts = platforms.DataMasking(), platforms.AlertMasking()
    for plain in (
        server.masker(NO_SECRETS).text(text, investigation="one"),
        MASKER.text(text),
        alerts.masker(NO_SECRETS).text(text),
    ):
        assert plain == "DB_PASSWORD=[MASKED:password]"
    assert alerts.masker(NO_SECRETS).text(text, investigation="one") == "DB_PASSWORD=[MASKED:password]"
    opted = platforms.DataMasking(fingerprints=True).masker(NO_SECRETS)
    assert MARKED.search(opted.text(text, investigation="one"))


def test_known_secrets_have_no_fingerprint() -> None:
    assert MASKER.text("x the-process-key-1 y", investigation="one") == "x [MASKED:secret] y"


def test_markers_that_came_with_the_text_get_none() -> None:
    text = f"a: [MASKED:token]\nDB_PASSWORD=[MASKED:password]\n{masker.withheld(3)}\n"
    assert MASKER.text(text, investigation="one") == text


def test_custom_patterns_have_fingerprints_if_their_replacement_is_a_plain_marker() -> None:
    mine = masker.Masker(
        own=[
            custom_patterns.compile_pattern(name="account", pattern=r"acct-\d+", replacement=None),
            custom_patterns.compile_pattern(name="order", pattern=r"order-\d+", replacement="[ORDER]"),
        ],
        fingerprints=True,
    )
    first, other, again = MARKED.findall(masked := mine.text("acct-1 acct-2 acct-1 order-3", investigation="one"))
    assert (first == again, first == other) == (True, False)
    assert masked.endswith(" [ORDER]")


PIECES = [
    *cluster_text.TEXTS.values(),
    *(template.format(FIRST) for template in PLACES.values()),
    *(
        "password: ",
        "[MASKED:token:7f3a]",
        "[MASKED:token]",
        "[MASKED:token:",
        ":7f3a]",
        FIRST,
        encoded(FIRST),
        '"',
        "\n",
    ),
    *("token=[MASKED:token:7f3a]abcd1234 ", "'[MASKED:password:0000]'", "Authorization: Bearer [MASKED:token:1234]"),
    "kind: Secret\ndata:\n  a: [MASKED:secret:7f3a]\n  b: '[MASKED:secret]'\n  c: cnry\n",
    json.dumps({"kind": "Secret", "data": {"a": "[MASKED:secret:7f3a]", "b": encoded(FIRST)}}),
]


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    pieces=strategies.lists(strategies.sampled_from(PIECES), min_size=1, max_size=4),
    start=strategies.integers(0, 30),
    end=strategies.integers(0, 30),
)
def test_masking_twice_changes_nothing(pieces: list[str], start: int, end: int) -> None:
    text = "".join(pieces)
    text = text[start : max(start, len(text) - end)]
    masked = MASKER.text(text, investigation="one")
    for again in (masked, masked[1:], masked[:-1]):
        once = MASKER.text(again, investigation="one")
        assert MASKER.text(once, investigation="one") == once
    assert MASKER.text(masked, investigation="one") == masked
    assert MASKER.text(masked, investigation="two") == masked
    assert MASKER.text(masked) == masked


def test_markers_with_fingerprints_hide_as_much_as_markers_without() -> None:
    plain = masker.Masker(groups=["security"], secrets=KNOWN)
    chance = random.Random(7)  # noqa: S311 - a fixed seed, no secret
    for _ in range(300):
        text = "".join(chance.choice(PIECES) for _ in range(3)) + "".join(chance.choices(string.printable, k=20))
        assert MARKED.sub(_without, MASKER.text(text, investigation="one")) == MARKED.sub(_without, plain.text(text))


def _without(match: re.Match[str]) -> str:
    return match[0][:-6] + "]"
