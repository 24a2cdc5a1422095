"""Summaries of investigations and stages with the fields that a test is about; all others are empty."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from tarsy.store.reads import summaries

T = TypeVar("T")

AT = datetime(2026, 11, 21, 3, 17, 40, 500_000, tzinfo=UTC)
EMPTY: dict[Any, Any] = {UUID: UUID(int=1), datetime: AT}
"""The values of types that have no empty one."""


def summary(**fields: Any) -> summaries.Summary:
    return with_empty_fields(summaries.Summary, fields)


def stage(**fields: Any) -> summaries.StageSummary:
    return with_empty_fields(summaries.StageSummary, fields)


def with_empty_fields(kind: type[T], fields: dict[str, Any]) -> T:
    """Return an instance of a dataclass whose required fields that are not in `fields` are None or empty."""
    types = get_type_hints(kind)
    required = (
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is field.default_factory is dataclasses.MISSING
    )
    return kind(**{name: empty_value(types[name]) for name in required if name not in fields} | fields)


def empty_value(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
        return None
    return EMPTY[annotation] if annotation in EMPTY else (get_origin(annotation) or annotation)()
