"""Times of stages and runs, and the wait for the first model call, as commits report them: once, by any process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support import scrapes, stories
from tarsy.store.queue import commit_metrics
from tarsy.transcript import entries, record
from tarsy.transcript.kinds import registry

CHAIN = {"chain": "pod-crash"}
FIRST = "tarsy_alert_to_first_model_call_seconds"


class Claims:
    """A log that one claim after the other adds to."""

    def __init__(self, snapshot: record.Snapshot) -> None:
        self.record = record.Record(snapshot=snapshot)
        self.take_over()

    def take_over(self) -> None:
        self._metrics = commit_metrics.CommitMetrics(self.record, run=0, waited=7.0)

    def commit(self, *added: entries.Entry, clock: float) -> None:
        self._metrics.observe(added, clock=clock)
        for entry in added:
            registry.apply(self.record, entry)


def end(answer: entries.Entry) -> Sequence[entries.Entry]:
    return answer, stories.ended(), stories.stage_ended(), stories.run_ended()


def test_a_run_over_three_claims_is_observed_once(snapshot: record.Snapshot) -> None:
    since, claims = scrapes.Since(), Claims(snapshot)
    claims.commit(stories.stage_started(clock=1.0), stories.started(), clock=1.5)
    claims.take_over()
    asked = stories.asks("k8s.pods_log")
    claims.commit(asked, clock=5.0)
    claims.commit(stories.ran(asked), clock=6.0)
    claims.take_over()
    claims.commit(*end(stories.answers(call_number=1)), clock=31.0)
    assert since(f"{FIRST}_count") == 1
    assert since(f"{FIRST}_sum") == pytest.approx(7.0 + 5.0 - stories.CALL.seconds)
    assert since("tarsy_stage_seconds_count", **CHAIN, outcome="Completed") == since("tarsy_stage_seconds_count") == 1
    assert since("tarsy_stage_seconds_sum") == 30.0
    assert since("tarsy_investigation_seconds_count", **CHAIN, ending="Completed") == 1
    assert since("tarsy_investigation_seconds_sum") == 31.0


def test_stage_started_and_ended_in_one_commit_is_measured_and_skipped_stage_is_not(
    snapshot: record.Snapshot,
) -> None:
    since, claims = scrapes.Since(), Claims(snapshot)
    failed = stories.ended(outcome="Failed", error="no agent")
    claims.commit(
        stories.stage_started("data-collection", clock=2.0),
        stories.started(stage="data-collection", agent=None),
        failed,
        stories.stage_ended("data-collection", "Failed"),
        stories.stage_ended("analysis", "Skipped"),
        stories.run_ended("Failed", "StageFailed"),
        clock=3.0,
    )
    assert since("tarsy_stage_seconds_count", outcome="Failed") == since("tarsy_stage_seconds_count") == 1
    assert since(f"{FIRST}_count") == 0
