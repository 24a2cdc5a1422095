"""The one door for text from outside: whatever the bytes, JSON that can be stored or a PayloadError."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from tarsy.ingest import payload


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        (b'{"a": [1, 2.5, true, null, "x"]}', {"a": [1, 2.5, True, None, "x"]}),
        (b'"a\\u0000b"', "a\ufffdb"),
        (b'"\\udca5\\ud83d"', "\ufffd\ufffd"),
        (b'{"\\u0000": {"\\ud800": ["\\u0000"]}}', {"\ufffd": {"\ufffd": ["\ufffd"]}}),
        (b'"\\u0001\\u001b[31m\\u007f"', "\x01\x1b[31m\x7f"),
        ("\ufeff[]".encode(), []),
        ('"\U0001f4a5"'.encode("utf-16"), "\U0001f4a5"),
    ],
)
def test_accepted_payload_can_be_stored(body: bytes, loaded: object) -> None:
    parsed = payload.load(body)
    assert parsed == loaded
    json.dumps(parsed, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe\xfd", b"[" * 100_000, b"[" * 5000 + b"]" * 5000, b"1" * 5000, b'{"a": 1} b', b"\x00"],
    ids=["nothing", "cut", "not UTF-8", "open", "too deep", "a number without end", "more behind", "NUL"],
)
def test_text_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(payload.PayloadError, match=r"^the body is not JSON: "):
        payload.load(body)


class Model(pydantic.BaseModel):
    """Payload of some source."""

    items: list[dict[str, int]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "items: Field required"),
        ({"items": [{}, {"a": "s3cret"}]}, "items.1.a: Input should be a valid integer, unable to parse string as an"),
        ({"items": [1, 2]}, "items.0: Input should be a valid dictionary; items.1: Input should be a valid dictionary"),
        ([], "the body: Input should be a valid dictionary"),
    ],
)
def test_every_problem_is_reported_with_location_and_without_sent_value(body: Any, expected: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Model.model_validate(body)
    assert payload.places(error.value).startswith(expected)
    assert "s3cret" not in payload.places(error.value)


def test_large_number_of_problems_is_reported_in_short_message() -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Model.model_validate({"items": [{"k" * 100_000: "x"}] * 1000})
    message = payload.places(error.value)
    assert len(message) < 10_000
    assert message.endswith("; and 990 more")


@pytest.mark.parametrize("unit", [{}, [], "é\U0001f4a5", 1.5, None, {"a": [1, {"b": "\ud800"}]}])
def test_large_body_is_parsed_like_a_small_body(unit: object) -> None:
    many = [unit] * 20_000
    large = json.dumps([*many, " " * 300_000])
    assert payload.load(large.encode())[:-1] == payload.load(json.dumps([unit]).encode()) * 20_000


def test_a_large_body_of_too_many_objects_is_refused() -> None:
    body = b"[" + b"[]," * payload.CONTAINERS_MAX + b"1]"
    with pytest.raises(payload.PayloadError, match="more than 150000 objects and lists"):
        payload.load(body)
    for wrong in (b"[" * 300_000, b'["' + b"x" * 300_000, b"[1," * 5 + b" " * 300_000):
        with pytest.raises(payload.PayloadError, match=r"^the body is not JSON: "):
            payload.load(wrong)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{" + b'"n":1,' * payload.MEMBERS_MAX + b'"n":1}', "an object of the body has more than 50000 members"),
        (b"[" + b"1," * payload.VALUES_MAX + b"1]", "more than 500000 members of objects and items of lists"),
        (
            b"[" + (b"{" + b'"n":1,' * 40_000 + b'"n":1},') * 13 + b"1]",
            "more than 500000 members of objects and items of lists",
        ),
    ],
    ids=["members", "items", "members in all"],
)
def test_a_large_body_of_too_many_values_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(payload.PayloadError, match=problem):
        payload.load(body)
