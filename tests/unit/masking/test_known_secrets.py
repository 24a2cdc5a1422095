"""Known secrets of a process are found by their values, whatever stands around them and however they are written."""

from __future__ import annotations

import base64
import functools
import html
import json
import string
import urllib.parse
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.masking import known_secrets, masker

from bench import hostile_texts

KEY = "K3y/with+odd&chars=é\"'\\ x"
VALUES = [KEY, "gsk-9f8e7d6c5b4a", "pa55w0rd", "correct-horse-battery-staple"]


def knows(*values: str) -> known_secrets.KnownSecrets:
    secrets = known_secrets.KnownSecrets()
    secrets.add(values)
    return secrets


KNOWN = knows(*VALUES)
MASKER = masker.Masker(secrets=KNOWN)


def within_base64(value: str, *, length: int) -> str:
    return base64.b64encode(b"x" * length + value.encode() + b":tail").decode()


WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": json.dumps,
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON in JSON": lambda value: json.dumps(json.dumps({"a": value})),
    "Go's JSON": lambda value: (
        json.dumps(value, ensure_ascii=False).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    ),
    "JSON of PHP": lambda value: json.dumps(value).replace("/", "\\/"),
    "a URL": lambda value: f"https://x/?key={urllib.parse.quote(value, safe='')}&y=1",
    "a path": urllib.parse.quote,
    "a form": lambda value: urllib.parse.urlencode({"a": value}),
    "a URL in small letters": lambda value: (
        urllib.parse.quote(value, safe="").lower() if value == value.lower() else urllib.parse.quote(value, safe="")
    ),
    "HTML": lambda value: f"<td>{html.escape(value)}</td>",
    "YAML": lambda value: "'" + value.replace("'", "''") + "'",
    "hex": lambda value: value.encode().hex(),
    "capital hex": lambda value: value.encode().hex().upper(),
    **{f"base64 behind {length} bytes": functools.partial(within_base64, length=length) for length in range(4)},
    "base64 of URLs": lambda value: base64.urlsafe_b64encode(f"u:{value}".encode()).decode(),
    "base64 alone": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 without padding": lambda value: base64.b64encode(value.encode()).decode().rstrip("="),
    "base64 with a newline": lambda value: base64.b64encode(f"{value}\n".encode()).decode(),
}


def reveals(text: str, value: str) -> bool:
    """Whether a value of letters and digits, or what base64 makes of it, stands in a text."""
    plain = text.lower()
    return any(
        form.decode().lower() in plain
        for start in range(3)
        for form in (
            value.encode(),
            base64.b64encode(b"x" * start + value.encode())[(0, 2, 3)[start] : (start + len(value)) // 3 * 4],
            value.encode().hex().encode(),
        )
    )


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("written", WRITTEN)
def test_known_secret_is_found_in_every_encoding(written: str, value: str) -> None:
    text = WRITTEN[written](value)
    masked = MASKER.text(f"before {text} behind")
    assert "[MASKED:secret]" in masked, text
    assert masked.startswith("before ")
    assert masked.endswith(" behind")
    assert not reveals(masked, value)
    assert MASKER.text(masked) == masked


LETTERS = string.ascii_letters + string.digits


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    value=strategies.text(alphabet=LETTERS, min_size=16, max_size=48),
    before=strategies.binary(max_size=9),
    behind=strategies.binary(max_size=9),
    written=strategies.sampled_from(["plain", "base64", "urlsafe", "hex"]),
)
def test_known_secret_is_masked_at_any_position_of_encoded_text(
    value: str, before: bytes, behind: bytes, written: str
) -> None:
    content = before + value.encode() + behind
    text = {
        "plain": content.decode("latin-1"),
        "base64": base64.b64encode(content).decode(),
        "urlsafe": base64.urlsafe_b64encode(content).decode(),
        "hex": content.hex(),
    }[written]
    secrets = knows(value)
    masked = secrets.mask(text)
    assert not reveals(masked, value)
    assert secrets.mask(masked) == masked


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("written", WRITTEN)
def test_growing_text_shows_no_part_of_a_secret_value(written: str, value: str) -> None:
    text = f"before {WRITTEN[written](value)} behind K3 gsk Z3 c.\n"
    secrets = knows(*VALUES)
    before = ""
    for end in range(len(text) + 1):
        masked_beginning = secrets.mask_beginning(text[:end])
        assert masked_beginning.startswith(before), "what was shown stays"
        assert not reveals(masked_beginning, value)
        assert (
            not any(part in masked_beginning for part in (value[:6], value[-6:])) or written == "base64 with a newline"
        )
        before = masked_beginning
    assert secrets.mask(text) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("all is well.", "all is well."),
        ("all is well, gs", "all is well, "),
        ("all is well, gsx", "all is well, gsx"),
        ("abcdefgh-1 and ", "[MASKED:secret] and "),
        ("see abcdefgh-1", "see "),
        ("see abcdefgh-1-long", "see "),
        ("see abcdefgh-1-longer", "see [MASKED:secret]"),
        ("see abcdefgh-1-lonely", "see [MASKED:secret]-lonely"),
        ("see inner-val", "see "),
        ("see inner-value-1", "see "),
        ("see inner-value-1nner-value-2", "see [MASKED:secret]"),
        ("see inner-value-1nner-value-3", "see [MASKED:secret]nner-value-3"),
    ],
)
def test_beginning_of_longer_known_secret_is_held_back_until_it_is_complete(text: str, expected: str) -> None:
    secrets = knows("abcdefgh-1", "abcdefgh-1-longer", "gsk-9f8e7d6c5b4a", "inner-value-1", "inner-value-1nner-value-2")
    assert secrets.mask_beginning(text) == expected


@hypothesis.given(
    pieces=strategies.lists(
        strategies.sampled_from([*VALUES, "gsk-9", "K3y/", "é", "\ud83d", "W", "[MASKED:", "secret]"])
        | strategies.text(max_size=4),
        max_size=8,
    )
)
def test_streamed_text_ends_equal_to_the_masked_complete_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    masked_beginnings = [KNOWN.mask_beginning(text[:end]) for end in range(len(text) + 1)]
    for masked_beginning in masked_beginnings:
        assert not any(value in masked_beginning for value in VALUES)
    assert KNOWN.mask_beginning(f"{text}\n\n") == KNOWN.mask(f"{text}\n\n")


@pytest.mark.parametrize(
    "value", ["", "x", "hunter2", "postgres", "password", "tarsy-system", "12345678", "10.0.0.1:5432", "a MASKED one 1"]
)
def test_secret_that_looks_like_a_word_is_not_masked_in_prose(value: str) -> None:
    text = "the user postgres with password hunter2 of tarsy-system at 10.0.0.1:5432 since 12345678: a MASKED one 1"
    assert knows(value).mask(text) == text


def test_each_line_of_a_private_key_is_masked_on_its_own() -> None:
    lines = [
        "-----BEGIN RSA PRIVATE KEY-----",
        "MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfn",
        "ygWyF8PbnGy0AHB7aaBBcc11",
        "-----END",
    ]
    secrets = knows("\n".join(lines))
    assert secrets.mask(json.dumps("\n".join(lines))) == '"[MASKED:secret]"'
    assert secrets.mask(f"line 2 is {lines[2]}, of {lines[0]}") == f"line 2 is [MASKED:secret], of {lines[0]}"


def test_reload_adds_known_secrets_and_earlier_ones_are_still_masked() -> None:
    secrets = knows("first-secret-1")
    before = masker.Masker(secrets=secrets)
    secrets.add(["second-secret-2"])
    assert before.text("first-secret-1 second-secret-2") == "[MASKED:secret] [MASKED:secret]"
    secrets.add(["third-secret-3"])
    assert before.text("first-secret-1 third-secret-3") == "[MASKED:secret] [MASKED:secret]"
    secrets.add([])
    secrets.add([])
    assert before.text("third-secret-3") == "[MASKED:secret]"


def test_each_string_in_json_is_masked_and_result_stays_valid_json() -> None:
    document = {"a": [KEY, 1, None, True], KEY: {"b": f"x {KEY} y"}}
    assert KNOWN.mask_json(document) == {
        "a": ["[MASKED:secret]", 1, None, True],
        "[MASKED:secret]": {"b": "x [MASKED:secret] y"},
    }
    clean = {"a": ["b"]}
    assert KNOWN.mask_json(clean) is clean


@pytest.mark.parametrize("piece", hostile_texts.KNOWN_SECRETS)
def test_masking_work_is_linear_in_length_of_text_made_only_of_known_secrets(piece: str) -> None:
    secrets = knows(*(f"{number:04}-secret-value" for number in range(1000)))
    hostile = masker.Masker(groups=["security"], secrets=secrets, clock=lambda: 0.0)
    assert steps.grow_linearly(hostile.text, piece * 500, piece * 1000)
