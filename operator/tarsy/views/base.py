"""Common parts of all views: the base class, costs, durations, masking, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tarsy.masking import masker
from tarsy.resources import investigations
from tarsy.transcript import messages

Mask: TypeAlias = Callable[[str], str]
MASK: Mask = masker.Masker(groups=["security"]).text
"""The masking of instructions and other texts of chains, without known secrets; the API adds those."""


class View(BaseModel):
    """A model of an answer, or of a part of one; its values are read from attributes of the store's objects."""

    model_config = ConfigDict(from_attributes=True, frozen=True, use_attribute_docstrings=True)


class UncheckedNamespace(View):
    """A served namespace that a list leaves out: its right or its content cannot be read now."""

    name: str
    message: str


def unchecked_namespaces(messages: Mapping[str, str]) -> list[UncheckedNamespace]:
    """Return the namespaces that a list leaves out, each with its message, by name."""
    return [UncheckedNamespace(name=name, message=message) for name, message in sorted(messages.items())]


Cost = Annotated[
    str,
    BeforeValidator(lambda cost: investigations.cost_text(cost) if isinstance(cost, float) else cost),
    Field(pattern=investigations.COST_PATTERN),
]
"""A cost as a decimal number without exponent, as in the status of the object; read from the store's float."""


def seconds(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from `start` to `end`; None if one of them is unknown."""
    return None if start is None or end is None else (end - start).total_seconds()


def masked(value: Any, mask: Mask) -> Any:
    """Return JSON with all its texts masked."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {key: masked(member, mask) for key, member in value.items()}
        case list():
            return [masked(member, mask) for member in value]
        case _:
            return value


def plain_json(part: object) -> dict[str, Any]:
    """Return a dataclass as JSON that every client can read, although a tool's schema may have half a character."""
    plain: dict[str, Any] = messages.storable_json(pydantic_core.to_jsonable_python(part))
    return plain


def parsed_json(text: str) -> Any:
    """Return the JSON in a text, if every client can read it; else None."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return messages.storable_json(parsed) if messages.is_plain_json(parsed) else None
