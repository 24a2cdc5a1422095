"""JSON that may be stored beside a message: whatever JSON can hold, not nested without end."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tarsy.transcript import messages

DEEPEST = 100


def nested(depth: int, *, within: type[list[Any]] | type[dict[str, Any]] = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if within is list else {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -0.0, 1e308, "", "\x00\ud83d", {}, {"\ud83d": [1, {"b": None}]}, [[], [{}]], nested(DEEPEST)],
)
def test_value_that_json_can_hold_is_plain_json(value: object) -> None:
    assert messages.is_plain_json(value)
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"default": math.nan}, id="not a number"),
        pytest.param([-math.inf], id="infinite"),
        pytest.param({1: "a"}, id="a key that is no text"),
        pytest.param([b"bytes"], id="bytes"),
        pytest.param({"a": {1, 2}}, id="a set"),
        pytest.param(nested(DEEPEST + 1), id="lists nested too deep"),
        pytest.param(nested(DEEPEST + 1, within=dict), id="objects nested too deep"),
        pytest.param(nested(100_000), id="lists nested far too deep"),
    ],
)
def test_value_that_json_cannot_hold_or_that_nests_without_end_is_not_plain_json(value: object) -> None:
    assert not messages.is_plain_json(value)


def test_json_to_be_sent_loses_only_lone_surrogates() -> None:
    value = {"a\ud800": ["\x00", "💥", 1, 2.5, None, True, {"": "\udfff"}]}
    assert messages.well_formed_json(value) == {"a\ufffd": ["\x00", "💥", 1, 2.5, None, True, {"": "\ufffd"}]}
    assert messages.storable_json(value) == {"a\ufffd": ["\ufffd", "💥", 1, 2.5, None, True, {"": "\ufffd"}]}
