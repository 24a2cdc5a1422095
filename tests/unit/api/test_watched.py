"""Live text of an answer as it comes in: what the model tells its stream, and when a call begins and is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from support import leases
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.engine import chat, investigation
from tarsy.llm import limited_model, provider
from tarsy.transcript import entries, memory, messages, ports, record, streams, timeline

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="alert"),))
FINISH = provider.Finish(None)
Step = provider.StreamEvent | provider.ProviderError


@dataclass
class Told:
    """A stream, and all that it was told."""

    received: list[tuple[str, str]] = field(default_factory=list)

    def text(self, piece: str) -> None:
        self.received.append(("text", piece))

    def thinking(self, piece: str) -> None:
        self.received.append(("thinking", piece))

    def again(self) -> None:
        self.received.append(("again", ""))

    def tool(self, call: str, piece: str) -> None:
        self.received.append((call, piece))


class Provider:
    """Streams one of its tries after the other."""

    model = "fake-1"

    def __init__(self, *tries: tuple[Step, ...]) -> None:
        self._tries = list(tries)

    async def stream(self, _: ports.Request):  # type: ignore[no-untyped-def]
        for step in self._tries.pop(0):
            if isinstance(step, provider.ProviderError):
                raise step
            yield step

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.0)


async def ask(*tries: tuple[Step, ...], **limits: object) -> list[tuple[str, str]]:
    """Return what the stream receives from a call with these tries."""
    stream = Told()
    limited = limited_model.LimitedModel("first", Provider(*tries), limits=platforms.Limits.model_validate(limits))
    try:
        await limited.ask(REQUEST, ports.Scope(execution="e", ensure_lease=leases.clear, stream=stream))
    except ports.ModelError as error:
        stream.received.append(("failed", error.failure.kind))
    return stream.received


async def test_text_and_thoughts_are_streamed_immediately_and_in_order() -> None:
    call = provider.Call("k8s.get", "{}")
    chunks = (provider.Thinking("hm"), provider.Text("It "), call, provider.Thinking("so"), provider.Text("is"), FINISH)
    assert await ask(chunks) == [("thinking", "hm"), ("text", "It "), ("thinking", "so"), ("text", "is")]


@pytest.mark.parametrize(
    "first",
    [(provider.Text("half"), provider.RetryableError("503")), (provider.Text("half"),), (provider.Text(" "), FINISH)],
    ids=["refused", "cut off", "empty"],
)
async def test_repeated_request_is_streamed_before_the_next_attempt(first: tuple[Step, ...]) -> None:
    received = await ask(first, (provider.Text("whole"), FINISH))
    assert [kind for kind, _ in received] == ["text", "again", "text"]
    assert received[-1] == ("text", "whole")


@pytest.mark.parametrize(
    ("last", "kind"), [(provider.RejectedError("blocked"), "rejected"), (provider.FatalError("no key"), "fatal")]
)
async def test_failed_answer_without_retry_is_not_streamed_as_repeated(last: Step, kind: str) -> None:
    assert await ask((provider.Text("half"), last)) == [("text", "half"), ("failed", kind)]


class Watching:
    """Watcher of all model calls: how each began, and how it stood when it was over."""

    def __init__(self, journal: memory.MemoryJournal) -> None:
        self.turns: list[ports.StreamedCall] = []
        self.over: list[tuple[ports.StreamedCall, list[streams.PartialEvent], int]] = []
        """With what was shown at last, and how many facts were kept by then."""
        self.received = asyncio.Event()
        self._journal = journal

    @contextmanager
    def open_stream(self, call: ports.StreamedCall) -> Iterator[ports.Stream]:
        self.turns.append(call)
        written = streams.AnswerStream(call, secrets=NO_SECRETS, notify=self.received.set)
        try:
            yield written
        finally:
            written.changes()
            self.over.append((call, list(written.sent_events), len(self._journal.facts)))


@pytest.fixture
def watching(journal: memory.MemoryJournal) -> Watching:
    return Watching(journal)


Run = Callable[[], "asyncio.Task[None]"]


@pytest.fixture
def start(runtime: ports.Runtime, journal: memory.MemoryJournal, watching: Watching) -> Run:
    watched = replace(runtime, open_stream=watching.open_stream)
    return lambda: asyncio.create_task(investigation.run(runtime=watched, journal=journal))


def logged(journal: memory.MemoryJournal) -> list[entries.Logged]:
    """The journal's facts as a log."""
    at = datetime.now(UTC)
    logged_entries = []
    for seq, entry in enumerate(journal.facts, 1):
        execution = getattr(entry, "execution", "")
        started = journal.record.executions[execution].started if execution else None
        location = {"run": started.run, "stage": started.stage} if started else {"run": 0, "stage": ""}
        logged_entries.append(entries.Logged(seq=seq, at=at, claim=1, execution=execution, entry=entry, **location))  # type: ignore[arg-type]
    return logged_entries


def thinks(text: str, *names: str) -> messages.Message:
    calls = tuple(messages.ToolCall(id="", name=name, arguments="{}") for name in names)
    return messages.Message(role="assistant", text=text, thinking=f"hm, {text}", calls=calls)


@pytest.mark.parametrize("script", [(thinks("I look.", "k8s.get"), thinks("It is out of memory."))])
async def test_partial_events_of_each_call_stand_in_the_timeline_under_the_same_ids(
    journal: memory.MemoryJournal, watching: Watching, start: Run
) -> None:
    await start()
    first, second = journal.record.executions
    assert [(call.execution, call.stage, call.number) for call in watching.turns] == [
        *((first, "data-collection", number) for number in (0, 0, 1)),  # its answer, and then its calls
        *((second, "analysis", number) for number in (0, 0, 1)),
    ]
    partial_texts = {partial.event: partial.text for _, partials, _ in watching.over for partial in partials}
    timeline_texts = {event.id: event.content for event in timeline.fold(logged(journal)) if event.id in partial_texts}
    assert partial_texts == timeline_texts
    assert len(partial_texts) == 8


@pytest.mark.parametrize("script", [(thinks("It is out of memory."),)])
async def test_streamed_turn_ends_once_its_answer_is_committed(
    journal: memory.MemoryJournal, watching: Watching, start: Run
) -> None:
    await start()
    for call, _, fact_count in watching.over:
        answered = [fact for fact in journal.facts[:fact_count] if isinstance(fact, entries.Answered)]
        assert call.execution in [fact.execution for fact in answered]


@pytest.mark.parametrize("script", [(messages.Failure(kind="rejected", text="blocked"), thinks("It is memory."))])
async def test_failed_turn_ends_once_committed_and_the_next_turn_has_its_own_number(
    journal: memory.MemoryJournal, watching: Watching, start: Run
) -> None:
    await start()
    (call, partials, fact_count), (after, _, _), *_ = watching.over
    assert (call.number, partials, after.number) == (0, [], 1)
    assert isinstance(journal.facts[fact_count - 1], entries.Unanswered)


class Talking(memory.DictToolbox):
    """Tells how far it is."""

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        for done in (1, 2):
            scope.stream.tool(call.id, f"{done}/2 {call.name}\n")
        return await super().call(call, scope)


@pytest.mark.parametrize("script", [(thinks("I look.", "k8s.get", "k8s.list"), thinks("It is out of memory."))])
async def test_tool_text_stands_where_results_will_and_is_over_once_those_are_committed(
    runtime: ports.Runtime, journal: memory.MemoryJournal, watching: Watching, toolbox: memory.DictToolbox
) -> None:
    talking = Talking(toolbox.answers)
    await investigation.run(
        runtime=replace(runtime, open_stream=watching.open_stream, toolbox=lambda *_: talking), journal=journal
    )
    _, (call, partials, fact_count), *_ = watching.over
    assert (call.number, [(partial.type, partial.text) for partial in partials]) == (
        0,
        [("tool_result", f"1/2 {name}\n2/2 {name}\n") for name in ("k8s.get", "k8s.list")],
    )
    contents = {event.id: event.content for event in timeline.fold(logged(journal)[:fact_count])}
    assert [contents[partial.event] for partial in partials] == ["CrashLoopBackOff", "web-0"]


class Hanging:
    """Says something, and no more."""

    async def ask(self, _: ports.Request, scope: ports.Scope) -> ports.Answer:
        scope.stream.text("It is")
        await asyncio.Event().wait()
        raise AssertionError


async def test_cancelled_turn_ends_its_stream_on_cancellation(
    runtime: ports.Runtime, journal: memory.MemoryJournal, watching: Watching
) -> None:
    cut_off = replace(runtime, open_stream=watching.open_stream, model=lambda _: Hanging())
    task = asyncio.create_task(investigation.run(runtime=cut_off, journal=journal))
    await watching.received.wait()
    assert watching.over == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ((call, (partial,), _),) = watching.over
    assert (call, partial.text) == (watching.turns[0], "It is")


async def test_a_question_and_a_summary_say_what_they_are(snapshot: record.Snapshot, runtime: ports.Runtime) -> None:
    spec = snapshot.chain.model_copy(update={"executive_summary": None})
    journal = memory.MemoryJournal(replace(snapshot, chain=spec))
    watching = Watching(journal)
    watched = replace(runtime, open_stream=watching.open_stream)
    await investigation.run(runtime=watched, journal=journal)
    await journal.commit(entries.RunStarted(run=1, question="Why?"))
    await chat.run(runtime=watched, journal=journal, run=1)
    kinds = dict.fromkeys((call.run, call.stage, call.kind) for call in watching.turns)
    assert list(kinds) == [
        (0, "data-collection", "agent"),
        (0, "analysis", "agent"),
        (0, "", "summary"),
        (1, "", "chat"),
    ]
    summary = [partial for call, partials, _ in watching.over if call.kind == "summary" for partial in partials]
    assert [partial.type for partial in summary] == ["executive_summary"]
