"""The agent loop: ask the model, run the tool calls of its answer, commit each step.

Nothing is sent before the journal confirms the lease, and nothing counts before it is committed. A crash therefore
leaves one of three things: an answer that was not committed (the model is asked again), results of read-only calls that
were not committed (the calls are made again), or a writing call with an unknown outcome (in doubt, never repeated).
Cancellation has no code here: it ends the task.

If a provider gives no answer, the execution continues with its next fallback permanently. The log says so, and a
takeover asks that provider too. The failures of one provider do not count against the next.

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
from tarsy.agent import (
    concurrent_waits,
    excerpting,
    joined_alerts,
    prompts,
    requests,
    result_tools,
    spending,
    steps,
    summaries,
    templates,
)
from tarsy.config.model import budgets
from tarsy.telemetry import metrics
from tarsy.transcript import entries, excerpts, messages, ports, record, tool_names
from tarsy.transcript.kinds import registry

log = logging.getLogger(__name__)

T = TypeVar("T")

IN_DOUBT = "The outcome of this call is unknown: its worker was interrupted. It was not repeated; check before acting."

RESULT_SHOWN = 64 * 1024
"""The default limit of a tool's result in a request, in characters."""
SUMMARIES_AT_ONCE = 8
"""The limit for one execution: each summary holds a long text in memory."""

EndsWith: TypeAlias = Callable[[record.Execution], Sequence[entries.Entry]]
"""Returns the entries that are committed with the end of an execution, given its state after its end."""


class OpenStream(Protocol):
    """Opens the stream of a model call, for as long as the model is asked."""

    def __call__(self, number: int, result: str = "") -> AbstractContextManager[ports.Stream]:
        """`number` is the call number; `result` is the tool call whose result is summarised before it, if any."""
        ...


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The loop of one execution over its log."""

    execution: record.Execution
    """The execution in the journal's record: each commit adds to its log."""
    model: Callable[[str], ports.Model]
    """Returns the model of a provider."""
    toolbox: ports.Toolbox
    journal: ports.Journal
    ends_with: EndsWith
    context_tokens: Callable[[str], int | None] = lambda _: None
    """Returns the limit of a request to a provider, in tokens; None if it is unknown."""
    pause_time: Callable[[], AbstractContextManager[object]] = nullcontext
    """See `ports.Scope.pause_time`."""
    may_retry: Callable[[], bool] = lambda: True
    """See `ports.Scope.may_retry`."""
    charges: Callable[[str, ports.Request, bool], Sequence[budgets.Charge]] = lambda *_: ()
    """Returns what a request to a provider may spend of each budget; the third argument says whether it concludes.
    Raises BudgetError."""
    open_stream: OpenStream = lambda number, result="": nullcontext(ports.NULL_STREAM)  # noqa: ARG005 - without viewers
    """See `ports.Runtime.open_stream`."""
    result_limit: Callable[[str], int] = lambda _: RESULT_SHOWN
    """Returns the limit of a tool's result in a request to a provider, in characters."""
    excerpt_limit: Callable[[str, str, int], int | None] = lambda *_: None
    """Returns the limit of a result's excerpt in characters, given its server, the provider that is asked now, and its
    characters; None if it gets none."""
    summary_due: Callable[[str, str, int], entries.SummaryDue | None] = lambda *_: None
    """Returns the summary that a result needs, given its server, the provider that is asked now, and its characters."""

    async def run(self) -> None:
        """Go on from where the log stands until the execution ends or has to wait, or the run is suspended."""
        await self._settle_doubts()
        began: float | None = None  # of the present iteration
        while not self.execution.ended and not self.journal.suspended() and self._id not in self.journal.waits:
            if self.execution.due:
                await self._summarise()
                continue
            match requests.next_step(self.execution):
                case steps.Ask() as ask:
                    began = _end_iteration(began)
                    await self._tell_of_joined()
                    await self._ask(ask)
                case steps.Run(calls):
                    await self._run(calls)
                case steps.Done() | steps.GiveUp():  # an earlier version committed this answer without the end
                    await self._commit()
        _end_iteration(began)

    async def _commit(
        self,
        *added: entries.Answered | entries.Unanswered | entries.FellBack | entries.ToolsAnswered,
        first: Sequence[entries.ServersAway] = (),
    ) -> None:
        """Commit entries, and after them the end of the execution and all that ends with it, if they bring it."""
        log = [*self.execution.log, *(message for entry in added for message in registry.log_additions(entry))]
        ended = requests.end(self.execution, log)
        ends = (ended, *self.ends_with(replace(self.execution, log=log, ended=ended))) if ended else ()
        await self.journal.commit(*first, *added, *ends)

    async def _tell_of_joined(self) -> None:
        """Tell an agent of alerts that have joined since it was told last, if that is long enough ago.

        A synthesis, a summary and the answer to a question are told once, before they begin.
        """
        told = self.execution.told
        number = told.number if told else 0
        clock = self.journal.clock()
        is_agent = self.execution.started.kind == "agent"
        is_due = told is None or (is_agent and clock - told.clock >= joined_alerts.EVERY_SECONDS)
        if self.journal.joined <= number or not is_due:
            return
        if joined := await self.journal.joined_alerts(number):
            message = joined_alerts.message(joined, react=self.execution.is_react)
            await self.journal.commit(
                entries.AlertJoined(
                    execution=self._id, number=joined.number, alerts=joined.total, clock=clock, messages=(message,)
                )
            )

    async def _ask(self, ask: steps.Ask) -> None:
        added = requests.added(self.execution, ask)
        await self._compact(ask, added)
        request = requests.next_request(self.execution, ask, added)
        failpoints.hit("model.ask.before")
        reply: messages.Message | messages.Failure
        with self.open_stream(self._call_number) as stream:
            try:
                answer = await self.model(self.execution.source.provider).ask(
                    request, replace(self._scope(stream), reserve=functools.partial(self._reserve, ask=ask))
                )
            except ports.MustWaitError as error:
                self._wait(error)
                return
            except ports.ModelError as error:
                # A conclusion may fit into what a budget keeps for it, if it is made of less.
                is_too_large = error.failure.code == messages.CONTEXT_OVERFLOW or (
                    ask.final and error.failure.code == messages.BUDGET
                )
                if is_too_large and await self._compact(ask, added, refused=error):
                    return  # the loop sends the smaller request
                reply, call = error.failure, error.call
            else:
                reply = requests.strategy(self.execution).dialect.read(answer.message, final=ask.final)
                call = answer.call
            await self._commit(self._reply_entry(reply, added, call))

    def _wait(self, error: ports.MustWaitError) -> None:
        """Stop before a model call that may not be made now; the next claim asks again."""
        log_fields = {"action": "execution_waits", "reason": error.wait.reason}
        log.info("agent waits: %s", error.wait.message, extra=log_fields)
        self.journal.waits[self._id] = error.wait

    async def _compact(
        self, ask: steps.Ask, added: Sequence[messages.Message], *, refused: ports.ModelError | None = None
    ) -> bool:
        """Shorten tool results if the request would be too large, or was `refused` as that; return whether any was."""
        limit = self.context_tokens(self.execution.source.provider)
        compaction = requests.context_of(self.execution, ask, added).compaction(limit, refused=refused is not None)
        if compaction is None:
            return False
        await self.journal.commit(
            entries.ContextCompacted(
                execution=self._id,
                turn=self._call_number,
                results=compaction.results,
                cut=compaction.cut,
                shown=compaction.shown,
                tokens=compaction.tokens,
                limit=limit or 0,
                failure=refused.failure if refused else None,
                call=refused.call if refused else None,
            )
        )
        return True

    def _reply_entry(
        self, reply: messages.Message | messages.Failure, added: tuple[messages.Message, ...], call: entries.ModelCall
    ) -> entries.Answered | entries.Unanswered | entries.FellBack:
        """Return the entry of a model's reply to a request with `added`: an answer, a failure, or a fallback."""
        number = self._call_number
        if isinstance(reply, messages.Message):
            calls = (replace(asked, id=f"{number}.{index}") for index, asked in enumerate(reply.calls))
            reply = replace(reply, calls=tuple(calls))
        reason, fallback = self._fallback_reason((*added, reply)), self.execution.next_source
        if reason is not None and fallback is not None:
            failure = messages.Failure(kind="rejected", text=reason)
            if isinstance(reply, messages.Failure):
                failure = replace(reply, text=reason)
            log_fields = {"action": "provider_fallback", "left": call.provider, "provider": fallback.provider}
            log.warning("%s is asked from here on: %s", fallback.provider, reason, extra=log_fields)
            metrics.MODEL_FALLBACKS.add(call.provider, call.model, fallback.provider)
            return entries.FellBack(
                execution=self._id, turn=number, provider=fallback.provider, failure=failure, call=call
            )
        if isinstance(reply, messages.Failure):
            return entries.Unanswered(execution=self._id, turn=number, messages=added, failure=reply, call=call)
        return entries.Answered(execution=self._id, turn=number, messages=(*added, reply), call=call)

    def _fallback_reason(self, added: Sequence[messages.Message | messages.Failure]) -> str | None:
        """Return why the next provider is asked instead of committing `added`, which ends with the reply; or None."""
        if self.execution.next_source is None:
            return None
        match added[-1], requests.next_step(self.execution, [*self.execution.log, *added]):
            case messages.Failure(code=messages.RETRIES), _:
                return None
            case (_, steps.GiveUp(text)) | (messages.Failure(kind="timeout", text=text), _):
                return text
        return None

    async def _run(self, calls: Sequence[messages.ToolCall]) -> None:
        """Call tools: each writing one alone, then the others side by side."""
        writing = self._writing
        batches = [[call] for call in calls if call.name in writing]
        batches.append([call for call in calls if call.name not in writing])
        with self.open_stream(self._call_number - 1) as stream:
            for batch in filter(None, batches):
                await self._commit_results(await side_by_side(self._call(call, stream) for call in batch))

    async def _settle_doubts(self) -> None:
        """Answer the writing calls that were under way when an earlier worker ended: their outcome is unknown."""
        calls = steps.under_way(self.execution.log, requests.rules(self.execution))
        doubt = messages.Message(role="tool", text=IN_DOUBT, failed=True, in_doubt=True)
        runs = [
            entries.ToolRun(call=call, result=replace(doubt, call_id=call.id, tool_name=call.name), seconds=0.0)
            for call in calls
            if call.name in self._writing and not steps.is_repeated(self.execution.log, call)
        ]
        if runs:
            await self._commit_results([(run, False) for run in runs])

    async def _call(self, call: messages.ToolCall, stream: ports.Stream) -> tuple[entries.ToolRun, bool]:
        """Call a tool, unless the rules refuse it; return its run, and whether its server could not be reached."""
        failpoints.hit("tool.call.before")
        started = time.monotonic()
        if refusal := self._refusal(call):
            output = ports.ToolOutput(text=refusal, failed=True)
        elif result_tools.is_own(call.name):
            most = self.result_limit(self.execution.source.provider)
            output = await result_tools.run(call, execution=self.execution, journal=self.journal, limit=most)
        else:
            scope = replace(self._scope(stream), only_reads=call.name not in self._writing)
            output = await self.toolbox.call(call, scope)
        failpoints.hit("tool.call.after")
        return await self._tool_run(call, output, seconds=time.monotonic() - started), output.away

    async def _tool_run(self, call: messages.ToolCall, output: ports.ToolOutput, *, seconds: float) -> entries.ToolRun:
        """Return the record of a call, with an excerpt of its result, or cut to the limit of the present provider.

        A fallback that is asked later reads the same.
        """
        provider = self.execution.source.provider
        server, _ = tool_names.split(call.name)
        most = self.excerpt_limit(server, provider, len(output.text))
        looks_into = self.execution.looks_into_results
        reference = f"{self._id}/{call.id}"
        excerpt = None
        if most is not None and len(output.text) > most:
            text, excerpt = await excerpting.excerpt(
                output.text,
                limit=most,
                alert=self.journal.record.snapshot.alert_data,
                call=reference,
                looks_into=looks_into,
            )
        else:
            advice = excerpts.in_full(reference) if looks_into else excerpts.ASK_FOR_LESS
            text = excerpts.middle_cut(output.text, self.result_limit(provider), advice=advice)
        is_cut = text is not output.text
        return entries.ToolRun(
            call=call,
            result=messages.Message(role="tool", call_id=call.id, tool_name=call.name, text=text, failed=output.failed),
            seconds=seconds,
            length=output.length or (len(output.text) if is_cut else None),
            excerpt=excerpt,
            whole=output.text if is_cut else None,
            summary=None if output.failed else self.summary_due(server, provider, len(output.text)),
        )

    def _refusal(self, call: messages.ToolCall) -> str:
        """Return why a call is not made, in words for the model; "" if it is made."""
        pinned = [spec.name for spec in self.execution.tools]
        if call.name not in pinned:
            return _unknown_tool(call.name, pinned)
        if steps.is_repeated(self.execution.log, call):
            return templates.text("repeated")
        refused = steps.refusal(self.execution.log, call, requests.rules(self.execution))
        return templates.fill("refused", why=refused) if refused else ""

    async def _commit_results(self, results: Sequence[tuple[entries.ToolRun, bool]]) -> None:
        """Commit the results of `_call`, after an entry about the servers that could not be reached."""
        answered = entries.ToolsAnswered(execution=self._id, runs=tuple(run for run, _ in results))
        away = []
        if unreached := [run.call for run, is_away in results if is_away]:
            servers = dict.fromkeys(tool_names.split(call.name)[0] for call in unreached)
            calls = tuple(call.id for call in unreached)
            away.append(entries.ServersAway(execution=self._id, servers=tuple(servers), calls=calls))
        await self._commit(answered, first=away)

    async def _summarise(self) -> None:
        """Summarise the results that need it, concurrently."""
        waits = concurrent_waits.ConcurrentWaits(self.pause_time)
        slots = asyncio.Semaphore(SUMMARIES_AT_ONCE)

        async def summarise(call_id: str, due: entries.SummaryDue) -> None:
            async with slots:
                with waits.call():
                    await self._summarise_result(call_id, due, pause_time=waits.pause_time)

        await side_by_side(summarise(*due) for due in list(self.execution.due.items()))

    async def _summarise_result(
        self, call_id: str, due: entries.SummaryDue, *, pause_time: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Ask for the summary of a long result, and commit it, or why there is none."""
        _, result = self.execution.result(call_id)
        word = prompts.new_word()
        request = await self._summary_request(due, result, word=word)
        failpoints.hit("model.summary.before")
        summary: str | messages.Failure
        with self.open_stream(self._call_number, call_id) as stream:
            try:
                # Without a summary the model reads the result itself: that is as good as a fallback.
                scope = replace(self._scope(stream), pause_time=pause_time, has_fallback=True)
                answer = await self.model(due.provider).ask(request, scope)
            except ports.MustWaitError as error:
                self._wait(error)
                return
            except ports.ModelError as error:
                summary, call = error.failure, error.call
            else:
                summary, call = summaries.read(answer.message, due, instead_of=result.text), answer.call
            failpoints.hit("model.summary.after")
            await self.journal.commit(
                entries.ToolSummarised(
                    execution=self._id,
                    turn=self._call_number,
                    call_id=call_id,
                    tool=result.tool_name,
                    word=word,
                    text=summary if isinstance(summary, str) else "",
                    failure=None if isinstance(summary, str) else summary,
                    call=call,
                )
            )

    async def _summary_request(self, due: entries.SummaryDue, result: messages.Message, *, word: str) -> ports.Request:
        """Return the request for a summary. It keeps only a part of the full result, which may be long."""
        is_cut = result.call_id in self.execution.cut and result.call_id not in self.execution.excerpts
        full_result = await self.journal.whole(self._id, result.call_id) if is_cut else None
        snapshot = self.journal.record.snapshot
        return summaries.request(
            self.execution,
            due,
            investigation=f"{snapshot.namespace}/{snapshot.name}",
            call_id=result.call_id,
            full_result=result.text if full_result is None else full_result,
            word=word,
        )

    @property
    def _writing(self) -> set[str]:
        """The tools whose calls may not be repeated. A call of an unknown tool is never made, so it may be."""
        return {spec.name for spec in self.execution.started.tools if not spec.idempotent}

    @property
    def _id(self) -> str:
        return self.execution.started.execution

    @property
    def _call_number(self) -> int:
        """The number of the next model call."""
        return len(messages.answers(self.execution.log))

    def _scope(self, stream: ports.Stream) -> ports.Scope:
        return ports.Scope(
            execution=self._id,
            investigation=self.journal.record.snapshot.id,
            chain=self.journal.record.snapshot.chain_name,
            depth=self.journal.record.snapshot.depth,
            ensure_lease=self.journal.ensure_lease,
            pause_time=self.pause_time,
            has_fallback=self.execution.next_source is not None,
            may_retry=self.may_retry,
            on_retry=self._on_retry,
            stream=stream,
            reserve=self._reserve,
        )

    async def _reserve(
        self,
        provider: str,
        request: ports.Request,
        *,
        ended: Sequence[str],
        may_wait: bool,
        ask: steps.Ask | None = None,
    ) -> str | None:
        """Reserve a request in the budgets; see `ports.Reserve`. Without `ask` it is for a summary of a result.

        An agent that has been answered once may conclude from what is kept for that; another has nothing to conclude.
        """
        concludes = ask is not None and ask.final
        if not (charged := self.charges(provider, request, concludes)):
            return ""
        reservation = await self.journal.reserve(charged, ended=ended)
        if reservation.exceeded and may_wait and reservation.may_fit_later:
            return None
        if reservation.exceeded:
            answered = any(isinstance(reply, messages.Message) for reply in messages.answers(self.execution.log))
            may_conclude = ask is not None and not concludes and answered
            raise spending.refusal(charged, reservation, may_conclude=may_conclude)
        return reservation.request

    async def _on_retry(self, retry: ports.Retry) -> None:
        """Commit and log that a request to a provider is sent again: people see it while it lasts."""
        provider, code, error = retry.failed.provider, retry.failed.code, retry.failed.error
        log_fields = {"action": "model_retry", "provider": provider, "code": code, "requests": retry.attempt}
        log.warning("%s is asked again in %.1f s: %s", provider, retry.seconds, error, extra=log_fields)
        await self.journal.commit(
            entries.ModelRetried(
                execution=self._id,
                turn=self._call_number,
                provider=provider,
                model=retry.model,
                attempt=retry.attempt,
                error=error,
                code=code,
                seconds=retry.seconds,
            )
        )


async def side_by_side(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, and return their results in order; a lost lease is raised as one LeaseLostError."""
    lost: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except* ports.LeaseLostError as errors:
        lost = errors.exceptions[0]
    if lost is not None:  # however many tasks raised it
        raise lost
    return [task.result() for task in tasks]


def _end_iteration(began: float | None) -> float:
    """Measure the iteration that began at a monotonic time, if any; return the time at which the next one begins."""
    now = time.monotonic()
    if began is not None:
        metrics.ITERATION_SECONDS.observe(now - began)
    return now


def _unknown_tool(name: str, pinned: Sequence[str]) -> str:
    """Return the answer to a call of an unknown tool, with the available tools."""
    server, tool = tool_names.split(name)
    if not (server and tool):
        problem = f"'{name}' is no tool's name: a name is server.tool"
    elif server not in {tool_names.split(pinned_name)[0] for pinned_name in pinned}:
        problem = f"There is no MCP server '{server}'"
    else:
        problem = f"There is no tool '{name}'"
    return f"{problem}. Available tools: {', '.join(pinned) or 'none'}"
