"""JSON that is looked at before it is parsed."""

from __future__ import annotations

import json

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy import rawjson

MOST = 250_000
LARGE = 8 * 2**20
ANY = pydantic.TypeAdapter[object](object)
"""The parser behind the MCP SDK's messages, which refuses a lone surrogate; json.loads takes it."""

HALVES = st.sampled_from(["\\ud83d", "\\uD83D", "\\ude00", "\\uDE00", "\\udbff", "\\udc00"])
PIECES = HALVES | st.sampled_from(
    ["\\\\", '\\"', "\\n", "\\u0041", "\\ufffd", "ud83d", "u", "é", "😀", "\\ud83d\\ude00"]
)
TEXTS = st.lists(
    PIECES | st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs", "Cc"])), max_size=20
)


def as_utf16(text: str) -> str:
    """The text that a lenient parser reads, with U+FFFD for each surrogate alone."""
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)


@given(TEXTS)
def test_text_cut_inside_emoji_gets_replacement_character_and_no_other_change(pieces: list[str]) -> None:
    raw = f'["{"".join(pieces)}"]'
    repaired = rawjson.repair(raw.encode())
    assert ANY.validate_json(repaired) == [as_utf16(json.loads(raw)[0])]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_valid_json_stays_as_it_is(value: object, is_ascii: bool) -> None:
    raw = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert rawjson.repair(raw) == raw


@given(st.binary())
def test_repaired_text_is_utf8_and_stays_so(raw: bytes) -> None:
    repaired = rawjson.repair(raw)
    repaired.decode()
    assert rawjson.repair(repaired) == repaired


@pytest.mark.parametrize(
    ("raw", "repaired"),
    [
        (rb"\ud83d", rb"\ufffd"),
        (rb"\ude00", rb"\ufffd"),
        (rb"\ud83d\ude00", rb"\ud83d\ude00"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\ude00\ud83d", rb"\ufffd\ufffd"),
        (rb"\\ud83d", rb"\\ud83d"),
        (rb"\\\ud83d", rb"\\\ufffd"),
        (rb"\\\\ud83d", rb"\\\\ud83d"),
        (b"\xed\xa0\xbd", "\ufffd\ufffd\ufffd".encode()),
        (b"caf\xe9", "caf\ufffd".encode()),
    ],
)
def test_a_surrogate_alone_is_replaced(raw: bytes, repaired: bytes) -> None:
    assert rawjson.repair(raw) == repaired


@pytest.mark.parametrize("text", ["[" * 11, "," * 11, '["a", {"b": 1}' * 5])
def test_more_values_than_may_come_are_noticed(text: str) -> None:
    assert rawjson.has_more_values(text.encode(), 10)


@pytest.mark.parametrize("text", ["[" * 10, '"' + "," * 11 + '"', ""])
def test_text_is_not_taken_for_values(text: str) -> None:
    assert not rawjson.has_more_values(text.encode(), 10)


@pytest.mark.parametrize("pieces", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('[1, {"a": 2, "b": [3]}]', 5),
        ('["a,b", "[{", "\\",[{", "\\\\", "\\\\\\",,"]', 5),
        ('["\\u0022,[", 1]', 2),
        (': "\ndata: [1,2]', 2),
        (': "\\\ndata: [1,2]', 2),
        ('id: "\r[1,2]', 2),
        ("[" * 5, 5),
    ],
)
def test_values_inside_strings_are_not_counted(text: str, count: int, pieces: int) -> None:
    encoded, values = text.encode(), rawjson.Values(MOST)
    size = max(1, len(encoded) // pieces)
    for start in range(0, len(encoded), size):
        assert values.feed(encoded[start : start + size])
    assert values.count == count


def test_many_values_are_too_many() -> None:
    assert rawjson.Values(MOST).feed(b"," * MOST)
    assert not rawjson.Values(MOST).feed(b"," * (MOST + 1))
