"""Running an ended investigation again: from which stages that is possible. Pure.

The earlier stages are not run again: their part of the log is copied (`store.intake.queueing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tarsy.ingest import payload
from tarsy.transcript import admission

_FAILURES = ("Failed", "TimedOut")


class NotRetriableError(Exception):
    """The investigation cannot be run again as requested."""

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place
        """The field of the request that is at fault; "" if it is the state of the investigation."""


class Request(BaseModel):
    """A request to run an ended investigation again. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    from_stage: Annotated[
        str | None,
        Field(
            max_length=63,
            description="The first stage that runs again; the work of the earlier ones is copied. All if missing.",
            examples=["analysis"],
        ),
    ] = None
    chain: Annotated[
        Literal["snapshot", "current"],
        Field(description="The chain as the ended investigation ran it, or as it is now."),
    ] = "snapshot"


def parse(body: bytes) -> Request:
    """Return the request. Raise payload.PayloadError if `body` is not JSON, else pydantic.ValidationError."""
    return Request.model_validate(payload.load(body or b"{}"))


def schema() -> dict[str, Any]:
    """Return the request's JSON schema, for the API's description."""
    return Request.model_json_schema()


def check(original: admission.Original, *, from_stage: str | None, is_chain_current: bool) -> admission.Retry:
    """Return the retry of `original`. Raise NotRetriableError if it is not possible."""
    if not original.has_ended:
        raise NotRetriableError("it has not ended yet: cancel it first, or wait for its end")
    if from_stage and is_chain_current:
        message = "the present chain is for a retry of all stages: leave out 'fromStage' or 'chain'"
        raise NotRetriableError(message, place="chain")
    if original.chain is None and not is_chain_current:
        message = 'it was refused and has no chain: take the present one ("chain": "current")'
        raise NotRetriableError(message, place="chain")
    copied_stages = () if from_stage is None else _earlier_stages(original, from_stage)
    return admission.Retry(original=original.id, from_stage=from_stage, copied_stages=copied_stages)


def retriable_stages(names: Sequence[str], outcomes: Mapping[str, str], *, stops_after_failure: bool) -> list[str]:
    """Return the stages from which an investigation can be run again with its own chain, in order.

    `names` are all stages, `outcomes` are those of the stages that have ended by themselves: all stages before a
    retriable one have. If the chain `stops_after_failure`, none of them has failed.
    """
    stages = []
    for name in names:
        stages.append(name)
        outcome = outcomes.get(name)
        if outcome in (None, "Skipped") or (outcome in _FAILURES and stops_after_failure):
            break
    return stages


def _earlier_stages(original: admission.Original, from_stage: str) -> tuple[str, ...]:
    spec = original.chain.spec if original.chain else None
    names = [stage.name for stage in spec.stages] if spec else []
    stages = retriable_stages(
        names, original.stage_outcomes, stops_after_failure=bool(spec and spec.failure_policy == "Stop")
    )
    if from_stage not in stages:
        why = f"stage '{from_stage}' is not in its chain"
        if from_stage in names:
            why = f"stage '{from_stage}' needs the result of stage '{stages[-1]}', which has none"
        raise NotRetriableError(f"{why}. Stages to retry from: {', '.join(stages)}", place="fromStage")
    return tuple(stages[: stages.index(from_stage)])
