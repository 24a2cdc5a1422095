"""In-memory models, tools and journal for tests. They pass the same contract tests as the real ones."""

from __future__ import annotations

import collections
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Self

from tarsy.config.model import budgets
from tarsy.transcript import commit_queue, entries, messages, ports, record, tool_names
from tarsy.transcript.kinds import registry


class MemoryJournal:
    """A journal in memory; `lose_lease` fences it, `suspend` suspends its run."""

    def __init__(self, snapshot: record.Snapshot, *facts: entries.Entry) -> None:
        self.facts: list[entries.Entry] = list(facts)
        self.record = registry.fold(snapshot, facts)
        self.joining: list[ports.JoinedAlert] = []
        """The alerts that have joined."""
        self.formers: list[ports.Former] = []
        """The earlier full investigations of the same alert, the last one last."""
        self.waits: dict[str, ports.Wait] = {}
        self.passed = 0.0
        """Seconds that are added to its clock."""
        self._queue = commit_queue.CommitQueue(self.record, prepare=lambda entry: entry, write=self._write)
        self.ledgers: dict[tuple[str, str], Decimal] = {}
        """The amount of each budget that each subject has used."""
        self._reserved: dict[str, Sequence[budgets.Charge]] = {}
        self._ended: set[str] = set()
        """The reservations whose requests have failed, and that the commit of their call settles."""
        self._lost = False
        self._suspended = False
        self._began = time.monotonic()

    @property
    def joined(self) -> int:
        """The number of alerts that have joined."""
        return len(self.joining)

    async def joined_alerts(self, after: int) -> ports.JoinedAlerts | None:
        """Return the alerts after the first `after` ones."""
        named = self.joining[after:]
        if not named:
            return None
        types = dict(collections.Counter(alert.alert_type for alert in named).most_common(20))
        return ports.JoinedAlerts(number=self.joined, total=len(named), types=types, named=named[:20])

    async def former(self, within: int) -> ports.Former | None:
        """Return the last of `formers` if it ended within these seconds."""
        last = self.formers[-1] if self.formers else None
        return last if last and datetime.now(UTC) - last.ended_at < timedelta(seconds=within) else None

    def clock(self) -> float:
        """Return the seconds since it was created, plus `passed`."""
        return time.monotonic() - self._began + self.passed

    def suspended(self) -> bool:
        """Return whether its run is suspended."""
        return self._suspended

    async def commit(self, *added: entries.Entry) -> None:
        """Commit entries."""
        await self._queue.commit(*added)

    async def whole(self, execution: str, call_id: str) -> str | None:
        """Return the whole result of a call if the log has a part of it."""
        answered = (fact for fact in self.facts if isinstance(fact, entries.ToolsAnswered))
        runs = (run for fact in answered if fact.execution == execution for run in fact.runs)
        return next((run.whole for run in runs if run.call.id == call_id), None)

    async def settle(self) -> None:
        """Complete the waiting commits."""
        await self._queue.settle()

    async def ensure_lease(self) -> None:
        """Raise LeaseLostError if the lease is lost."""
        if self._lost:
            raise ports.LeaseLostError(self.record.snapshot.id)

    async def reserve(self, charges: Sequence[budgets.Charge], *, ended: Sequence[str] = ()) -> ports.Charged:
        """Reserve a request in the ledgers."""
        self._ended.update(ended)
        severities = {alert.severity for alert in self.joining}
        charges = [
            replace(charge, most=charge.most + charge.reserve) if charge.reserved_for in severities else charge
            for charge in charges
        ]
        if exceeded := [charge for charge in charges if self._used(charge) + charge.amount > charge.most]:
            return ports.Charged(
                exceeded=[charge.budget for charge in exceeded],
                too_small=[charge.budget for charge in exceeded if charge.amount > charge.most],
                may_fit_later=all(map(self._may_fit_later, exceeded)),
                at=datetime.now(UTC),
            )
        for charge in charges:
            self.ledgers[charge.budget, charge.subject] = self._used(charge) + charge.amount
        request = str(uuid.uuid4())
        self._reserved[request] = charges
        return ports.Charged(request=request)

    def _used(self, charge: budgets.Charge) -> Decimal:
        return self.ledgers.get((charge.budget, charge.subject), Decimal(0))

    def _may_fit_later(self, charge: budgets.Charge) -> bool:
        under_way = (charges for request, charges in self._reserved.items() if request not in self._ended)
        others = (other for charges in under_way for other in charges)
        reserved = sum(
            other.amount for other in others if (other.budget, other.subject) == (charge.budget, charge.subject)
        )
        return charge.unit != "model_calls" and self._used(charge) - reserved + charge.amount <= charge.most

    def lose_lease(self) -> None:
        """Let another worker own the investigation from now on."""
        self._lost = True

    def suspend(self) -> None:
        """Suspend its run before the next step."""
        self._suspended = True

    def taken_over(self) -> MemoryJournal:
        """Return the journal of another worker, which owns the investigation from now on; its clock runs on."""
        self.lose_lease()
        journal = MemoryJournal(self.record.snapshot, *self.facts)
        journal.passed = self.clock()
        journal.ledgers = self.ledgers
        journal.formers = self.formers
        return journal

    async def _write(self, batch: Sequence[entries.Entry]) -> None:
        await self.ensure_lease()
        self.facts.extend(batch)
        calls = [call for entry in batch if (call := registry.model_call(entry))]
        for settled in (settled for call in calls for settled in call.settled):
            for charge in self._reserved.pop(settled.request):
                counts = {"tokens": settled.tokens, "cost": settled.cost or 0, "model_calls": 1}
                is_whole = settled.is_whole or charge.unit == "model_calls"
                counted = Decimal(counts[charge.unit])
                spent = counted if is_whole else max(counted, charge.amount)
                self.ledgers[charge.budget, charge.subject] += spent - charge.amount


class ScriptedModel:
    """A model with a script: it raises each failure once, and gives the n-th answer to the n-th call of a conversation.

    The call number is counted in the conversation, so that a takeover gets the answer that was lost. After the end of
    the script it repeats the last conclusion, or answers `done`.
    """

    _DONE = messages.Message(role="assistant", text="done")

    def __init__(self, *script: messages.Message | messages.Failure) -> None:
        self.requests: list[ports.Request] = []
        self.call = entries.ModelCall(
            provider="scripted",
            model="scripted",
            seconds=0.0,
            usage=messages.Usage(input_tokens=10, output_tokens=5, total_tokens=15),
        )
        self._answers: list[messages.Message] = []
        self._failures: dict[int, list[messages.Failure]] = {}
        for reply in script:
            if isinstance(reply, messages.Message):
                self._answers.append(reply)
            else:
                self._failures.setdefault(len(self._answers), []).append(reply)

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        """Return the scripted answer, or raise the scripted failure."""
        await scope.ensure_lease()
        self.requests.append(request)
        number = sum(message.role == "assistant" for message in request.messages)
        if failures := self._failures.get(number):
            failure = failures.pop(0)
            raise ports.ModelError(failure.text, kind=failure.kind, code=failure.code, call=self.call)
        concluded = [answer for answer in self._answers if not answer.calls] or [self._DONE]
        answer = self._answers[number] if number < len(self._answers) else concluded[-1]
        scope.stream.thinking(answer.thinking)
        scope.stream.text(answer.text)
        return ports.Answer(message=answer, call=self.call)


class NoThrottle:
    """A throttle that admits every request; `taken` and `corrected` hold its calls."""

    def __init__(self) -> None:
        self.taken: list[ports.Reservation] = []
        self.corrected: list[tuple[ports.Reservation, int]] = []

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        """Record the request."""
        taken = ports.Reservation(provider=provider, tokens=tokens)
        self.taken.append(taken)
        return taken

    def correct(self, taken: ports.Reservation, tokens: int) -> None:
        """Record the correction."""
        self.corrected.append((taken, tokens))


class DictToolbox:
    """Tools with fixed answers; those in `writing` may not be repeated, and those in `failing` fail.

    The MCP servers in `away` cannot be reached.
    """

    def __init__(
        self,
        answers: Mapping[str, str],
        *,
        writing: Collection[str] = (),
        failing: Collection[str] = (),
        away: Collection[str] = (),
    ) -> None:
        self.answers = answers
        self.failing = failing
        self.specs = tuple(messages.ToolSpec(name=name, idempotent=name not in writing) for name in answers)
        self.problems = tuple(f"MCP server '{name}' cannot be reached: refused" for name in away)
        self.away = tuple(away)
        self.called: list[messages.ToolCall] = []

    async def __aenter__(self) -> Self:
        """Open nothing."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing."""

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        """Return the fixed answer of the tool; a failure if the tool is unknown."""
        await scope.ensure_lease()
        server, _ = tool_names.split(call.name)
        if server in self.away:
            return ports.ToolOutput(text=f"'{call.name}' was not called: {server} is away", failed=True, away=True)
        self.called.append(call)
        if call.name not in self.answers:
            return ports.ToolOutput(text=f"unknown tool {call.name!r}", failed=True)
        return ports.ToolOutput(text=self.answers[call.name], failed=call.name in self.failing)
