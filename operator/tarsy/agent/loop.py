"""The agent loop: ask, run, commit.

Nothing is sent before the journal says that the lease is certain, and nothing counts before it is committed. What a
crash leaves behind is therefore one of three things: an answer not yet committed (asked for again), results of
read-only calls not yet committed (called again), or a writing call whose outcome nobody knows (in doubt, never
repeated). Cancellation has no code here: it ends the task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tarsy import failpoints
from tarsy.agent import prompts, steps
from tarsy.transcript import entries, messages, ports, record

IN_DOUBT = "The outcome of this call is unknown: its worker was interrupted. It was not repeated; check before acting."


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One execution's loop over its log."""

    execution: record.Execution
    """The one in the journal's record: every commit adds to its log."""
    model: ports.Model
    toolbox: ports.Toolbox
    journal: ports.Journal

    async def run(self) -> entries.ExecutionEnded:
        """Go on from wherever the log stands; return how it ended, not yet committed."""
        step = self._next_step()
        if isinstance(step, steps.Run):
            await self._settle_doubts(step.calls)
            step = self._next_step()
        while True:
            match step:
                case steps.Ask(final):
                    await self._ask(final=final)
                case steps.Run(calls):
                    await self._run(calls)
                case steps.Done() | steps.GiveUp():
                    return self._end(step)
            step = self._next_step()

    def ended(self) -> entries.ExecutionEnded | None:
        """How it has ended by its log alone, not yet committed; None while there is something left to do."""
        step = self._next_step()
        return self._end(step) if isinstance(step, steps.Done | steps.GiveUp) else None

    def _next_step(self) -> steps.Step:
        return steps.next_step(self.execution.log, limit=self.execution.started.agent.max_iterations)

    def _end(self, step: steps.Done | steps.GiveUp) -> entries.ExecutionEnded:
        outcome: entries.Outcome = "Completed" if isinstance(step, steps.Done) else "Failed"
        return entries.ExecutionEnded(execution=self._id, outcome=outcome, text=step.text)

    async def _ask(self, *, final: bool) -> None:
        said = messages.conversation(self.execution.log)
        added = (prompts.CONCLUDE,) if final and said[-1].role != "user" else ()
        request = ports.Request(
            messages=(*said, *added),
            tools=() if final else self.execution.started.tools,
        )
        failpoints.hit("model.ask.before")
        try:
            answer = await self.model.ask(request, ensure_lease=self.journal.ensure_lease)
        except ports.ModelError as error:
            await self._unanswered(error.failure, added, error.call)
        else:
            await self._answered(answer, added, final=final)

    async def _answered(self, answer: ports.Answer, added: tuple[messages.Message, ...], *, final: bool) -> None:
        message = answer.message
        if final and message.calls:
            # Asked without tools, it called some. Its state goes with them: sent back, it would speak of calls that
            # have no results.
            message = replace(message, calls=(), provider_state=None)
        if not message.calls and not message.text.strip():
            asked_too_much = "tool calls instead of a conclusion" if answer.message.calls else "an empty answer"
            failure = messages.Failure(kind="rejected", text=f"the model gave {asked_too_much}")
            await self._unanswered(failure, added, answer.call)
            return
        turn = len(messages.answers(self.execution.log))
        calls = tuple(replace(call, id=f"{turn}.{index}") for index, call in enumerate(message.calls))
        said = (*added, replace(message, calls=calls))
        await self.journal.commit(entries.Answered(execution=self._id, messages=said, call=answer.call))

    async def _unanswered(
        self, failure: messages.Failure, added: tuple[messages.Message, ...], call: entries.ModelCall
    ) -> None:
        entry = entries.Unanswered(execution=self._id, messages=added, failure=failure, call=call)
        await self.journal.commit(entry)

    async def _run(self, calls: Sequence[messages.ToolCall]) -> None:
        reads, writes = self._split(calls)
        for batch in (*([call] for call in writes), reads):
            if batch:
                await self._tools_answered(await self._side_by_side(batch))

    async def _side_by_side(self, calls: Sequence[messages.ToolCall]) -> list[entries.ToolRun]:
        lost: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(call)) for call in calls]
        except* ports.LeaseLostError as errors:
            lost = errors.exceptions[0]
        if lost is not None:  # told as one error, however many of the calls saw it
            raise lost
        return [task.result() for task in tasks]

    async def _settle_doubts(self, calls: Sequence[messages.ToolCall]) -> None:
        """Calls without a result at the start were under way when an earlier worker ended."""
        _, writes = self._split(calls)
        if writes:
            await self._tools_answered([entries.ToolRun(call=c, result=_in_doubt(c), seconds=0.0) for c in writes])

    async def _call(self, call: messages.ToolCall) -> entries.ToolRun:
        failpoints.hit("tool.call.before")
        started = time.monotonic()
        pinned = [spec.name for spec in self.execution.started.tools]
        if call.name in pinned:
            output = await self.toolbox.call(call, ensure_lease=self.journal.ensure_lease)
        else:
            known = ", ".join(pinned) or "none"
            output = ports.ToolOutput(text=f"There is no tool '{call.name}'. Available tools: {known}", failed=True)
        failpoints.hit("tool.call.after")
        result = messages.Message(
            role="tool", call_id=call.id, tool_name=call.name, text=output.text, failed=output.failed
        )
        return entries.ToolRun(call=call, result=result, seconds=time.monotonic() - started)

    async def _tools_answered(self, runs: Sequence[entries.ToolRun]) -> None:
        await self.journal.commit(entries.ToolsAnswered(execution=self._id, runs=tuple(runs)))

    def _split(self, calls: Sequence[messages.ToolCall]) -> tuple[list[messages.ToolCall], list[messages.ToolCall]]:
        """Those that may be repeated, and those that may not (an unknown tool is called by nobody)."""
        writing = {spec.name for spec in self.execution.started.tools if not spec.idempotent}
        return [c for c in calls if c.name not in writing], [c for c in calls if c.name in writing]

    @property
    def _id(self) -> str:
        return self.execution.started.execution


def _in_doubt(call: messages.ToolCall) -> messages.Message:
    return messages.Message(
        role="tool", call_id=call.id, tool_name=call.name, text=IN_DOUBT, failed=True, in_doubt=True
    )
