"""The choice of a worker: which investigations its claims pass over, in words of the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from tarsy.resources import chains


class UncheckedChainError(Exception):
    """The first investigation in the queue runs a snapshot of a chain that the worker has not judged yet."""

    def __init__(self, investigation: UUID) -> None:
        super().__init__(str(investigation))
        self.investigation = investigation


@dataclass(frozen=True, kw_only=True)
class UnrunnableAgent:
    """An agent that a worker cannot run."""

    hash: str
    """The hash of the snapshot of the chain."""
    stage: int
    index: int
    """The stage in the chain and the agent in the stage, counted from 0."""
    only_to_start: bool
    """Whether it is missing for a start only: an execution that has begun goes on without it."""


@dataclass(frozen=True, kw_only=True)
class ClaimFilter:
    """The investigations that a worker claims, by the snapshots of their chains (`passes`)."""

    judged: Collection[str] = ()
    """Hashes of the snapshots that the worker has judged; it claims no other."""
    passed: Collection[UnrunnableAgent] = ()
    """The agents that the worker cannot run."""


CLAIMABLE = "(state = 'queued' OR (state = 'running' AND lease_until < clock_timestamp())) AND NOT suspend"
"""Whether a row of `work` waits for a worker, by its state alone."""

UNFINISHED = """
  NOT EXISTS (
    SELECT 1 FROM stages AS known
    WHERE known.investigation = about.id AND known.run = 0 AND known.ended_at IS NOT NULL
      AND known.name = about.stage_names[passes.stage + 1]
  ) AND NOT EXISTS (
    SELECT 1 FROM executions AS known
    WHERE known.investigation = about.id AND known.run = 0
      AND known.kind = 'agent' AND known.stage = about.stage_names[passes.stage + 1] AND known.index = passes.index
      AND (passes.only_to_start OR known.ended_at IS NOT NULL)
  )"""
"""Whether an agent (`passes.stage`, `passes.index`) of an investigation (`about`) has not ended yet.

Of what is missing only to start it: whether it has not begun yet (`passes.only_to_start`).
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
"""Whether an investigation (`about`) has time left. Without time it is not passed over: any worker can end it."""

PASSED_OVER = f"""
  cardinality(CAST(:hashes AS text[])) > 0 AND work.run = 0 AND cancel IS NULL AND EXISTS (
    SELECT 1 FROM investigations AS about
      JOIN unnest(
        CAST(:hashes AS text[]), CAST(:stages AS integer[]), CAST(:indexes AS integer[]), CAST(:starts AS boolean[])
      ) AS passes (hash, stage, index, only_to_start) ON hash = chain_hash
    WHERE about.id = work.investigation AND {UNFINISHED} AND {IN_TIME}
  )"""  # noqa: S608 - our own text
"""Whether a choice (`values`) passes over a row of `work`. Questions are never passed over."""


def values(choice: ClaimFilter | None) -> Mapping[str, object]:
    """Return the values that PASSED_OVER has, and `judged`: None where there is no choice, and everything is taken."""
    passed = list(choice.passed) if choice else []
    return {
        "judged": None if choice is None else list(choice.judged),
        "hashes": [agent.hash for agent in passed],
        "stages": [agent.stage for agent in passed],
        "indexes": [agent.index for agent in passed],
        "starts": [agent.only_to_start for agent in passed],
    }
