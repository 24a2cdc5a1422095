"""Cursors, searches and times that come from outside: each is good, or a problem that says what would be."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.api.investigations import lists
from tarsy.serve import parameters, problems
from tarsy.store.reads import listing

QUERY = listing.Query(namespaces={"tarsy": "uid"})
BEYOND = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")
"""Times whose moments are of no year from 1 to 9999."""
KEYS: tuple[listing.Key, ...] = get_args(listing.Key)
MOMENTS = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=253)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def encoded(payload: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")


def decoded(cursor: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(cursor + "=="))


def refused(cursor: str, query: listing.Query = QUERY) -> str:
    with pytest.raises(problems.Problem) as caught:
        lists.decode_cursor(cursor, query)
    assert caught.value.status == 422
    return caught.value.detail


@given(key=st.sampled_from(KEYS), moment=MOMENTS | st.none(), text=TEXTS, identity=st.uuids())
def test_a_cursor_decodes_to_the_position_that_it_was_made_of(
    key: listing.Key, moment: datetime | None, text: str, identity: uuid.UUID
) -> None:
    value = text if key not in ("admitted_at", "ended_at") else moment
    if key == "admitted_at" and value is None:
        value = datetime.max.replace(tzinfo=UTC)
    position, query = listing.Position(value=value, id=identity), replace(QUERY, key=key)
    cursor = lists.encode_cursor(position, query)
    assert lists.decode_cursor(cursor, query) == position
    assert len(cursor) <= lists.CURSOR_MAX


OTHERS: list[dict[str, Any]] = [
    {"key": "ended_at"},
    {"descending": False},
    {"phases": ("Running",)},
    *({field: "x"} for field in ("alert_type", "chain", "author", "fingerprint")),
    {"since": datetime(2026, 1, 1, tzinfo=UTC)},
    {"until": datetime(2026, 1, 1, tzinfo=UTC)},
    {"search": listing.Search(text="x")},
    {"search": listing.Search(text="x", phrases=("x y",))},
]


@pytest.mark.parametrize("changed", OTHERS, ids=lambda changed: next(iter(changed)))
def test_a_cursor_of_another_query_is_refused(changed: dict[str, Any]) -> None:
    cursor = lists.encode_cursor(listing.Position(value=datetime.now(UTC), id=uuid.UUID(int=1)), QUERY)
    assert "it belongs to another query" in refused(cursor, replace(QUERY, **changed))


def test_a_cursor_belongs_to_the_namespaces_that_the_request_names_not_to_those_that_its_caller_may_read() -> None:
    position = listing.Position(value=datetime.now(UTC), id=uuid.UUID(int=1))
    others = replace(QUERY, namespaces={"tarsy": "another uid", "shop": "uid of shop"})
    of_all = lists.encode_cursor(position, QUERY)
    assert lists.decode_cursor(of_all, others) == position
    of_one = lists.encode_cursor(position, QUERY, named=["tarsy"])
    assert lists.decode_cursor(of_one, others, named=["tarsy"]) == position
    for named in ([], ["shop"], ["shop", "tarsy"]):
        with pytest.raises(problems.Problem, match="it belongs to another query"):
            lists.decode_cursor(of_one, QUERY, named=named)


@given(st.text(max_size=200))
def test_other_text_is_refused_as_a_cursor(text: str) -> None:
    refused(text)


@given(key=st.sampled_from(KEYS), value=JSON, identity=JSON | st.just(str(uuid.UUID(int=1))), digest=JSON)
def test_other_json_is_refused_as_a_cursor(key: listing.Key, value: Any, identity: Any, digest: Any) -> None:
    query = replace(QUERY, key=key)
    refused(encoded([value, identity, digest]), query)
    refused(encoded(value), query)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", 1, None, ["x"], {}])
def test_a_sort_key_that_the_database_cannot_take_is_refused(value: Any) -> None:
    query = replace(QUERY, key="name")
    good = json.loads(
        base64.urlsafe_b64decode(lists.encode_cursor(listing.Position(value="x", id=uuid.UUID(int=1)), query) + "==")
    )
    assert "this is not a cursor" in refused(encoded([value, *good[1:]]), query)


@pytest.mark.parametrize("value", [*BEYOND, "2026-01-01T00:00:00", "x", 1])
def test_a_sort_key_that_is_no_time_is_refused_for_a_time(value: Any) -> None:
    position = listing.Position(value=datetime.now(UTC), id=uuid.UUID(int=1))
    good = decoded(lists.encode_cursor(position, QUERY))
    assert "this is not a cursor" in refused(encoded([value, *good[1:]]))


MOMENT: pydantic.TypeAdapter[datetime] = pydantic.TypeAdapter(parameters.Moment)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001
def test_a_time_with_a_zone_is_converted_to_utc(naive: datetime, minutes: int) -> None:
    sign, offset = "-" if minutes < 0 else "+", abs(minutes)
    text = f"{naive.isoformat(timespec='microseconds')}{sign}{offset // 60:02}:{offset % 60:02}"
    assert MOMENT.validate_python(text) == (naive - timedelta(minutes=minutes)).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("2026-01-01T00:00:00", "2026-01-01", "1767225600", "now", "2026-01-01T00:00:00 02:00"),
        *("2026-02-30T00:00:00Z", "٢٠٢٦-01-01T00:00:00Z", "", *BEYOND),
    ],
)
def test_a_time_that_is_not_rfc_3339_is_refused(text: str) -> None:
    with pytest.raises(pydantic.ValidationError):
        MOMENT.validate_python(text)
