"""The filter of a worker's claims: a worker passes over investigations whose agents it cannot run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from tarsy.resources import chains


class UncheckedChainError(Exception):
    """The first investigation in the queue runs a chain snapshot that the worker has not checked yet."""

    def __init__(self, investigation: UUID) -> None:
        super().__init__(str(investigation))
        self.investigation = investigation


@dataclass(frozen=True, kw_only=True)
class UnrunnableAgent:
    """An agent of a chain snapshot that a worker cannot run."""

    hash: str
    """The hash of the chain snapshot."""
    stage: int
    """The position of the stage in the chain, from 0."""
    index: int
    """The position of the agent in the stage, from 0."""
    only_to_start: bool
    """Whether only its start is impossible: an execution that has begun can go on."""


@dataclass(frozen=True, kw_only=True)
class ClaimFilter:
    """The investigations that a worker claims, by their chain snapshots."""

    checked: Collection[str] = ()
    """The hashes of the snapshots that the worker has checked; it claims no investigation of any other snapshot."""
    unrunnable: Collection[UnrunnableAgent] = ()
    """The agents that the worker cannot run."""


CLAIMABLE = "(state = 'queued' OR (state = 'running' AND lease_until < clock_timestamp())) AND NOT suspend"
"""The condition that a row of `work` waits for a worker, judged by its state only."""

UNFINISHED = """
  NOT EXISTS (
    SELECT 1 FROM stages AS known
    WHERE known.investigation = about.id AND known.run = 0 AND known.ended_at IS NOT NULL
      AND known.name = about.stage_names[unrunnable.stage + 1]
  ) AND NOT EXISTS (
    SELECT 1 FROM executions AS known
    WHERE known.investigation = about.id AND known.run = 0 AND known.kind = 'agent'
      AND known.stage = about.stage_names[unrunnable.stage + 1] AND known.index = unrunnable.index
      AND (unrunnable.only_to_start OR known.ended_at IS NOT NULL)
  )"""
"""The condition that an agent (`unrunnable.stage`, `unrunnable.index`) of `about` has not ended yet.

With `unrunnable.only_to_start`: that it has not begun yet. `about` is a row of `investigations`.
"""

IN_TIME = f"""
  NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.investigation = about.id AND number = 0
      AND CASE WHEN started_at IS NULL THEN false ELSE
        CASE WHEN suspended_at IS NULL THEN clock_timestamp() ELSE greatest(suspended_at, started_at) END
          - started_at - suspended_for
          >= make_interval(secs => CASE json_typeof(about.chain -> 'activeDeadlineSeconds')
            WHEN 'number' THEN CAST(about.chain ->> 'activeDeadlineSeconds' AS float8)
            ELSE {chains.DEADLINE_SECONDS} END)
      END
  )"""  # noqa: S608 - our own text, and a number of ours
"""The condition that `about` is within its deadline. After it, any worker can end the investigation."""

PASSED_OVER = f"""
  cardinality(CAST(:hashes AS text[])) > 0 AND work.run = 0 AND cancel IS NULL AND EXISTS (
    SELECT 1 FROM investigations AS about
      JOIN unnest(
        CAST(:hashes AS text[]), CAST(:stages AS integer[]), CAST(:indexes AS integer[]), CAST(:starts AS boolean[])
      ) AS unrunnable (hash, stage, index, only_to_start) ON hash = chain_hash
    WHERE about.id = work.investigation AND {UNFINISHED} AND {IN_TIME}
  )"""  # noqa: S608 - our own text
"""The condition that a claim filter (`values`) passes over a row of `work`. Questions are never passed over."""


def values(claim_filter: ClaimFilter | None) -> Mapping[str, object]:
    """Return the values of PASSED_OVER, and `checked`, which without a filter is None: any investigation is claimed."""
    unrunnable = list(claim_filter.unrunnable) if claim_filter else []
    return {
        "checked": None if claim_filter is None else list(claim_filter.checked),
        "hashes": [agent.hash for agent in unrunnable],
        "stages": [agent.stage for agent in unrunnable],
        "indexes": [agent.index for agent in unrunnable],
        "starts": [agent.only_to_start for agent in unrunnable],
    }
