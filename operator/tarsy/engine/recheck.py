"""The recheck of an alert that comes again: the calls of its last investigation are made again, without a model.

If all results are alike (`engine.comparison`), the investigation ends with the earlier result. Anything else, an error
too, and it is investigated as usual, and its agents are told what differs.

Nothing is committed before the last call has answered: a takeover begins again, and makes only calls that read. What
the earlier investigation was is read again before its result counts, because people may have deleted it meanwhile, or
said that it was wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TypeAlias

from tarsy.agent import loop, strategies
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import reading_tools, runbook
from tarsy.engine.comparison import results
from tarsy.resources import chains, tool_patterns
from tarsy.telemetry import metrics
from tarsy.transcript import entries, excerpts, messages, ports, record, tool_names

log = logging.getLogger(__name__)

SECONDS = 120.0
"""The time limit of a recheck."""
CALLS_MAX = 50
"""The calls of an investigation that are made again; one with more is not rechecked."""
AT_ONCE = 8
CHARACTERS_MAX = 4 * 1024 * 1024
"""The characters of all results together, then and now, that are compared."""
TOLD_MAX, TOLD_BYTES = 20, 4096
"""The differences that agents are told, and their size."""
CALL_MAX = 200
"""The limit of a call in words, in characters."""
MESSAGE_MAX = 1000
"""The limit of the message of an unchanged investigation, in characters."""
UNCHANGED = "Unchanged"
"""The reason of an investigation that ended with an earlier result."""
_MOMENTS = ("startsAt", "endsAt")
"""The fields of an alert's data that say when it fired."""
_FINGERPRINT = re.compile(r"(\[MASKED:[a-z0-9_]{1,40}):[0-9a-f]{4}\]")


Clean: TypeAlias = Callable[[str], str]
"""Returns a handwritten text as it is stored, without known secrets."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """A call of the earlier investigation, and its result."""

    name: str
    """`server.tool`."""
    arguments: str
    execution: str
    call_id: str

    @property
    def tool(self) -> reading_tools.ReadingTool:
        """The tool."""
        return reading_tools.READING_TOOLS[tool_names.split(self.name)[1]]

    @property
    def key(self) -> tuple[str, str]:
        """What distinguishes it from other calls."""
        return self.name, self.arguments

    @property
    def in_words(self) -> str:
        """The call in words."""
        words = reading_tools.in_words(tool_names.split(self.name)[1], self.arguments)
        return excerpts.one_line(words, CALL_MAX)


async def run(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Recheck the last investigation of the alert, and commit what came of it, unless there is none.

    If nothing has changed, this ends the investigation.
    """
    so_far, snapshot = journal.record.runs[entries.INVESTIGATION], journal.record.snapshot
    within = snapshot.chain.recurrence.within if snapshot.chain.recurrence else 0
    if not within or so_far.stages or so_far.ended or so_far.rechecked or snapshot.retry_of:
        return
    if (former := await journal.former(within)) is None:
        return
    with runtime.in_force() as now:
        rechecking = _Recheck(runtime=now, journal=journal, former=former, reads=reads(former.record))
        why = problem(
            journal.record, former, platform=now.platform, stored=lambda text: messages.storable(now.secrets.mask(text))
        ) or ("other alerts have joined this one" if journal.joined else "")
        rechecked = rechecking.not_made(why) if why else await rechecking.run()
    if not rechecked.differences and not rechecked.problem:
        again = await journal.former(within)
        if again is None or again.record.snapshot.id != rechecked.former or again.is_disputed or journal.joined:
            rechecked = rechecking.not_made("it was deleted or judged, or alerts joined this one, meanwhile")
    if rechecked.problem:
        log.info("not rechecked: %s", rechecked.problem, extra={"action": "not_rechecked", "former": former.name})
        await journal.commit(rechecked)
        return
    metrics.RECHECKS.add("changed" if rechecked.differences else "unchanged")
    log_fields = {"action": "rechecked", "former": former.name, "differences": len(rechecked.differences)}
    log.info("rechecked %s: %d differences", former.name, len(rechecked.differences), extra=log_fields)
    ends = () if rechecked.differences else unchanged(snapshot.chain, rechecked, former.record)
    await journal.commit(*rechecking.made(), rechecked, *ends)


def masking(platform: platforms.Platform) -> str:
    """Return the digest of the masking of all servers' results, and of alerts."""
    settings = {name: server.data_masking.model_dump(mode="json") for name, server in platform.mcp_servers.items()}
    alerts = platform.defaults.alert_masking.model_dump(mode="json")
    return hashlib.sha256(json.dumps([settings, alerts], sort_keys=True).encode()).hexdigest()[:16]


def masking_in_force(runtime: ports.Runtime) -> str:
    """Return the digest of the masking in force."""
    with runtime.in_force() as now:
        return masking(now.platform)


def with_masking(ends: Sequence[entries.Entry], runtime: ports.Runtime, *, began: str) -> Sequence[entries.Entry]:
    """Return ends with the digest of the masking in the end of the run, if it is the one with which this claim `began`.

    `began` is "" if no recheck will ask for it.
    """
    if not began or began != masking_in_force(runtime):
        return ends
    return [replace(end, masking=began) if isinstance(end, entries.RunEnded) else end for end in ends]


def problem(now: record.Record, former: ports.Former, *, platform: platforms.Platform, stored: Clean) -> str:
    """Return why the earlier investigation cannot be rechecked for this one; "" if it can."""
    then = former.record
    ended = then.ended
    if former.is_disputed:
        return "people said that it was not right"
    if ended is None or (ended.ending, ended.reason) != ("Completed", "StagesCompleted"):
        return "it did not complete"
    if ended.grounds != "Inspected":
        return "its result is not based on inspections alone"
    if not ended.masking or ended.masking != masking(platform):
        return "the masking has changed since"
    if _alert(now.snapshot) != _alert(then.snapshot) or now.mcp != then.mcp:
        return "the alert, its annotations or its tool selection have changed since"
    if _chain(now.snapshot) != _chain(then.snapshot):
        return "the chain has changed since"
    if runbook.text(now) != runbook.text(then):
        return "the runbook has changed since"
    return next(_problems_of_agents(then, platform=platform, stored=stored), "") or _problem_of_calls(then)


def _problems_of_agents(then: record.Record, *, platform: platforms.Platform, stored: Clean) -> Iterator[str]:
    snapshot = then.snapshot
    conversations = (execution.log for execution in then.executions.values())
    if any(
        isinstance(entry, messages.Message) and entry.native for conversation in conversations for entry in conversation
    ):
        yield "its agents used tools of their provider"
    for spec in snapshot.chain.stages:
        for agent, member in zip(then.stages[spec.name].agents, spec.members, strict=True):
            if agent.told:
                yield "its agents were told of other alerts"
            try:
                settings = resolve.agent_for(
                    platform,
                    chain_name=snapshot.chain_name,
                    chain=snapshot.chain,
                    stage=spec,
                    member=member,
                    mcp=then.mcp,
                )
            except resolve.UnresolvedError as error:
                yield str(error)
                return
            if not strategies.STRATEGIES[settings.strategy].tools:
                settings = settings.without_tools()
            started = agent.started.agent
            if started is None or _settings(settings, stored) != _settings(started, stored):
                yield f"the settings of {agent.started.name} have changed since"


def _settings(agent: resolve.ResolvedAgent, stored: Clean) -> tuple[object, ...]:
    instructions = [
        stored(agent.custom_instructions),
        *((name, stored(text)) for name, text in agent.server_instructions),
    ]
    return agent.name, agent.provider, agent.strategy, agent.max_iterations, agent.servers, agent.tools, instructions


def _problem_of_calls(then: record.Record) -> str:
    calls = list(_calls(then))
    if len({(call.name, call.arguments) for _, call in calls}) > CALLS_MAX:
        return f"it made more than {CALLS_MAX} calls"
    for agent, call in calls:
        if problem := reading_tools.problem(tool_names.split(call.name)[1], call.arguments):
            return problem
        if not any(spec.idempotent for spec in agent.started.tools if spec.name == call.name):
            return f"{call.name} may write"
    return "" if reads(then) else "it read nothing"


def _calls(then: record.Record) -> Iterator[tuple[record.Execution, messages.ToolCall]]:
    """Yield the calls of agents, answered or not, without those that look into results of others."""
    for stage in then.stages.values():
        for agent in stage.agents:
            for message in agent.log:
                for call in message.calls if isinstance(message, messages.Message) else ():
                    if tool_names.split(call.name)[0] != tool_patterns.RESULT_SERVER:
                        yield agent, call


def reads(then: record.Record) -> list[Read]:
    """Return the calls of an investigation that were answered."""
    return [
        Read(name=call.name, arguments=call.arguments, execution=agent.started.execution, call_id=call.id)
        for agent, call in _calls(then)
        if any(result.call_id == call.id for result in record.results(agent.log))
    ]


def _chain(snapshot: record.Snapshot) -> tuple[object, ...]:
    return snapshot.chain, snapshot.chain_name, snapshot.chain_namespace or snapshot.namespace


def _alert(snapshot: record.Snapshot) -> tuple[object, ...]:
    """Return what an alert says, without the times at which it fired."""
    alert_data: object = snapshot.alert_data
    try:
        fields = json.loads(snapshot.alert_data)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        alert_data = {name: value for name, value in fields.items() if name not in _MOMENTS}
    return alert_data, snapshot.alert_type, snapshot.severity, snapshot.runbook_url, snapshot.namespace


def unchanged(
    chain: chains.Spec, rechecked: entries.Rechecked, then: record.Record
) -> Sequence[entries.StageEnded | entries.RunEnded]:
    """Return the ends of an investigation whose recheck found no difference: its stages are skipped."""
    ended = then.ended
    assert ended  # noqa: S101 - it completed
    since = f"Unchanged since {rechecked.name}, which ended at {rechecked.ended}"
    skipped = [
        entries.StageEnded(stage=stage.name, outcome="Skipped", message=f"skipped: unchanged since {rechecked.name}")
        for stage in chain.stages
    ]
    listed = "\n".join(f"- {call}" for call in rechecked.calls)
    looked = f"{since}. No model was asked. These calls were made again, and their results are alike:\n\n{listed}"
    message = f"{since}. Looked at again: {'; '.join(rechecked.calls)}"
    run_ended = entries.RunEnded(
        ending="Completed",
        reason=UNCHANGED,
        message=excerpts.one_line(message, MESSAGE_MAX),
        final_analysis=f"{looked}\n\nIts result:\n\n{ended.final_analysis}",
        summary=ended.summary,
        grounds=ended.grounds,
        former=rechecked.former,
    )
    return [*skipped, run_ended]


@dataclass(kw_only=True)
class _Recheck:
    """One recheck, as this process makes it."""

    runtime: ports.Runtime
    journal: ports.Journal
    former: ports.Former
    reads: Sequence[Read]

    def __post_init__(self) -> None:
        self._runs: list[entries.ToolRun] = []
        self._id = record.execution_id(
            self.journal.record.snapshot.id, run=entries.INVESTIGATION, stage="", kind="recheck", index=0
        )

    async def run(self) -> entries.Rechecked:
        """Make the calls again, and return what came of it."""
        recorded = await self._recorded()
        if recorded is None:
            return self.not_made("one of its results was deleted, or they are too long")
        pinned = {spec.name: spec for spec in self._pinned()}
        servers = list(dict.fromkeys(tool_names.split(name)[0] for name in pinned))
        try:
            async with asyncio.timeout(SECONDS), self.runtime.toolbox(servers, pinned.__contains__) as toolbox:
                if {spec.name: spec for spec in toolbox.specs} != pinned:
                    return self.not_made("its tools have changed since, or cannot be reached")
                outputs = await self._call(toolbox)
        except TimeoutError:
            return self._rechecked([f"the calls were not answered within {SECONDS:g} s"])
        failed = [
            f"{read.in_words}: the call failed now: {output.text}"
            for key, output in outputs.items()
            if output.failed or output.length
            for read in [next(read for read in self.reads if read.key == key)]
        ]
        if failed:
            return self._rechecked(failed)
        if sum(map(len, recorded)) + sum(len(output.text) for output in outputs.values()) > CHARACTERS_MAX:
            return self._rechecked(["the results are too long to be compared"])
        differences = await asyncio.to_thread(results.differences, self._rereads(recorded, outputs))
        lines = (
            f"{read.in_words}: {line}" for read, lines in zip(self.reads, differences, strict=True) for line in lines
        )
        return self._rechecked(list(dict.fromkeys(lines)))

    def made(self) -> Sequence[entries.Entry]:
        """Return the entries of the calls: an execution of their own."""
        started = entries.ExecutionStarted(
            stage="",
            execution=self._id,
            kind="recheck",
            index=0,
            name="Recheck",
            agent=None,
            tools=tuple(self._pinned()),
        )
        answered = [entries.ToolsAnswered(execution=self._id, runs=tuple(self._runs))] if self._runs else []
        return [started, *answered, entries.ExecutionEnded(execution=self._id, outcome="Completed")]

    def not_made(self, why: str) -> entries.Rechecked:
        """Return the entry of a recheck that is not made, or does not count."""
        return replace(self._rechecked([]), calls=(), problem=excerpts.one_line(why, MESSAGE_MAX))

    async def _recorded(self) -> list[str] | None:
        """Return the whole results of then; None if one was deleted or was never whole, or if they are too long."""
        recorded = []
        characters = 0
        for read in self.reads:
            agent = self.former.record.executions[read.execution]
            text: str | None = agent.text_of_result(read.call_id)
            length = agent.whole_length(read.call_id)
            if length is not None:
                characters += length
                text = await self.former.whole(read.execution, read.call_id) if characters <= CHARACTERS_MAX else None
                if text is None or len(text) != length:
                    return None
            recorded.append(text or "")
        return recorded

    def _pinned(self) -> list[messages.ToolSpec]:
        """Return the tools that are called, as the earlier agents had them."""
        names = {read.name for read in self.reads}
        specs = {
            spec.name: spec
            for read in self.reads
            for spec in self.former.record.executions[read.execution].started.tools
            if spec.name in names
        }
        return list(specs.values())

    async def _call(self, toolbox: ports.Toolbox) -> Mapping[tuple[str, str], ports.ToolOutput]:
        """Make each call once."""
        slots = asyncio.Semaphore(AT_ONCE)
        snapshot = self.journal.record.snapshot
        # The markers of both results have fingerprints by the key of the earlier investigation.
        scope = ports.Scope(
            execution=self._id,
            investigation=self.former.record.snapshot.id,
            chain=snapshot.chain_name,
            depth=snapshot.depth,
            ensure_lease=self.journal.ensure_lease,
            only_reads=True,
        )

        async def call(number: int, key: tuple[str, str]) -> tuple[entries.ToolRun, ports.ToolOutput]:
            asked = messages.ToolCall(id=f"0.{number}", name=key[0], arguments=key[1])
            async with slots:
                began = time.monotonic()
                output = await toolbox.call(asked, scope)
            text = excerpts.middle_cut(output.text, loop.RESULT_SHOWN, advice=excerpts.ASK_FOR_LESS)
            is_cut = text is not output.text
            result = messages.Message(
                role="tool", call_id=asked.id, tool_name=asked.name, text=text, failed=output.failed
            )
            run = entries.ToolRun(
                call=asked,
                result=result,
                seconds=time.monotonic() - began,
                length=output.length or (len(output.text) if is_cut else None),
                whole=output.text if is_cut else None,
            )
            return run, output

        keys = list(dict.fromkeys(read.key for read in self.reads))
        answers = await loop.side_by_side(call(number, key) for number, key in enumerate(keys))
        self._runs = [run for run, _ in answers]
        return {key: output for key, (_, output) in zip(keys, answers, strict=True)}

    def _rereads(
        self, recorded: Sequence[str], outputs: Mapping[tuple[str, str], ports.ToolOutput]
    ) -> list[results.Reread]:
        servers = self.runtime.platform.mcp_servers
        return [
            results.Reread(
                form=read.tool.form,
                former=former,
                now=outputs[read.key].text,
                has_fingerprints=servers[tool_names.split(read.name)[0]].data_masking.fingerprints,
            )
            for read, former in zip(self.reads, recorded, strict=True)
        ]

    def _rechecked(self, differences: Sequence[str]) -> entries.Rechecked:
        """Return the entry, with as many differences as agents are told."""
        lines: list[str] = []
        left = TOLD_BYTES
        for difference in differences[:TOLD_MAX]:
            line = excerpts.one_line(_FINGERPRINT.sub(r"\1]", difference), CALL_MAX + results.DIFFERENCE_MAX)
            left -= len(line.encode()) + 1
            if left < 0:
                break
            lines.append(line)
        return entries.Rechecked(
            former=self.former.record.snapshot.id,
            name=self.former.name,
            ended=f"{self.former.ended_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
            calls=tuple(dict.fromkeys(read.in_words for read in self.reads)),
            differences=tuple(lines),
            more=len(differences) - len(lines),
        )
