"""The agent loop: ask, run, commit.

Nothing is sent before the journal says that the lease is certain, and nothing counts before it is committed. A crash
therefore leaves one of three things: an answer that is not committed (asked for again), results of read-only calls that
are not committed (called again), or a writing call with an unknown outcome (in doubt, never repeated). Cancellation has
no code here: it ends the task.

If a provider brings no answer, the execution goes on with its next fallback, for good: the log says so, and a takeover
asks that one too. The failures of one provider are not held against the next.

The last answer is committed together with everything that it ends: the execution, and possibly the stage and the run.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from tarsy import failpoints
from tarsy.agent import concurrent_waits, prompts, requests, steps, summaries, templates
from tarsy.transcript import entries, excerpts, messages, ports, record, tool_names
from tarsy.transcript.kinds import registry

log = logging.getLogger(__name__)

T = TypeVar("T")

IN_DOUBT = "The outcome of this call is unknown: its worker was interrupted. It was not repeated; check before acting."

RESULT_SHOWN = 64 * 1024
"""Characters of a tool's result that are shown where nothing is said."""
SUMMARIES_AT_ONCE = 8
"""The limit for one execution: each summary holds a long text in memory."""

EndsWith: TypeAlias = Callable[[record.Execution], Sequence[entries.Entry]]
"""Return the entries that end together with an execution, given its state after its end."""


class OpenStream(Protocol):
    """Entered for as long as a model is asked."""

    def __call__(self, number: int, result: str = "") -> AbstractContextManager[ports.Stream]:
        """The stream of a turn, or of the summary of a call's `result` before it."""
        ...


@dataclass(frozen=True)
class _Made:
    """A tool call with its result, or with the reason why there is none."""

    run: entries.ToolRun
    away: bool = False
    """Whether its server could not be reached."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One execution's loop over its log."""

    execution: record.Execution
    """The one in the journal's record: every commit adds to its log."""
    model: Callable[[str], ports.Model]
    """The model of a provider."""
    toolbox: ports.Toolbox
    journal: ports.Journal
    ends_with: EndsWith
    context_tokens: Callable[[str], int | None] = lambda _: None
    """The tokens that a request to a provider may have; None where that is not known."""
    pause_time: Callable[[], AbstractContextManager[object]] = nullcontext
    """See `ports.Scope.pause_time`."""
    may_retry: Callable[[], bool] = lambda: True
    """See `ports.Scope.may_retry`."""
    open_stream: OpenStream = lambda turn, result="": nullcontext(ports.NULL_STREAM)  # noqa: ARG005 - without viewers
    """See `ports.Runtime.open_stream`."""
    result_limit: Callable[[str], int] = lambda _: RESULT_SHOWN
    """The characters of a tool's result that a provider is shown."""
    summary_due: Callable[[str, str, int], entries.SummaryDue | None] = lambda *_: None
    """The summary that a result is to have, by its server, the provider that is asked then, and its characters."""

    async def run(self) -> None:
        """Go on from wherever the log stands until the execution has ended, or the run is to stand still."""
        await self._settle_doubts()
        while not self.execution.ended and not self.journal.suspended():
            if self.execution.due:
                await self._sum_up()
                continue
            match self._next_step(self.execution.log):
                case steps.Ask() as ask:
                    await self._ask(ask)
                case steps.Run(calls):
                    await self._run(calls)
                case steps.Done() | steps.GiveUp():  # an answer whose end an earlier version did not see in it
                    await self._commit()

    def _next_step(self, log: messages.Log) -> steps.Step:
        return requests.next_step(self.execution, log)

    async def _commit(
        self,
        *said: entries.Answered | entries.Unanswered | entries.ToolsAnswered,
        beside: Sequence[entries.ServersAway] = (),
    ) -> None:
        """Commit what was said, what happened `beside` it, and the ends that it brings."""
        log = [*self.execution.log, *(message for entry in said for message in registry.log_additions(entry))]
        ended = requests.end(self.execution, log)
        ends = (ended, *self.ends_with(replace(self.execution, log=log, ended=ended))) if ended else ()
        await self.journal.commit(*beside, *said, *ends)

    async def _ask(self, ask: steps.Ask) -> None:
        added = requests.added(self.execution, ask)
        await self._fit_context(ask, added)
        request = requests.next_request(self.execution, ask, added)
        failpoints.hit("model.ask.before")
        with self.open_stream(self._turn) as stream:
            try:
                scope = replace(self._scope, stream=stream)
                answer = await self.model(self.execution.source.provider).ask(request, scope)
            except ports.ModelError as error:
                overflow = error.failure.code == messages.CONTEXT_OVERFLOW
                if not overflow or not await self._fit_context(ask, added, refused=error):  # else it is asked again
                    await self._unanswered(error.failure, added, error.call)
            else:
                await self._answered(answer, added, final=ask.final)

    async def _fit_context(
        self, ask: steps.Ask, added: Sequence[messages.Message], *, refused: ports.ModelError | None = None
    ) -> bool:
        """Have results give way where the request would be too large, or was; whether any did."""
        limit = self.context_tokens(self.execution.source.provider)
        carried = requests.context_of(self.execution, ask, added)
        due = carried.compaction(limit, refused=refused is not None)
        if due is None:
            return False
        compacted = entries.ContextCompacted(
            execution=self._id,
            turn=self._turn,
            results=due.results,
            cut=due.cut,
            shown=due.shown,
            tokens=due.tokens,
            limit=limit or 0,
            failure=refused.failure if refused else None,
            call=refused.call if refused else None,
        )
        await self.journal.commit(compacted)
        return True

    async def _answered(self, answer: ports.Answer, added: tuple[messages.Message, ...], *, final: bool) -> None:
        message = requests.strategy(self.execution).dialect.read(answer.message, final=final)
        if isinstance(message, messages.Failure):
            await self._unanswered(message, added, answer.call)
            return
        calls = tuple(replace(call, id=f"{self._turn}.{index}") for index, call in enumerate(message.calls))
        committed = (*added, replace(message, calls=calls))
        if (why := self._falls_back(committed)) is not None:
            await self._fall_back(messages.Failure(kind="rejected", text=why), answer.call)
            return
        await self._commit(entries.Answered(execution=self._id, turn=self._turn, messages=committed, call=answer.call))

    async def _unanswered(
        self, failure: messages.Failure, added: tuple[messages.Message, ...], call: entries.ModelCall
    ) -> None:
        if (why := self._falls_back((*added, failure))) is not None:
            await self._fall_back(replace(failure, text=why), call)
            return
        await self._commit(
            entries.Unanswered(execution=self._id, turn=self._turn, messages=added, failure=failure, call=call)
        )

    def _falls_back(self, committed: Sequence[messages.Message | messages.Failure]) -> str | None:
        """Why another provider is asked instead of what would follow `committed`; None where none is."""
        if self.execution.next_source is None:
            return None
        match committed[-1], self._next_step([*self.execution.log, *committed]):
            case messages.Failure(code=messages.RETRIES), _:
                return None
            case (_, steps.GiveUp(text)) | (messages.Failure(kind="timeout", text=text), _):
                return text
        return None

    async def _fall_back(self, failure: messages.Failure, call: entries.ModelCall) -> None:
        """Have the next provider asked the same: nothing was said yet."""
        following = self.execution.next_source
        assert following  # noqa: S101 - `_falls_back` has looked
        log_fields = {"action": "provider_fallback", "left": call.provider, "provider": following.provider}
        log.warning("%s is asked from here on: %s", following.provider, failure.text, extra=log_fields)
        await self.journal.commit(
            entries.FellBack(
                execution=self._id, turn=self._turn, provider=following.provider, failure=failure, call=call
            )
        )

    async def _run(self, calls: Sequence[messages.ToolCall]) -> None:
        reads, writes = self._split(calls)
        with self.open_stream(self._turn - 1, "") as stream:
            call = functools.partial(self._call, scope=replace(self._scope, stream=stream))
            for batch in (*([write] for write in writes), reads):
                if batch:
                    await self._tools_answered(await side_by_side(map(call, batch)))

    async def _settle_doubts(self) -> None:
        """Calls without a result at the start were under way when an earlier worker ended."""
        calls = steps.under_way(self.execution.log, requests.rules(self.execution))
        asked = [call for call in calls if not steps.is_repeated(self.execution.log, call)]
        _, writes = self._split(asked)
        if writes:
            runs = [entries.ToolRun(call=c, result=_in_doubt(c), seconds=0.0) for c in writes]
            await self._tools_answered([_Made(run) for run in runs])

    async def _call(self, call: messages.ToolCall, *, scope: ports.Scope) -> _Made:
        failpoints.hit("tool.call.before")
        started = time.monotonic()
        if why := self._why_not(call):
            output = ports.ToolOutput(text=why, failed=True)  # it shows nothing
        else:
            reads, _ = self._split([call])
            output = await self.toolbox.call(call, replace(scope, only_reads=bool(reads)))
        failpoints.hit("tool.call.after")
        return _Made(self._tool_run(call, output, seconds=time.monotonic() - started), away=output.away)

    def _tool_run(self, call: messages.ToolCall, output: ports.ToolOutput, *, seconds: float) -> entries.ToolRun:
        """Return the record of a call, with as much of its result as the provider may read that is asked now.

        A provider that is asked later, as a fallback, reads the same. An error is short by nature; a long one is cut.
        """
        provider = self.execution.source.provider
        text = excerpts.middle_cut(output.text, self.result_limit(provider), advice=excerpts.ASK_FOR_LESS)
        is_cut = text is not output.text
        server, _ = tool_names.split(call.name)
        return entries.ToolRun(
            call=call,
            result=messages.Message(role="tool", call_id=call.id, tool_name=call.name, text=text, failed=output.failed),
            seconds=seconds,
            length=output.length or (len(output.text) if is_cut else None),
            whole=output.text if is_cut else None,
            summary=None if output.failed else self.summary_due(server, provider, len(output.text)),
        )

    async def _sum_up(self) -> None:
        """Have the results summed up that are due, side by side."""
        together = concurrent_waits.ConcurrentWaits(self.pause_time)
        turns = asyncio.Semaphore(SUMMARIES_AT_ONCE)

        async def one(call_id: str, due: entries.SummaryDue) -> None:
            async with turns:
                with together.call():
                    await self._sum_one_up(call_id, due, pause_time=together.pause_time)

        await side_by_side(one(*due) for due in list(self.execution.due.items()))

    async def _sum_one_up(
        self, call_id: str, due: entries.SummaryDue, *, pause_time: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Have a long result summed up, and commit what came of it."""
        _, result = self.execution.result(call_id)
        word = prompts.new_word()
        request = await self._request_for_summary(due, result, word=word)
        failpoints.hit("model.summary.before")
        read: str | messages.Failure
        with self.open_stream(self._turn, call_id) as stream:
            try:
                # Without a summary the result is read as it is: that is as good as a fallback.
                scope = replace(self._scope, stream=stream, pause_time=pause_time, has_fallback=True)
                answer = await self.model(due.provider).ask(request, scope)
            except ports.ModelError as error:
                read, call = error.failure, error.call
            else:
                read, call = summaries.read(answer.message, due, instead_of=result.text), answer.call
            failpoints.hit("model.summary.after")
            await self.journal.commit(
                entries.ToolSummarised(
                    execution=self._id,
                    turn=self._turn,
                    call_id=call_id,
                    tool=result.tool_name,
                    word=word,
                    text=read if isinstance(read, str) else "",
                    failure=None if isinstance(read, str) else read,
                    call=call,
                )
            )

    async def _request_for_summary(
        self, due: entries.SummaryDue, result: messages.Message, *, word: str
    ) -> ports.Request:
        """Return the request for a summary.

        Of the full result, which may be long, only the part in the request is kept.
        """
        full_result = (
            await self.journal.whole(self._id, result.call_id) if result.call_id in self.execution.cut else None
        )
        snapshot = self.journal.record.snapshot
        return summaries.request(
            self.execution,
            due,
            investigation=f"{snapshot.namespace}/{snapshot.name}",
            call_id=result.call_id,
            full_result=result.text if full_result is None else full_result,
            word=word,
        )

    def _why_not(self, call: messages.ToolCall) -> str:
        """Why a call is not made, for the model; "" where it is."""
        pinned = [spec.name for spec in self.execution.started.tools]
        if call.name not in pinned:
            return _unknown(call.name, pinned)
        if steps.is_repeated(self.execution.log, call):
            return templates.text("repeated")
        refused = steps.refusal(self.execution.log, call, requests.rules(self.execution))
        return templates.filled("refused", why=refused) if refused else ""

    async def _tools_answered(self, made: Sequence[_Made]) -> None:
        unreached = [made_run.run.call for made_run in made if made_run.away]
        servers = dict.fromkeys(tool_names.split(call.name)[0] for call in unreached)
        away = entries.ServersAway(
            execution=self._id, servers=tuple(servers), calls=tuple(call.id for call in unreached)
        )
        answered = entries.ToolsAnswered(execution=self._id, runs=tuple(made_run.run for made_run in made))
        await self._commit(answered, beside=[away] if unreached else [])

    def _split(self, calls: Sequence[messages.ToolCall]) -> tuple[list[messages.ToolCall], list[messages.ToolCall]]:
        """Split calls into repeatable ones and others; an unknown tool is never called, so its calls are repeatable."""
        writing = {spec.name for spec in self.execution.started.tools if not spec.idempotent}
        return [c for c in calls if c.name not in writing], [c for c in calls if c.name in writing]

    @property
    def _id(self) -> str:
        return self.execution.started.execution

    @property
    def _turn(self) -> int:
        return len(messages.answers(self.execution.log))

    @property
    def _scope(self) -> ports.Scope:
        return ports.Scope(
            execution=self._id,
            investigation=self.journal.record.snapshot.id,
            ensure_lease=self.journal.ensure_lease,
            pause_time=self.pause_time,
            has_fallback=self.execution.next_source is not None,
            may_retry=self.may_retry,
            on_retry=self._on_retry,
        )

    async def _on_retry(self, retry: ports.Retry) -> None:
        """Keep, and log, that a request to a provider is sent again: for people, while it lasts."""
        provider, code, error = retry.failed.provider, retry.failed.code, retry.failed.error
        log_fields = {"action": "model_retry", "provider": provider, "code": code, "requests": retry.attempt}
        log.warning("%s is asked again in %.1f s: %s", provider, retry.seconds, error, extra=log_fields)
        await self.journal.commit(
            entries.ModelRetried(
                execution=self._id,
                turn=self._turn,
                provider=provider,
                model=retry.model,
                attempt=retry.attempt,
                error=error,
                code=code,
                seconds=retry.seconds,
            )
        )


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all of it at the same time, and return what came of it in order; a lost lease is told as one error."""
    lost: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except* ports.LeaseLostError as errors:
        lost = errors.exceptions[0]
    if lost is not None:  # however many saw it
        raise lost
    return [task.result() for task in tasks]


def _unknown(name: str, pinned: Sequence[str]) -> str:
    """Return the answer to a call of an unknown tool, with the tools that there are."""
    server, tool = tool_names.split(name)
    servers = {tool_names.split(tool_name)[0] for tool_name in pinned}
    if not (server and tool):
        what = f"'{name}' is no tool's name: a name is server.tool"
    elif server not in servers:
        what = f"There is no MCP server '{server}'"
    else:
        what = f"There is no tool '{name}'"
    return f"{what}. Available tools: {', '.join(pinned) or 'none'}"


def _in_doubt(call: messages.ToolCall) -> messages.Message:
    return messages.Message(
        role="tool", call_id=call.id, tool_name=call.name, text=IN_DOUBT, failed=True, in_doubt=True
    )
