"""What each strategy, hand-over and limit costs in evidence and tokens, on the recorded worlds of our own scenarios.

The outputs are those of the real kubernetes-mcp-server, masked as an agent gets them. The engine and the agents are the
real ones, with a journal in memory. The model is a script: it makes the calls of the evidence, and says nothing of what
it saw, so a later reader has only what the harness hands over. It is counted whether each output reaches its reader
whole, in part with the lines that matter, or by a search of the reader's (result.search); or whether it is lost.

Run it with `python -m bench.evidence`. It counts, and measures no time; docs/quality.md has its tables.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from tarsy.agent import escaping
from tarsy.config.model import platforms
from tarsy.engine import chat, investigation
from tarsy.evaluation import checks, scenarios, world_platform, world_server, worlds
from tarsy.process import agent_tools
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record, token_estimate
from tarsy_dev import tools

State = Literal["whole", "in part", "found", "lost"]
"""How a reader gets an output: whole; in part, with the lines that matter; by a search; or not at all."""
STATES: tuple[State, ...] = ("whole", "in part", "found", "lost")
GOLDEN_MAX = 80
"""Characters of a golden line that a reader has to see."""
CALL = entries.ModelCall(provider="scripted", model="scripted", seconds=0.0)
SERVER = scenarios.SERVER


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a call that shows a piece of evidence."""

    scenario: str
    tool: str
    arguments: str
    text: str
    """Masked and whole."""
    golden: tuple[str, ...]
    """The parts of its lines that are the evidence."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A way from an output to a reader."""

    name: str
    stages: Sequence[Mapping[str, Any]]
    reader: str = "read"
    """The provider of the reader."""
    question: bool = False
    """Whether a question is asked after the end; then the reader answers it."""
    summarization: Mapping[str, Any] = field(default_factory=dict)
    provider: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all providers."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one route costs, over all scenarios."""

    route: str
    states: Mapping[State, int]
    tokens: int
    """Estimated tokens of all requests of an investigation, in the mean."""
    lost: Sequence[Output]


def _stage(name: str, **spec: Any) -> dict[str, Any]:
    return {"name": name, "agent": "KubernetesAgent", **spec}


COLLECTS = _stage("collect", llmProvider="collect-0")
READS = _stage("conclude", llmProvider="read")
BESIDE = _stage(
    "collect",
    agents=[{"name": "KubernetesAgent", "llmProvider": f"collect-{number}"} for number in (0, 1)],
)
del BESIDE["agent"]
ONE: dict[str, Any] = {"stages": (COLLECTS,), "reader": "collect-0"}
ROUTES = (
    Route(name="one stage", **ONE),
    Route(name="one stage, `mode: off`", summarization={"mode": "off"}, **ONE),
    Route(name="one stage, `mode: summary`", summarization={"mode": "summary", "llm_provider": "sums"}, **ONE),
    Route(name="one stage, `max_tool_result_tokens: 1000`", provider={"max_tool_result_tokens": 1_000}, **ONE),
    Route(name="one stage, `context_tokens: 8000`", provider={"context_tokens": 8_000}, **ONE),
    *(
        Route(name=f"two stages, the second `{strategy}`", stages=(COLLECTS, READS | {"iterationStrategy": strategy}))
        for strategy in ("native-thinking", "react", "react-stage", "react-final-analysis")
    ),
    *(
        Route(
            name=f"agents side by side, `{strategy}`",
            stages=(BESIDE | {"synthesis": {"llmProvider": "read", "iterationStrategy": strategy}},),
        )
        for strategy in ("synthesis", "synthesis-native-thinking")
    ),
    Route(
        name="agents side by side, then another stage", stages=(BESIDE | {"synthesis": {"llmProvider": "joins"}}, READS)
    ),
    Route(
        name="two stages, the second `react-final-analysis`, `mode: off`",
        stages=(COLLECTS, READS | {"iterationStrategy": "react-final-analysis"}),
        summarization={"mode": "off"},
    ),
    Route(name="a question after the end", stages=(COLLECTS,), question=True),
)


async def outputs(found: Sequence[scenarios.Scenario]) -> list[Output]:
    """Return the outputs of the evidence of scenarios, as their calls give them."""
    return [output for scenario in found for output in await _outputs(scenario)]


async def _outputs(scenario: scenarios.Scenario) -> list[Output]:
    world = worlds.load(scenario.world)
    with tempfile.TemporaryDirectory(prefix="tarsy-evidence-") as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        content = world_platform.for_world(None, kubeconfig=kubeconfig, command=str(tools.kubernetes_mcp_server()))
        platform = platforms.Platform.model_validate(content)
        async with world_server.serve(world, kubeconfig=kubeconfig), agent_tools.calls_to(platform, SERVER) as call:
            return [
                Output(
                    scenario=scenario.name,
                    tool=f"{SERVER}.{evidence.tool}",
                    arguments=json.dumps(arguments := checks.resolved(evidence.arguments, world)),
                    text=(text := await call(evidence.tool, arguments)),
                    golden=tuple(golden(evidence.matches, text)),
                )
                for evidence in scenario.document.evidence
            ]


def golden(pattern: str, text: str) -> Iterator[str]:
    """Yield the parts of lines that a scenario's pattern matches first; raises ValueError if there is none."""
    match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise ValueError(f"no match of {pattern!r}")
    for part in match[0].split("\n"):
        if shown := part.strip()[:GOLDEN_MAX]:
            yield shown


class _Tools:
    """A toolbox with the outputs of one scenario."""

    problems: Sequence[str] = ()
    away: Sequence[str] = ()

    def __init__(self, known: Sequence[Output]) -> None:
        self._texts = {(output.tool, output.arguments): output.text for output in known}
        self.specs = tuple(messages.ToolSpec(name=name, idempotent=True) for name in {o.tool: 0 for o in known})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        await scope.ensure_lease()
        return ports.ToolOutput(text=self._texts[call.name, call.arguments])


class _Player:
    """A model that makes the calls of some outputs, or none, and then searches for the golden lines that it lacks."""

    def __init__(self, calls: Sequence[Output], sought: Mapping[str, Output]) -> None:
        self.requests: list[ports.Request] = []
        self._calls = calls
        self._sought = sought
        """The outputs that it has to see, by the references of their calls."""
        self._searched: set[str] = set()

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        await scope.ensure_lease()
        self.requests.append(request)
        is_first = len(self.requests) == 1
        if self._calls and is_first:
            calls = [messages.ToolCall(id="", name=each.tool, arguments=each.arguments) for each in self._calls]
            return _answer("I look.", *calls)
        text = text_of(self.requests)
        is_react = "Action Input:" in request.messages[0].text
        if not any(tool.name == "result.search" for tool in request.tools) and not (
            is_react and "result.search" in request.messages[0].text
        ):
            return _answer("Final Answer: I looked.")
        for reference, output in self._sought.items():
            for line in output.golden:
                if not is_seen(line, text) and line not in self._searched and _is_named(reference, text):
                    self._searched.add(line)
                    arguments = json.dumps({"call": reference, "pattern": rf"\Q{line}\E", "context": 0})
                    if is_react:
                        return _answer(f"Thought: I search.\nAction: result.search\nAction Input: {arguments}")
                    return _answer("I search.", messages.ToolCall(id="", name="result.search", arguments=arguments))
        return _answer("Final Answer: I looked.")


def _answer(text: str, *calls: messages.ToolCall) -> ports.Answer:
    return ports.Answer(message=messages.Message(role="assistant", text=text, calls=calls), call=CALL)


def _is_named(reference: str, text: str) -> bool:
    """Return whether a reader can know the reference of a call: it is there, or it is a call of its own."""
    return reference in text or "/" not in reference


def text_of(requests: Sequence[ports.Request]) -> str:
    """Return all text that requests have."""
    return "\n".join(dict.fromkeys(message.text for request in requests for message in request.messages))


def is_seen(text: str, shown: str) -> bool:
    """Return whether `shown` has a text, in clear or as a later prompt escapes it."""
    return text in shown or escaping.escape_comments(escaping.quote_steps(text)) in shown


async def run(route: Route, known: Sequence[Output], alert: str) -> tuple[dict[str, _Player], dict[str, Output]]:
    """Run one scenario; return the models by their providers, and the outputs by the references of their calls."""
    spec = chains.Spec.model_validate(
        {
            "alertTypes": ["any"],
            "stages": list(route.stages),
            "executiveSummary": {"enabled": False},
            "chat": {"llmProvider": "read"},
        }
    )
    snapshot = record.Snapshot(
        id="7d1c0b2e-0000-4000-8000-000000000001",
        namespace="tarsy",
        name="measured",
        alert_type="any",
        alert_data=alert,
        chain_name="measured",
        chain=spec,
    )
    agents = len(spec.stages[0].members)
    parts = [known[number::agents] for number in range(agents)]
    references = {
        f"{_execution(snapshot, index)}/0.{number}": output
        for index, part in enumerate(parts)
        for number, output in enumerate(part)
    }
    players = {f"collect-{index}": _Player(part, references) for index, part in enumerate(parts)}
    players["read"] = _Player((), references)
    players |= {"sums": _Player((), {}), "joins": _Player((), {})}
    model = {"type": "google", "model": "gemini-2.5-flash", **route.provider}
    platform = platforms.Platform.model_validate(
        {
            "defaults": {"llm_provider": "read"},
            "llm_providers": dict.fromkeys(players, model),
            "mcp_servers": {
                SERVER: {"transport": {"type": "stdio", "command": "none"}, "summarization": dict(route.summarization)}
            },
            "agents": {
                "KubernetesAgent": {"mcp_servers": [SERVER]},
                "SynthesisAgent": {"iteration_strategy": "synthesis"},
                "ChatAgent": {},
            },
        }
    )
    runtime = ports.Runtime(platform=platform, model=players.__getitem__, toolbox=lambda *_: _Tools(known))
    journal = memory.MemoryJournal(snapshot)
    await investigation.run(runtime=runtime, journal=journal)
    if route.question:
        await journal.commit(entries.RunStarted(run=1, question="What did you see?"))
        await chat.run(runtime=runtime, journal=journal, run=1)
    return players, references


def _execution(snapshot: record.Snapshot, index: int) -> str:
    stage = snapshot.chain.stages[0].name
    return record.execution_id(snapshot.id, run=0, stage=stage, kind="agent", index=index)


def state(output: Output, requests: Sequence[ports.Request]) -> State:
    """Return how a reader with these requests gets an output."""
    handed = text_of([request for request in requests if not _has_searched(request)])
    if is_seen(output.text, handed):
        return "whole"
    if all(is_seen(line, handed) for line in output.golden):
        return "in part"
    shown = text_of(requests)
    return "found" if all(is_seen(line, shown) for line in output.golden) else "lost"


def _has_searched(request: ports.Request) -> bool:
    return any("result.search" in (message.tool_name, *(c.name for c in message.calls)) or
               message.text.startswith("Thought: I search.") for message in request.messages)  # fmt: skip


async def measure(route: Route, known: Sequence[scenarios.Scenario], shown: Sequence[Output]) -> Figures:
    """Return the figures of one route."""
    states: Counter[State] = Counter()
    tokens, lost = 0, []
    for scenario in known:
        own = [output for output in shown if output.scenario == scenario.name]
        players, _ = await run(route, own, json.dumps(checks.alert_json(scenario)))
        for output in own:
            found = state(output, players[route.reader].requests)
            states[found] += 1
            lost += [output] if found == "lost" else []
        requests = [request for player in players.values() for request in player.requests]
        tokens += sum(map(token_estimate.tokens, requests))
        text = text_of(requests)
        if any(checks.has_secret(text, secret) for secret in scenario.document.secrets):
            raise AssertionError(f"{scenario.name}: a secret reached a model by: {route.name}")
    return Figures(route=route.name, states=states, tokens=tokens // len(known), lost=lost)


def table(figures: Sequence[Figures]) -> str:
    """Return the figures as Markdown."""
    rows = [
        [each.route, *(str(each.states.get(state, 0)) for state in STATES), f"{round(each.tokens, -2):,}"]
        for each in figures
    ]
    head = ["From the call to", "whole", "in part, with its evidence", "found by a search", "lost", "tokens"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


async def _main() -> None:
    known = scenarios.find([tools.ROOT / "scenarios"])
    shown = await outputs(known)
    print(table([await measure(route, known, shown) for route in ROUTES]))


if __name__ == "__main__":
    asyncio.run(_main())
