"""The masker as a whole: it takes any text, ends in time, and masking twice changes nothing."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import hypothesis
import pytest
import yaml
from hypothesis import strategies
from support import cluster_text, scrapes, steps
from tarsy.masking import lookalikes, masker

from bench import hostile_texts

MASKER = masker.Masker(groups=["kubernetes", "security"])
UNHURRIED = masker.Masker(groups=["kubernetes", "security"], clock=lambda: 0.0)
"""A masker that withholds nothing, however long it takes: counting lines is slow."""

SECRET = {
    "kind": "Secret",
    "metadata": {"annotations": {"last": json.dumps({"kind": "Secret", "stringData": {"a": "b"}})}},
    "data": {"password": "aHVudGVyMg==", "empty": ""},
    "stringData": {"script": "a: b\nkind: Pod\n", "x": 'say "it\'s"'},
}
TEXTS = [
    *cluster_text.TEXTS.values(),
    json.dumps(SECRET, indent=1),
    json.dumps(json.dumps(SECRET)),
    json.dumps({"text": yaml.safe_dump(SECRET)}),
    yaml.safe_dump(SECRET),
    str(SECRET),
    "Authorization: Bearer abc123def456\nDB_PASSWORD=hunter2 jane@example.com\npostgres://a:b@c.example.com/\n",
]
PIECES = [
    *"{}[]:,\"'\\\n -#|<>=@.",
    *(
        *('\\"', '\\\\\\"', "\\n", "\\\\n", "kind: Secret\n", '"kind":"Secret"', '"data":{', "data:\n  a: b\n"),
        *("env:", "items:"),
    ),
    *("token", "password", '"value":', "name: ", "DB_TOKEN", "[MASKED:secret]", "[MASKED:", "eyJ", "Bearer ", "---\n"),
    *(
        *("é", "\ud800", "\udfff", "\0", "\r\n", "\u2028", "-----BEGIN RSA PRIVATE KEY-----", "-----END "),
        "LS0tLS1CRUdJTi",
    ),
    *("SecretList", "://", "a:b@c", "a1B2c3D4e5F6g7H8i9J0k1L2", "&a", "*a", "!!binary", "? ", "\t", "authorization:"),
]


def broken(chance: random.Random) -> str:
    """Pieces of real texts, cut, nested and with noise in them."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        text = chance.choice(TEXTS)
        start = chance.randrange(len(text))
        pieces = list(text[start : start + chance.randint(1, 1500)])
        for _ in range(chance.randint(0, 8)):
            pieces.insert(chance.randint(0, len(pieces)), chance.choice(PIECES))
        part = "".join(pieces)
        parts.append(json.dumps(part) if chance.random() < 0.2 else part)
    return chance.choice(["", " ", "\n"]).join(parts)


def noise(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randint(1, 80)))


@pytest.mark.parametrize("make", [broken, noise])
def test_any_text_can_be_masked_and_masking_twice_changes_nothing(make: Callable[[random.Random], str]) -> None:
    chance = random.Random(21)  # noqa: S311 - a fixed seed, no secret
    for _ in range(500):
        text = make(chance)
        masked = MASKER.text(text)
        assert MASKER.text(masked) == masked, repr(text)


@pytest.mark.parametrize("text", ["", " ", "\0", "\ud800 and \udc00", "é🙂\u2028 word", "\r\r\n", "[MASKED:token]"])
def test_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert MASKER.text(text) == text


def test_a_secret_beside_broken_unicode_is_masked() -> None:
    assert MASKER.text('\ud800{"password": "a\udfffé🙂b"}\0') == '\ud800{"password": "[MASKED:password]"}\0'


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nkind: Secret\ndata: *c\n",
        "kind: Secret\ndata: &d\n  a: cnry\nother: *d\n",
        "kind: Secret\ndata: !!map\n  ? a\n  : cnry\n  ? |\n    cnry\n  : cnry\n",
        "kind: Secret\ndata:\n  a: b\n  <<: {cnry: cnry}\n",
        '{"kind": "Secret", "data": {"a": {"b": ["cnry", {"c": "cnry"}]}, "cnry cnry"}}',
        '{"kind": "Secret", "data": ["cnry"], "stringData": "cnry"}',
    ],
)
def test_secret_manifest_data_is_masked_in_any_odd_notation(text: str) -> None:
    assert "cnry" not in MASKER.text(text)


def test_deep_nesting_is_read_to_its_end() -> None:
    inner = '{"kind": "Secret", "data": {"a": "cnry"}}'
    for depth in (63, 64, 1000):
        assert "cnry" not in MASKER.text('{"a": [' * depth + inner + "]}" * depth)
        assert "cnry" not in MASKER.text("[" * depth + inner)


MEGABYTE = 1_000_000


@pytest.mark.parametrize("text", hostile_texts.MASKING_TEXTS.values(), ids=hostile_texts.MASKING_TEXTS)
def test_lines_grow_with_the_length_of_a_hostile_text(
    text: Callable[[int], str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert steps.grow_linearly(lambda size: UNHURRIED.text(text(size)), 48_000, 96_000)
    MASKER.text(text(MEGABYTE))
    assert capfd.readouterr().err == "", "RE2 writes there"


def test_the_clock_is_looked_at_within_a_pass() -> None:
    ticks = itertools.count()
    slow = masker.Masker(groups=["security"], clock=lambda: next(ticks) * 0.1)
    text = "password=cnry1234 " * 20_000
    assert slow.text(text) == masker.withheld(len(text))


def test_executed_lines_grow_linearly_with_output_of_clusters() -> None:
    text = "\n".join([*TEXTS, *cluster_text.TEXTS.values()])
    assert steps.grow_linearly(UNHURRIED.text, text, f"{text}\n{text}")


DISGUISED = strategies.lists(
    strategies.sampled_from(
        [
            *("pass", "word", "token", ": ", "=", "\n", "hunter2-s3cret", "\u200b", "\ufe0f", "\uff1a", "\uff50"),
            *("\U0001d429", " ", "\u2764"),
        ]
    )
    | strategies.characters(codec="utf-8")
).map("".join)


@hypothesis.given(DISGUISED)
def test_disguised_text_is_masked_like_plain_text_and_masking_is_idempotent(text: str) -> None:
    masked = MASKER.text(text)
    assert MASKER.text(masked) == masked
    plain = lookalikes.normalize(text)
    assert lookalikes.normalize(plain) == plain
    if MASKER.text(plain) == plain:
        assert masked in (text, MASKER.text(text))


def test_text_without_secrets_keeps_its_letters() -> None:
    text = "\uff21\uff22\uff23 \u2764\ufe0f \u200b all is well \U0001d429"
    assert MASKER.text(text) == text
    assert MASKER.text(f"{text} pass\u200bword: hunter2-s3cret").endswith("p password: [MASKED:password]")


def test_each_secret_is_counted_once_also_if_the_text_is_masked_again() -> None:
    since = scrapes.Since()
    once = MASKER.text("DB_PASSWORD=hunter2hunter2\nAuthorization: Bearer abc123def456ghi\n")
    assert since("tarsy_masked_secrets_total") == once.count("[MASKED:") == 2
    assert MASKER.text(once) == once
    assert since("tarsy_masked_secrets_total") == 2


def test_texts_that_are_withheld_are_counted_by_the_reason() -> None:
    since = scrapes.Since()
    ticks = itertools.count(step=1000.0)
    masker.Masker(groups=["security"], clock=lambda: float(next(ticks))).text("password=hunter2hunter2")
    assert since("tarsy_masking_withheld_total", reason="budget") == 1

    def break_down(_: str) -> str:
        raise RuntimeError

    assert masker.or_withheld(break_down, "x") == masker.WITHHELD
    assert since("tarsy_masking_withheld_total", reason="error") == 1
