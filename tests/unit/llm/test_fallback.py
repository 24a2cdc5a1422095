"""Fallbacks: a provider that brings no answer is left for the next, in order and for good, even after a takeover."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import executions
from support.executions import ID, says
from tarsy import failpoints
from tarsy.agent import context, dialects, loop, templates
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import investigation
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record
from tarsy.transcript.kinds import registry

NAMES = ("first", "second", "third")
LIMIT = 4
TOOLS = ("k8s.get", "k8s.restart")
DEAD = messages.Failure(kind="fatal", text="401: the key", code="401")
OVERFLOW = messages.Failure(kind="fatal", text="too long", code=messages.CONTEXT_OVERFLOW)
SLOW = messages.Failure(kind="timeout", text="nothing within 120 s")
MALFORMED = messages.Failure(kind="rejected", text="a malformed call")
USED_UP = messages.Failure(kind="fatal", text="no retries are left", code=messages.RETRIES)
EMPTY = messages.Message(role="assistant", text=" \n")

Said = messages.Message | messages.Failure


def asks(name: str = "k8s.get", *, state: str = "") -> messages.Message:
    provider_state = messages.ProviderState(provider="first", data=[state]) if state else None
    return replace(executions.asks(name), provider_state=provider_state)


class DiesError(Exception):
    """The process ends while it waits for an answer."""


@dataclass
class Providers:
    """One script for each provider, by how often it was asked; past its end it concludes, with its name."""

    scripts: dict[str, Sequence[Said]]
    asked: list[str] = field(default_factory=list)
    requests: list[ports.Request] = field(default_factory=list)
    scopes: list[ports.Scope] = field(default_factory=list)

    def __call__(self, name: str) -> ports.Model:
        return _Scripted(self, name)


@dataclass
class _Scripted:
    providers: Providers
    name: str

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        await scope.ensure_lease()
        script, call_number = self.providers.scripts.get(self.name, ()), self.providers.asked.count(self.name)
        self.providers.asked.append(self.name)
        self.providers.requests.append(request)
        self.providers.scopes.append(scope)
        answer = script[call_number] if call_number < len(script) else says(f"{self.name} knows.")
        call = entries.ModelCall(provider=self.name, model="m", seconds=0.0, retries=1)
        if isinstance(answer, messages.Failure):
            raise ports.ModelError(answer.text, kind=answer.kind, code=answer.code, call=call)
        return ports.Answer(message=answer, call=call)


def begun(
    snapshot: record.Snapshot,
    toolbox: memory.DictToolbox,
    *,
    fallbacks: Sequence[str] = NAMES[1:],
    strategy: chains.IterationStrategy = "native-thinking",
    tools: bool = True,
) -> memory.MemoryJournal:
    """One execution has begun and nothing was said yet."""
    started = executions.started(
        toolbox,
        stage="data-collection",
        native=resolve.NativeTools(offered=("google_search",)),
        fallbacks=(
            *(resolve.Fallback(provider=name) for name in fallbacks[:1]),
            *(resolve.Fallback(provider=n, native=resolve.NativeTools(offered=("web_search",))) for n in fallbacks[1:]),
        ),
        strategy=strategy,
        max_iterations=LIMIT,
    )
    if not tools:
        started = replace(started, tools=())
    return memory.MemoryJournal(snapshot, entries.StageStarted(stage="data-collection", clock=0.0), started)


@pytest.fixture
def toolbox() -> memory.DictToolbox:
    return memory.DictToolbox(dict.fromkeys(TOOLS, "CrashLoopBackOff"), writing=["k8s.restart"])


@pytest.fixture
def has_tools() -> bool:
    return False


@pytest.fixture
def journal(snapshot: record.Snapshot, toolbox: memory.DictToolbox, *, has_tools: bool) -> memory.MemoryJournal:
    return begun(snapshot, toolbox, tools=has_tools)


async def run(
    journal: ports.Journal, providers: Providers, toolbox: ports.Toolbox, **more: object
) -> entries.ExecutionEnded:
    """Run the execution to its end."""
    execution = journal.record.executions[ID]
    await loop.Loop(
        execution=execution,
        model=providers,
        toolbox=toolbox,
        journal=journal,
        ends_with=lambda _: (),
        **more,  # type: ignore[arg-type]
    ).run()
    assert execution.ended
    return execution.ended


def fallen(journal: memory.MemoryJournal) -> list[entries.FellBack]:
    return [fact for fact in journal.facts if isinstance(fact, entries.FellBack)]


LEFT: dict[str, tuple[Sequence[Said], str, str]] = {
    "it is dead": ([DEAD], "fatal", "401: the key"),
    "its model is too small": ([OVERFLOW], "fatal", "too long"),
    "it is silent, once": ([SLOW], "timeout", "nothing within 120 s"),
    "it is silent after something else": ([MALFORMED, SLOW], "timeout", "nothing within 120 s"),
    "it gives no answer three times": (
        [MALFORMED, MALFORMED, MALFORMED],
        "rejected",
        "3 rejected answers in a row: a malformed call",
    ),
    "it gives empty answers": (
        [EMPTY, MALFORMED, EMPTY],
        "rejected",
        "3 rejected answers in a row: the model gave an empty answer",
    ),
    "it dies later": ([asks(), asks(), DEAD], "fatal", "401: the key"),
    "it never concludes": (
        [*(asks() for _ in range(LIMIT)), asks(), asks()],
        "rejected",
        f"no conclusion after {LIMIT + 2} model calls: the model gave tool calls instead of a conclusion",
    ),
}


@pytest.mark.parametrize(("script", "kind", "text"), LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("repeated", [False, True], ids=["one is dead", "two are"])
async def test_a_provider_that_brings_no_answer_is_left_for_the_next(
    snapshot: record.Snapshot,
    toolbox: memory.DictToolbox,
    script: Sequence[Said],
    kind: messages.FailureKind,
    text: str,
    repeated: bool,
) -> None:
    journal = begun(snapshot, toolbox)
    providers = Providers({"first": script, **({"second": [DEAD]} if repeated else {})})
    ended = await run(journal, providers, toolbox)
    assert ended.outcome == "Completed"
    last = NAMES[1 + repeated]
    assert journal.record.executions[ID].analysis == f"{last} knows."
    left = fallen(journal)
    assert [(fallback.call.provider, fallback.provider) for fallback in left] == list(itertools.pairwise(NAMES))[
        : 1 + repeated
    ]
    assert (left[0].failure.kind, left[0].failure.text) == (kind, text)
    assert providers.asked.count("first") == len(script)
    assert [name for name, _ in itertools.groupby(providers.asked)] == list(NAMES[: 2 + repeated])


KEPT: dict[str, tuple[Sequence[Said], str]] = {
    "the investigation may repeat no more": ([USED_UP], "no retries are left"),
    "nor when something else was before": ([MALFORMED, MALFORMED, USED_UP], "no retries are left"),
}


@pytest.mark.parametrize(("script", "error"), KEPT.values(), ids=KEPT)
async def test_error_that_is_not_the_providers_causes_no_fallback(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, script: Sequence[Said], error: str
) -> None:
    providers = Providers({"first": script})
    ended = await run(journal, providers, toolbox)
    assert (ended.outcome, ended.error, fallen(journal)) == ("Failed", error, [])
    assert providers.asked == ["first"] * len(script)


@pytest.mark.parametrize("script", [[MALFORMED, MALFORMED], [asks("k8s.delete"), MALFORMED, says("")]])
async def test_error_that_a_retry_resolves_causes_no_fallback(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox, script: Sequence[Said]
) -> None:
    providers = Providers({"first": script})
    await run(journal, providers, toolbox)
    assert (set(providers.asked), fallen(journal)) == ({"first"}, [])


async def test_last_fallback_provider_fails_like_a_provider_without_fallbacks(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    providers = Providers({"first": [DEAD], "second": [SLOW], "third": [SLOW, SLOW]})
    ended = await run(journal, providers, toolbox)
    error = "two timeouts in a row: nothing within 120 s; before that, nothing within 120 s; before that, 401: the key"
    assert (ended.outcome, ended.error) == ("Failed", error)
    assert providers.asked == ["first", "second", "third", "third"]
    assert [scope.has_fallback for scope in providers.scopes] == [True, True, False, False]


async def test_fallback_provider_gets_same_request_with_its_own_native_tools(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    journal = begun(snapshot, toolbox)
    providers = Providers({"first": [asks(state="signed"), DEAD], "second": [DEAD]})
    await run(journal, providers, toolbox)
    _, *same = providers.requests
    assert len({request.messages for request in map(hashable, same)}) == 1
    assert [request.tools for request in same] == [tuple(toolbox.specs)] * 3
    assert [request.native_tools for request in same] == [("google_search",), (), ("web_search",)]


def hashable(request: ports.Request) -> ports.Request:
    """Without what is not: states and parameters."""
    return replace(request, messages=tuple(replace(m, provider_state=None) for m in request.messages), tools=())


async def test_notes_for_the_first_provider_are_repeated_for_the_next_and_reported_once(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox
) -> None:
    journal = begun(snapshot, toolbox)
    providers = Providers({"first": [*[asks()] * LIMIT, DEAD]})
    ended = await run(journal, providers, toolbox)
    conclude = messages.Message(role="user", text=templates.fill("conclude-native", why=templates.text("iterations")))
    failed, again = providers.requests[-2:]
    assert failed.messages == again.messages
    assert again.messages[-1] == conclude
    assert (again.tools, again.native_tools) == ((), ())
    assert messages.conversation(journal.record.executions[ID].log).count(conclude) == 1
    assert ended.outcome == "Completed"


@pytest.mark.parametrize("strategy", ["react", "react-stage"])
async def test_provider_with_three_unreadable_answers_is_left(
    snapshot: record.Snapshot, toolbox: memory.DictToolbox, strategy: chains.IterationStrategy
) -> None:
    journal = begun(snapshot, toolbox, strategy=strategy, tools=False)
    words = says("I do not know this dialect.")
    providers = Providers({"first": [words] * 3, "second": [words, says("Final Answer: it is out of memory")]})
    ended = await run(journal, providers, toolbox)
    assert ended.outcome == "Completed"
    (left,) = fallen(journal)
    assert left.failure.kind == "rejected"
    assert left.failure.text.startswith("3 answers in a row that cannot be read: ")
    assert providers.requests[2].messages == providers.requests[3].messages
    assert journal.record.executions[ID].analysis == "it is out of memory"


async def test_fallback_uses_no_turn(journal: memory.MemoryJournal, toolbox: memory.DictToolbox) -> None:
    providers = Providers({"first": [MALFORMED, DEAD], "second": [DEAD]})
    await run(journal, providers, toolbox)
    turns = [
        (type(fact).__name__, fact.turn)
        for fact in journal.facts
        if isinstance(fact, entries.Answered | entries.Unanswered | entries.FellBack)
    ]
    assert turns == [("Unanswered", 0), ("FellBack", 1), ("FellBack", 1), ("Answered", 1)]


async def test_a_lease_that_is_lost_leaves_no_provider(
    journal: memory.MemoryJournal, toolbox: memory.DictToolbox
) -> None:
    journal.lose_lease()
    before = list(journal.facts)
    with pytest.raises(ports.LeaseLostError):
        await run(journal, Providers({"first": [DEAD]}), toolbox)
    assert journal.facts == before


SCRIPTS: dict[str, Sequence[Said]] = {
    "first": [asks("k8s.restart", state="signed"), MALFORMED, DEAD],
    "second": [asks(), SLOW],
    "third": [MALFORMED, says("third knows.")],
}
COMMITS = 9
"""An answer, its write, a failure, a fallback, an answer, its read, a fallback, a failure, and the conclusion."""
CRASHES = [(at, when) for at in range(1, COMMITS + 1) for when in ("before", "after")]


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("has_tools", [True])
async def test_a_crash_at_any_commit_goes_on_with_the_provider_that_was_asked_then(
    snapshot: record.Snapshot,
    journal: memory.MemoryJournal,
    doomed_journal: ports.Journal,
    toolbox: memory.DictToolbox,
    crash: tuple[int, str],
) -> None:
    faultless = begun(snapshot, toolbox)
    await run(faultless, Providers(SCRIPTS), toolbox)
    first = Providers(SCRIPTS)
    with pytest.raises(failpoints.TriggeredError):
        await run(doomed_journal, first, toolbox)
    fallen_before = [fact.provider for fact in fallen(journal)]
    again = journal.taken_over()
    owed = {name: script[committed(journal, name) :] for name, script in SCRIPTS.items()}
    second = Providers(owed)
    if again.record.executions[ID].ended:
        assert crash == (COMMITS, "after")
        return
    await run(again, second, toolbox)
    assert second.asked[:1] in ([["first", *fallen_before][-1]], [])
    assert [fact.provider for fact in fallen(again)] == ["second", "third"]
    assert [name for name, _ in itertools.groupby(first.asked + second.asked)] == list(NAMES)
    assert [type(fact) for fact in again.facts] == [type(fact) for fact in faultless.facts]
    assert again.record.executions[ID].since == faultless.record.executions[ID].since == 3


def committed(journal: memory.MemoryJournal, name: str) -> int:
    """How many calls of a provider are in the log."""
    return sum(call.provider == name for _, call in calls_of(journal))


def calls_of(journal: memory.MemoryJournal) -> list[tuple[entries.Entry, entries.ModelCall]]:
    """The calls of the log, with their entries; what was too large is one too, where the provider said so."""
    kinds = (entries.Answered, entries.Unanswered, entries.FellBack, entries.ContextCompacted)
    return [(fact, fact.call) for fact in journal.facts if isinstance(fact, kinds) and fact.call]


DIES = object()
OUTCOMES = [DEAD, OVERFLOW, SLOW, MALFORMED, USED_UP, EMPTY, asks(), asks("k8s.restart"), asks("no tool"), says("so")]


@settings(deadline=None)
@given(
    scripts=st.tuples(*[st.lists(st.sampled_from([*OUTCOMES, DIES]), max_size=9)] * 3),
    fallbacks=st.sampled_from([(), ("second",), ("second", "third"), ("third",)]),
    tools=st.booleans(),
)
def test_providers_are_asked_in_order_and_the_call_ends_with_any_answers(
    scripts: tuple[list[Said | object], ...], fallbacks: tuple[str, ...], tools: bool
) -> None:
    """Processes that die meanwhile change nothing: who takes over asks the same provider the same."""
    toolbox = memory.DictToolbox(dict.fromkeys(TOOLS, "CrashLoopBackOff"), writing=["k8s.restart"])
    snapshot = record.Snapshot(
        id="u", namespace="n", name="n", alert_type="A", alert_data="", chain_name="c", chain=CHAIN
    )
    journal = begun(snapshot, toolbox, fallbacks=fallbacks, tools=tools)
    left = dict(zip(NAMES, map(list, scripts), strict=True))
    asked: list[tuple[str, ports.Request, int]] = []

    @dataclass
    class Dying:
        name: str

        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            answer = left[self.name].pop(0) if left[self.name] else says("so")
            if answer is DIES:
                raise DiesError
            asked.append((self.name, request, len(journal.facts)))
            assert isinstance(answer, Said)
            return await _Scripted(Providers({self.name: [answer]}), self.name).ask(request, scope)

    async def live() -> None:
        await loop.Loop(
            execution=journal.record.executions[ID],
            model=Dying,
            toolbox=toolbox,
            journal=journal,
            ends_with=lambda _: (),
        ).run()

    for _ in range(sum(map(len, scripts)) + 1):
        try:
            asyncio.run(live())
        except DiesError:
            journal = journal.taken_over()
    ended = journal.record.executions[ID].ended
    assert ended
    if ended.outcome == "Completed":
        assert journal.record.executions[ID].analysis.strip()

    sources = ["first", *fallbacks]
    in_order = [name for name, _ in itertools.groupby(name for name, _, _ in asked)]
    assert in_order == sources[: len(in_order)]
    assert [fact.provider for fact in fallen(journal)] == sources[1 : 1 + len(fallen(journal))]
    calls = calls_of(journal)
    assert len(calls) == len(asked), "what was answered is in the log, once"
    for (fact, call), (name, request, fact_count) in zip(calls, asked, strict=True):
        assert call.provider == name
        before = registry.fold(snapshot, journal.facts[:fact_count]).executions[ID]
        added: Sequence[messages.Message] = ()
        if isinstance(fact, entries.Answered | entries.Unanswered):
            added = fact.messages[:-1] if isinstance(fact, entries.Answered) else fact.messages
        conversation = (*messages.conversation(before.log), *added)
        expected = dialects.NATIVE.render(context.build(before, conversation, ()).visible())
        if isinstance(fact, entries.Answered | entries.Unanswered):
            assert request.messages == expected
        else:  # what it was told beside is told with the next request
            assert request.messages[: len(expected) - 1] == expected[:-1]


CHAIN = chains.Spec(alert_types=["A"], stages=[chains.Stage(name="data-collection", agent="KubernetesAgent")])


async def test_unusable_provider_is_no_fallback(
    snapshot: record.Snapshot, platform: platforms.Platform, toolbox: memory.DictToolbox
) -> None:
    changed_platform = platform.model_copy(
        update={"defaults": platform.defaults.model_copy(update={"fallback_providers": ["second", "third"]})}
    )
    (first,) = {platform.defaults.llm_provider} - {None}
    settings = platform.llm_providers[str(first)]
    changed_platform = changed_platform.model_copy(
        update={"llm_providers": {**platform.llm_providers, "second": settings, "third": settings}}
    )
    journal = memory.MemoryJournal(snapshot)
    answering = memory.ScriptedModel(says("web-0 exists"))
    runtime = ports.Runtime(
        platform=changed_platform,
        model=lambda _: answering,
        toolbox=lambda *_: toolbox,
        is_usable=lambda name: name != "second",
    )
    await investigation.run(runtime=runtime, journal=journal)
    started = [execution.started.agent for execution in journal.record.executions.values()]
    assert started
    assert {tuple(fallback.provider for fallback in agent.fallbacks) for agent in started if agent} == {("third",)}
