"""In-memory models, tools and journal, for tests here and elsewhere. Contract tests keep them honest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tarsy.transcript import entries, messages, ports, record


class MemoryJournal:
    """A journal that forgets with the process; `lose_lease` fences it."""

    def __init__(self, subject: record.Subject, *facts: entries.Entry) -> None:
        self.facts: list[entries.Entry] = []
        self.record = record.Record(subject=subject)
        self._lost = False
        for fact in facts:
            self._keep(fact)

    async def commit(self, entry: entries.Entry) -> None:
        """Keep `entry`."""
        await self.ensure_lease()
        self._keep(entry)

    async def settle(self) -> None:
        """Nothing to do: a commit to memory is never under way."""

    async def ensure_lease(self) -> None:
        """Raise once the lease is lost."""
        if self._lost:
            raise ports.LeaseLostError(self.record.subject.id)

    def lose_lease(self) -> None:
        """Let another worker own the investigation from now on."""
        self._lost = True

    def taken_over(self) -> MemoryJournal:
        """The journal of another worker, who owns the investigation from now on; its stages' clocks run on."""
        self.lose_lease()
        journal = MemoryJournal(self.record.subject, *self.facts)
        for name, stage in self.record.stages.items():
            journal.record.stages[name].since = stage.since
        return journal

    def _keep(self, entry: entries.Entry) -> None:
        self.record.apply(entry)
        self.facts.append(entry)


class ScriptedModel:
    """A model with a script: failures are raised once each, answers belong to their turn of the conversation.

    To the turn and not to the call, so that a conversation that is taken over gets the answer it was owed. Past the
    script's end it answers `done`.
    """

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
        for item in script:
            if isinstance(item, messages.Message):
                self._answers.append(item)
            else:
                self._failures.setdefault(len(self._answers), []).append(item)

    async def ask(self, request: ports.Request, *, ensure_lease: ports.EnsureLease) -> ports.Answer:
        """Answer, or fail, as the script says for this turn."""
        await ensure_lease()
        self.requests.append(request)
        turn = sum(message.role == "assistant" for message in request.messages)
        if failures := self._failures.get(turn):
            failure = failures.pop(0)
            raise ports.ModelError(failure.text, kind=failure.kind, call=self.call)
        done = messages.Message(role="assistant", text="done")
        return ports.Answer(message=self._answers[turn] if turn < len(self._answers) else done, call=self.call)


class DictToolbox:
    """Tools that always answer the same; those in `writing` may not be repeated."""

    def __init__(self, answers: Mapping[str, str], *, writing: Collection[str] = ()) -> None:
        self.answers = answers
        self.specs = tuple(messages.ToolSpec(name=name, idempotent=name not in writing) for name in answers)
        self.problems = ()
        self.called: list[messages.ToolCall] = []

    async def call(self, call: messages.ToolCall, *, ensure_lease: ports.EnsureLease) -> ports.ToolOutput:
        """Answer by the tool's name; an unknown tool is an error."""
        await ensure_lease()
        self.called.append(call)
        if call.name not in self.answers:
            return ports.ToolOutput(text=f"unknown tool {call.name!r}", failed=True)
        return ports.ToolOutput(text=self.answers[call.name])
