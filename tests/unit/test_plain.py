"""An alert that somebody posts."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from tarsy.ingest import payload, plain


@pytest.mark.parametrize(
    "data", ["pod web-0 restarts", " {not JSON\n", {"ä": [1, {"b": None}]}, [1.5, True], 7, None, False, {}, []]
)
def test_text_is_read_as_it_is_and_json_as_json(data: Any) -> None:
    text = plain.Alert(alert_type="A", data=data).text()
    assert (text if isinstance(data, str) else json.loads(text)) == data
    assert "\\u" not in text, "spelt out, as the model reads it"


@pytest.mark.parametrize("depth", [1, 200])
def test_json_is_no_longer_as_text_than_it_was_sent(depth: int) -> None:
    body = b'{"alert_type":"A","data":' + b"[" * depth + b",".join([b"1"] * 10_000) + b"]" * depth + b"}"
    assert len(plain.Alert.model_validate(payload.load(body)).text()) < len(body)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"alert_type": ""}, "alert_type: "),
        ({"alert_type": "x" * 254}, "alert_type: "),
        ({"alert_type": None}, "alert_type: "),
        ({"runbook": "x" * 2049}, "runbook: "),
        ({"severity": "x" * 64}, "severity: "),
        ({"severity": 1}, "severity: "),
        ({"alertType": "A"}, "alertType: Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        plain.Alert.model_validate({"alert_type": "A", "data": "x", **change})
    assert payload.places(error.value).startswith(place)


@pytest.mark.parametrize("missing", ["alert_type", "data"])
def test_type_and_data_are_required(missing: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        plain.Alert.model_validate({name: "x" for name in ("alert_type", "data") if name != missing})
    assert payload.places(error.value) == f"{missing}: Field required"


def test_json_that_is_too_deep_is_refused_and_not_an_error_of_ours() -> None:
    with pytest.raises((pydantic.ValidationError, payload.PayloadError)):
        plain.Alert.model_validate(payload.load(b'{"alert_type": "A", "data": ' + b"[" * 400 + b"]" * 400 + b"}"))


def test_its_schema_stands_by_itself_in_the_apis_description() -> None:
    found = plain.schema()
    assert (found["required"], found["additionalProperties"]) == (["alert_type", "data"], False)
    assert "$ref" not in json.dumps(found)
