"""The layout of an investigation's page: stages with their agents, and each event at its execution. Pure functions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib import parse

from tarsy.transcript import timeline_events
from tarsy.views import base, executions, investigations, timelines
from tarsy.web import markdown

EXCERPT_MAX = 4000
"""Characters of a text on the page; its own page has the whole."""
ANALYSIS_MAX = markdown.LENGTH_MAX
"""Characters of the final analysis on the page; the exports have the whole."""
_MARKED = re.compile(r"\[MASKED:[a-z0-9_]+(?::[0-9a-f]{4})?\]")
_CUT = re.compile(r"^\[cut: .{1,120}\]$|^\[withheld: ", re.MULTILINE)
_CALL_PART = re.compile(r"(.+\.\d+\.\d+)\.(result|summary)")
_PART_TYPES: tuple[timeline_events.Type, ...] = ("tool_result", "mcp_tool_summary")
_HIDDEN: tuple[timeline_events.Type, ...] = ("llm_tool_call",)
"""Events that another one of the same entry repeats with more."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The look of a type of event: its name, its icon, and how its content is shown."""

    label: str
    icon: str
    shown_as: str = "note"
    """markdown, thought, result or note."""


LOOKS: dict[timeline_events.Type, Look] = {
    "llm_thinking": Look(label="Thinking", icon="thought", shown_as="thought"),
    "llm_response": Look(label="Text", icon="text", shown_as="markdown"),
    "llm_tool_call": Look(label="Tool call", icon="tool"),
    "mcp_tool_call": Look(label="Tool call", icon="tool", shown_as="call"),
    "tool_result": Look(label="Result", icon="text", shown_as="result"),
    "mcp_tool_summary": Look(
        label="Summary of the result, which the model reads instead", icon="text", shown_as="result"
    ),
    "final_analysis": Look(label="Analysis", icon="check", shown_as="markdown"),
    "executive_summary": Look(label="Summary", icon="check", shown_as="markdown"),
    "user_question": Look(label="Question", icon="question"),
    "mcp_selection": Look(label="Tools of this alert", icon="tool"),
    "runbook": Look(label="Runbook", icon="link"),
    "recheck": Look(label="Compared with the last investigation", icon="copy"),
    "code_execution": Look(label="Code that the provider ran", icon="play", shown_as="result"),
    "google_search_result": Look(label="Google search", icon="search", shown_as="result"),
    "url_context_result": Look(label="Pages that were read", icon="search", shown_as="result"),
    "web_search_result": Look(label="Web search", icon="search", shown_as="result"),
    "provider_fallback": Look(label="Fallback to another provider", icon="warning"),
    "native_tools_left_out": Look(label="Provider's own tools left out", icon="skip"),
    "alerts_joined": Look(label="Alerts joined", icon="warning"),
    "context_compacted": Look(label="Context compacted", icon="copy"),
    "model_retry": Look(label="Request sent again", icon="clock"),
    "error": Look(label="Error", icon="cross"),
    "resumed": Look(label="Resumed", icon="play"),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One event on the page, with the events of its tool call."""

    event: timelines.Event
    look: Look
    into: str
    """The id of the element that a new one is added to."""
    text: str
    left_out: int
    """The number of characters that are not shown."""
    arguments: str
    masked: int
    """The number of places where secrets were masked."""
    has_cut: bool
    references: markdown.References
    parts: list[Line] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Card:
    """An execution with its events."""

    execution: executions.Execution
    phase: str
    seconds: float | None
    into: str
    lines: list[Line]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the chain, with its agents side by side and the synthesis of their results."""

    number: int
    name: str
    phase: str
    summary: investigations.StageSummary | None
    """None: it has not started."""
    seconds: float | None
    agents: list[Card]
    waiting: list[str]
    """The names of the agents that have not started."""
    synthesis: list[Card]
    is_copy: bool
    """Whether its work is copied from the investigation that this one runs again."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, with its answer."""

    run: investigations.Run
    phase: str
    seconds: float | None
    cards: list[Card]
    lines: list[Line]
    references: markdown.References


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The page of an investigation."""

    investigation: investigations.Investigation
    lines: list[Line]
    """The events of no execution."""
    stages: list[Stage]
    others: list[Card]
    """Executions of no stage, such as the summary."""
    questions: list[Question]
    analysis: str
    analysis_left_out: int
    references: markdown.References
    current: str
    """The progress in words."""
    open_question: bool
    """Whether a question waits for its answer."""
    takes_questions: bool

    @property
    def cards(self) -> Iterable[Card]:
        """All executions."""
        for stage in self.stages:
            yield from [*stage.agents, *stage.synthesis]
        yield from self.others
        for question in self.questions:
            yield from question.cards

    @property
    def all_lines(self) -> Iterable[Line]:
        """All events."""
        yield from self.lines
        for question in self.questions:
            yield from question.lines
        for card in self.cards:
            yield from card.lines


def layout(investigation: investigations.Investigation, events: Iterable[timelines.Event]) -> Layout:
    """Return the layout of an investigation with these events of its timeline."""
    lines = _lines(investigation, events)
    cards: dict[tuple[int, str], list[Card]] = defaultdict(list)
    stages = set(investigation.stage_names)
    for execution in investigation.executions:
        stage_name = execution.stage if execution.run == 0 and execution.stage in stages else ""
        cards[execution.run, stage_name].append(
            Card(
                execution=execution,
                phase=execution.outcome or ("Running" if execution.run else _open_phase(investigation)),
                seconds=base.seconds(execution.started_at, execution.ended_at),
                into=_into(execution, stages),
                lines=lines.pop(execution.id, []),
            )
        )
    summaries = {stage.name: stage for stage in investigation.stages}
    agents = {stage.name: stage.agents for stage in investigation.stage_progress}
    analysis = investigation.final_analysis
    chat = investigation.chain.root.get("chat") if investigation.chain else None
    return Layout(
        investigation=investigation,
        lines=[line for key in list(lines) if key == "run-0" or not key.startswith("run-") for line in lines.pop(key)],
        stages=[
            _stage(investigation, number, name, summaries.get(name), cards[0, name], agents.get(name, []))
            for number, name in enumerate(investigation.stage_names, 1)
        ],
        others=cards[0, ""],
        questions=[
            Question(
                run=run,
                phase=run.ending or ("Running" if run.started_at else "Queued"),
                seconds=base.seconds(run.started_at, run.ended_at),
                cards=cards[run.number, ""],
                lines=[line for line in lines.get(f"run-{run.number}", []) if line.event.type != "user_question"],
                references=references(investigation, None),
            )
            for run in investigation.runs
            if run.number
        ],
        analysis=analysis[:ANALYSIS_MAX],
        analysis_left_out=max(0, len(analysis) - ANALYSIS_MAX),
        references=references(investigation, _author(investigation)),
        current=progress(investigation),
        open_question=any(run.number and run.ended_at is None for run in investigation.runs),
        takes_questions=investigation.ended_at is not None
        and investigation.chain is not None
        and not (isinstance(chat, dict) and chat.get("enabled") is False),
    )


def progress(investigation: investigations.Investigation) -> str:
    """Return the progress in words, such as `1 of 3 stages completed • Currently: analysis`."""
    done, _, of_all = investigation.progress.partition("/")
    words = f"{done} of {of_all} stage{'s' * (of_all != '1')} completed"
    return f"{words} • Currently: {investigation.current_stage}" if investigation.current_stage else words


def line(
    investigation: investigations.Investigation, event: timelines.Event, *, limit: int | None = EXCERPT_MAX
) -> Line:
    """Return an event as it is shown, with at most `limit` characters of its texts."""
    execution = next((each for each in investigation.executions if each.id == event.execution), None)
    arguments = event.metadata.get("arguments")
    arguments = arguments if isinstance(arguments, str) else ""
    part = _CALL_PART.fullmatch(event.id)
    parent = f"parts-{part[1]}" if part and event.type in _PART_TYPES else ""
    return Line(
        event=event,
        look=LOOKS[event.type],
        into=parent or (f"events-{event.execution}" if execution else f"events-{event.id.partition('.')[0]}"),
        text=event.content[:limit],
        left_out=max(0, len(event.content) - len(event.content[:limit]))
        + max(0, len(arguments) - len(arguments[:limit])),
        arguments=arguments[:limit],
        masked=len(_MARKED.findall(event.content)) + len(_MARKED.findall(arguments)),
        has_cut=_CUT.search(event.content) is not None,
        references=references(investigation, execution),
    )


def references(investigation: investigations.Investigation, author: executions.Execution | None) -> markdown.References:
    """Return the calls that references such as 0.1 in a text of `author` may mean, as names and addresses.

    An agent means its own call, or one of an earlier stage. A synthesis means a call of any agent of its stage. Without
    an author, all agents are candidates.
    """
    agents = [each for each in investigation.executions if each.kind == "agent" and each.run == 0 and each.tool_calls]
    if author and author.tool_calls:
        groups: Sequence[list[executions.Execution]] = ([author], [each for each in agents if each.id != author.id])
    elif author and author.stage:
        groups = ([each for each in agents if each.stage == author.stage], agents)
    else:
        groups = (agents,)

    def find(call: str) -> list[tuple[str, str]]:
        number = int(call.partition(".")[0])
        for group in groups:
            if callers := [each for each in group if number < each.iterations]:
                return [(each.name, event_address(investigation, f"{each.id}.{call}.call")) for each in callers[:20]]
        return []

    return find


def event_address(investigation: investigations.Facts, event: str) -> str:
    """Return the path of the page of one event."""
    return f"/investigations/{investigation.id}/event?id={parse.quote(event, safe='')}"


def _lines(investigation: investigations.Investigation, events: Iterable[timelines.Event]) -> dict[str, list[Line]]:
    """Return the events by execution, or by run if they are of none; those of a tool call stand at the call."""
    ordered = sorted(events, key=lambda event: (event.created_at, event.seq))
    calls: dict[str, Line] = {}
    by_scope: dict[str, list[Line]] = defaultdict(list)
    execution_ids = {execution.id for execution in investigation.executions}
    parts = []
    for event in ordered:
        if event.type in _HIDDEN:
            continue
        event_line = line(investigation, event)
        if event.type == "mcp_tool_call":
            calls[f"parts-{event.id.removesuffix('.call')}"] = event_line
        elif event_line.into.startswith("parts-"):
            parts.append(event_line)
            continue
        by_scope[_scope(event, execution_ids)].append(event_line)
    for part in parts:
        if call := calls.get(part.into):
            call.parts.append(part)
        else:
            by_scope[_scope(part.event, execution_ids)].append(part)
    return by_scope


def _scope(event: timelines.Event, execution_ids: set[str]) -> str:
    return event.execution if event.execution in execution_ids else event.id.partition(".")[0]


def _into(execution: executions.Execution, stages: set[str]) -> str:
    if execution.run:
        return f"answers-{execution.run}"
    if execution.stage not in stages:
        return "others"
    return f"{'synthesis' if execution.kind == 'synthesis' else 'agents'}-{execution.stage}"


def _stage(
    investigation: investigations.Investigation,
    number: int,
    name: str,
    summary: investigations.StageSummary | None,
    cards: list[Card],
    agents: list[str],
) -> Stage:
    running = [card for card in cards if card.execution.kind != "synthesis"]
    started = {card.execution.index for card in running}
    has_ended = investigation.ended_at is not None or (summary is not None and summary.outcome is not None)
    not_begun = "Cancelled" if investigation.ended_at else "Pending"
    return Stage(
        number=number,
        name=name,
        phase=summary.outcome or _open_phase(investigation) if summary else not_begun,
        summary=summary,
        seconds=base.seconds(summary.started_at, summary.ended_at) if summary else None,
        agents=running,
        waiting=[] if has_ended else [agent for index, agent in enumerate(agents) if index not in started],
        synthesis=[card for card in cards if card.execution.kind == "synthesis"],
        is_copy=any(progress.copied for progress in investigation.stage_progress if progress.name == name),
    )


def _open_phase(investigation: investigations.Investigation) -> str:
    return investigation.phase if investigation.phase in ("Queued", "Waiting", "Suspended", "Cancelling") else "Running"


def _author(investigation: investigations.Investigation) -> executions.Execution | None:
    """Return the execution that wrote the final analysis, as far as it is certain."""
    completed = [
        each for each in investigation.executions if each.run == 0 and each.stage and each.outcome == "Completed"
    ]
    if not completed:
        return None
    last = [each for each in completed if each.stage == completed[-1].stage]
    synthesis = [each for each in last if each.kind == "synthesis"]
    return synthesis[-1] if synthesis else last[0] if len(last) == 1 else None
