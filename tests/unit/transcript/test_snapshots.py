"""Chains as they lie in databases: what each version wrote is read for ever, and means what it meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tarsy.resources import base, chains
from tarsy.transcript import record

RECORDED = Path(__file__).parents[1] / "recorded"
ROWS: list[tuple[int, str, dict[str, str]]] = [
    (version, name, row)
    for version in record.CHAIN_DECODERS
    for name, row in json.loads((RECORDED / f"chains-v{version}.json").read_text(encoding="utf-8")).items()
]
EACH = pytest.mark.parametrize(("version", "row"), [pytest.param(v, row, id=f"{v}: {name}") for v, name, row in ROWS])


def bare(value: Any) -> Any:
    """Return a dump without the fields that are not set."""
    if isinstance(value, dict):
        return {name: bare(inner) for name, inner in value.items() if inner is not None}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


@EACH
def test_a_recorded_chain_of_any_version_is_read_without_loss(version: int, row: dict[str, str]) -> None:
    spec = record.CHAIN_DECODERS[version](json.loads(row["chain"]))
    assert bare(spec.model_dump(mode="json", by_alias=True)) == json.loads(row["chain"])


@EACH
def test_fields_that_a_chain_does_not_use_change_neither_its_snapshot_nor_its_hash(
    version: int, row: dict[str, str]
) -> None:
    """A newer version has fields that those before it had not: chains without them are stored as ever."""
    spec = chains.Spec.model_validate_json(row["chain"])
    assert json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_none=True)) == row["chain"], version
    assert chains.AgentChain(metadata=base.ObjectMeta(), spec=spec).digest() == row["hash"]


def test_every_field_of_the_kind_is_in_what_is_recorded_of_the_newest_version() -> None:
    def fields(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(fields, value))
        return set(value).union(*map(fields, value.values())) if isinstance(value, dict) else set()

    newest = (row["chain"] for version, _, row in ROWS if version == record.CHAIN_VERSION)
    models = (
        chains.Spec,
        chains.Agent,
        chains.Stage,
        chains.StageAgent,
        chains.Tools,
        chains.Grouping,
        chains.Recurrence,
        chains.Synthesis,
        chains.ExecutiveSummary,
        chains.Chat,
    )
    assert fields([json.loads(text) for text in newest]) == {
        base.camel(name) for model in models for name in model.model_fields
    }
