"""The other investigations of the same alert: the one that it follows, the one that it retries, the newest retry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarsy.store.base import visibility


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The earlier investigation of the same alert, or of its group."""

    id: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """An investigation that an alert was taken out of, or that one got which was taken out."""

    id: UUID
    name: str


@dataclass(frozen=True, kw_only=True)
class RetryOf:
    """The ended investigation that another one runs again."""

    id: UUID
    name: str
    from_stage: str | None
    """The first stage that runs again; None for all."""


@dataclass(frozen=True, kw_only=True)
class RetriedBy:
    """The newest investigation that runs another one again."""

    id: UUID
    name: str


SPLITS_MAX = 10
"""Investigations of alerts that were taken out of one, the newest ones."""
SELECT_RELATED = f"""
    known.previous, (
      SELECT name FROM investigations AS former WHERE former.id = known.previous AND {visibility.VISIBLE}
    ) AS previous_name,
    known.retry_of, (
      SELECT name FROM investigations AS original WHERE original.id = known.retry_of AND {visibility.VISIBLE}
    ) AS retry_of_name,
    known.retry_stage,
    CAST((SELECT json_build_object('id', id, 'name', name) FROM investigations AS again
      WHERE again.retry_of = known.id AND {visibility.VISIBLE} ORDER BY admitted_at DESC LIMIT 1) AS text)
      AS retried_by,
    known.split_from, (
      SELECT name FROM investigations AS whole WHERE whole.id = known.split_from AND {visibility.VISIBLE}
    ) AS split_from_name,
    CAST((SELECT json_agg(json_build_object('id', id, 'name', name) ORDER BY admitted_at DESC) FROM (
      SELECT id, name, admitted_at FROM investigations AS part
      WHERE part.split_from = known.id AND {visibility.VISIBLE} ORDER BY admitted_at DESC LIMIT {SPLITS_MAX}
    ) AS parts) AS text) AS split_into"""  # noqa: S608 - our own texts
"""The columns of `from_row`; `known` is the row of the investigation."""


def from_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the related investigations; None for one that there is not, or that is deleted."""
    previous_name, original_name = facts["previous_name"], facts["retry_of_name"]
    split_from_name = facts["split_from_name"]
    again = json.loads(facts["retried_by"] or "null")
    return {
        "previous": None if previous_name is None else Previous(id=facts["previous"], name=previous_name),
        "retry_of": None
        if original_name is None
        else RetryOf(id=facts["retry_of"], name=original_name, from_stage=facts["retry_stage"]),
        "split_from": None if split_from_name is None else Split(id=facts["split_from"], name=split_from_name),
        "split_into": tuple(
            Split(id=UUID(part["id"]), name=part["name"]) for part in json.loads(facts["split_into"] or "[]")
        ),
        "retried_by": again and RetriedBy(id=UUID(again["id"]), name=again["name"]),
    }
