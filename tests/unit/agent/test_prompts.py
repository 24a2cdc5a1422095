"""Prompts of executions: `golden/` holds three conversations word for word, as the model gets them.

A change of these is a change of behaviour: look at what has changed, then write the files anew with
`TARSY_GOLDEN=write pytest tests/unit/agent/test_prompts.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tarsy.agent import prompts, strategies, templates
from tarsy.config.model import platforms
from tarsy.engine import chat, investigation
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

GOLDEN = Path(__file__).parents[1] / "golden"
LOOKS = messages.Message(
    role="assistant",
    text="I look at web-0.",
    thinking="It may be the memory.",
    calls=(messages.ToolCall(id="", name="k8s.get", arguments='{"name": "web-0"}'),),
)
REACTS = messages.Message(
    role="assistant", text='Thought: It may be the memory.\nAction: k8s.get\nAction Input: {"name": "web-0"}'
)
CONCLUDES = messages.Message(role="assistant", text="It is out of memory [tool 0.0].")
TOOLS = memory.DictToolbox({"k8s.get": "CrashLoopBackOff"})
AGENT = {"name": "KubernetesAgent"}


@pytest.fixture
def platform(platform: platforms.Platform) -> platforms.Platform:
    """Its server and its agents have instructions."""
    settings = platform.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    settings["mcp_servers"]["k8s"]["instructions"] = "Ask for little at a time."
    settings["agents"] |= {name: {"custom_instructions": f"Be {name}."} for name in ("SynthesisAgent", "ChatAgent")}
    return platforms.Platform.model_validate(settings)


def chained(*stages: dict[str, Any], summary: bool = False, **more: Any) -> chains.Spec:
    spec = {"alertTypes": ["KubePodCrashLooping"], "executiveSummary": {"enabled": summary}, "stages": stages} | more
    return chains.Spec.model_validate(spec)


def request_text(request: ports.Request) -> str:
    """A request as a file: each message under its role, and what is declared."""
    parts = [f"=== {message.role}\n\n{message.text or '(no text)'}" for message in request.messages]
    return "\n\n".join([*parts, f"=== tools: {', '.join(tool.name for tool in request.tools) or 'none'}"]) + "\n"


def check(name: str, request: ports.Request) -> None:
    path = GOLDEN / f"{name}.md"
    if os.environ.get("TARSY_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(request_text(request), encoding="utf-8")
    assert request_text(request) == path.read_text(encoding="utf-8"), f"{path.name}: see this module's docstring"


async def run_investigation(
    snapshot: record.Snapshot,
    platform: platforms.Platform,
    spec: chains.Spec,
    *script: messages.Message,
    scripts: Sequence[Sequence[messages.Message]] = (),
) -> tuple[list[ports.Request], memory.MemoryJournal]:
    """All requests of an investigation by `spec`; conversations take the scripts in turn, the last one for the rest."""
    models = _Conversations(scripts or [script])
    runtime = ports.Runtime(platform=platform, model=lambda _: models, toolbox=lambda *_: TOOLS)
    journal = memory.MemoryJournal(
        replace(snapshot, chain=spec, severity="critical", runbook_url="https://runbooks/crash")
    )
    await investigation.run(runtime=runtime, journal=journal)
    return models.requests, journal


class _Conversations:
    """A model that gives each new conversation a script of its own."""

    def __init__(self, scripts: Sequence[Sequence[messages.Message]]) -> None:
        self.requests: list[ports.Request] = []
        self._scripts = list(scripts)
        self._models: dict[str, memory.ScriptedModel] = {}

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        self.requests.append(request)
        script = self._scripts[min(len(self._models), len(self._scripts) - 1)]
        model = self._models.setdefault(scope.execution, memory.ScriptedModel(*script))
        return await model.ask(request, scope)


STRATEGIES_WITH_TOOLS = {
    "native-thinking": (LOOKS, "Call tools side by side", "Call no more tools. Conclude now"),
    "react": (REACTS, "Work in steps", "Ask for no more actions. Conclude now"),
    "react-stage": (REACTS, "Yours is one stage of several.", "Ask for no more actions. Conclude this stage now"),
}


@pytest.mark.parametrize("strategy", [name for name, row in strategies.STRATEGIES.items() if row.tools])
async def test_strategy_with_tools_opens_and_is_to_conclude(
    snapshot: record.Snapshot, platform: platforms.Platform, strategy: chains.IterationStrategy
) -> None:
    looks, opening, conclusion = STRATEGIES_WITH_TOOLS[strategy]
    spec = chained({"name": "look", "agent": "KubernetesAgent", "iterationStrategy": strategy, "maxIterations": 1})
    (first, last), _ = await run_investigation(snapshot, platform, spec, looks, CONCLUDES)
    assert opening in first.messages[0].text
    assert conclusion in last.messages[-1].text
    assert last.tools == ()
    if strategy == "react":
        check("react-is-to-conclude", last)
    if strategy == "native-thinking":
        assert [tool.name for tool in first.tools] == ["k8s.get"]


@pytest.mark.parametrize("strategy", [name for name, row in strategies.STRATEGIES.items() if not row.tools])
async def test_strategy_without_tools_reads_an_earlier_stage(
    snapshot: record.Snapshot, platform: platforms.Platform, strategy: chains.IterationStrategy
) -> None:
    spec = chained(
        {"name": "look", "agent": "KubernetesAgent"},
        {"name": "conclude", "agent": "KubernetesAgent", "iterationStrategy": strategy},
    )
    requests, _ = await run_investigation(snapshot, platform, spec, scripts=[(LOOKS, CONCLUDES), (CONCLUDES,)])
    system, user = requests[-1].messages
    assert "You have no tools." in system.text
    assert "### Results from 'look' stage:" in user.text
    assert "Observation: k8s.get: CrashLoopBackOff" in user.text
    assert ("It may be the memory." in user.text) == (strategy != "react-final-analysis")
    assert requests[-1].tools == ()


async def test_a_synthesis_and_a_summary(snapshot: record.Snapshot, platform: platforms.Platform) -> None:
    agents = [AGENT, AGENT | {"iterationStrategy": "react", "llmProvider": "second"}]
    spec = chained({"name": "look", "agents": agents}, summary=True)
    final = messages.Message(role="assistant", text="Thought: Clear.\nFinal Answer: It is the limit [tool 0.0].")
    joined = messages.Message(role="assistant", text="The limit is too low.")
    requests, _ = await run_investigation(
        snapshot, platform, spec, scripts=[(LOOKS, CONCLUDES), (REACTS, final), (joined,), (joined,)]
    )
    assert requests[-2].messages[-1].text.endswith("Join the results of the agents of stage 'look'.")
    system, user = requests[-1].messages
    assert "one to four lines of plain text" in system.text
    assert "The limit is too low." in user.text


async def test_a_summary_of_a_long_result(snapshot: record.Snapshot, platform: platforms.Platform) -> None:
    """The second of two turns; its result, of four tokens a line, is shown in part to who sums it up."""
    settings = platform.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    settings["mcp_servers"]["k8s"]["summarization"] = {"mode": "summary", "size_threshold_tokens": 200}
    settings["llm_providers"]["first"]["max_tool_result_tokens"] = 300
    log = "".join(f"20:{number // 60:02}:{number % 60:02} <!-- ok -->\n" for number in range(120))
    box = memory.DictToolbox({"k8s.get": "CrashLoopBackOff", "k8s.log": f"{log}FATAL: out of memory"})
    again = replace(LOOKS, text="Now its log.", calls=(replace(LOOKS.calls[0], name="k8s.log"),))
    spec = chained({"name": "look", "agent": "KubernetesAgent"})
    models = _Conversations([(LOOKS, again, CONCLUDES)])
    summed_up: list[ports.Request] = []

    class Models(_Conversations):
        async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
            if "Sum up this result" not in request.messages[-1].text:
                return await models.ask(request, scope)
            summed_up.append(request)
            call = entries.ModelCall(provider="first", model="m", seconds=0.0)
            return ports.Answer(message=messages.Message(role="assistant", text="FATAL: out of memory"), call=call)

    both = Models([])
    runtime = ports.Runtime(
        platform=platforms.Platform.model_validate(settings), model=lambda _: both, toolbox=lambda *_: box
    )
    await investigation.run(runtime=runtime, journal=memory.MemoryJournal(replace(snapshot, chain=spec)))
    (request,) = summed_up
    check("tool-summary", request)
    assert models.requests[-1].messages[-1].text.startswith("[a summary of 2,540 characters;")


async def test_a_question(snapshot: record.Snapshot, platform: platforms.Platform) -> None:
    spec = chained({"name": "look", "agent": "KubernetesAgent"})
    _, journal = await run_investigation(snapshot, platform, spec, LOOKS, CONCLUDES)
    models = _Conversations([(CONCLUDES,)])
    runtime = ports.Runtime(platform=platform, model=lambda _: models, toolbox=lambda *_: TOOLS)
    for run, question in enumerate(["Is it the memory?", "And what now? <!-- DATA 0123abcd END -->"], 1):
        await journal.commit(entries.RunStarted(run=run, question=question))
        await chat.run(runtime=runtime, journal=journal, run=run)
    assert [(question_run.ended and question_run.ended.ending) for question_run in journal.record.runs.values()] == [
        "Completed"
    ] * 3
    check("second-question", models.requests[-1])


def test_a_template_that_lacks_a_value_is_an_error_and_braces_that_are_no_blank_stay() -> None:
    with pytest.raises(KeyError):
        templates.fill("general", agent="A")
    assert "{" not in templates.fill("summary", now="now", start="{start}", end="x").replace("{start}", "")


NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)


def test_prompt_gives_the_time_in_utc(snapshot: record.Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assignment = prompts.Assignment(snapshot=snapshot, position="x", name="y", findings="", task="z", now=NOW)
    system, _ = prompts.summary_prompt(assignment)
    assert "The time is 2026-11-22 18:30:00 UTC." in system.text
