"""The vocabulary of the unit tests: one alert, its journal, model, tools and runtime, all from `transcript.memory`.

`script`, `limit` and `crash` are made to be replaced, by a test's parameters or by a module's own fixture.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_socket
from tarsy import failpoints
from tarsy.agent import prompts
from tarsy.config.model import budgets, platforms
from tarsy.resources import chains
from tarsy.transcript import entries, memory, messages, ports, record

Script = tuple[messages.Message | messages.Failure, ...]
Crash = tuple[int, str]
"""At which commit, and whether "before" or "after" it is kept."""

_FOLLOWERS = {
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"tool", "user"},
    "tool": {"tool", "assistant", "user"},
}


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a measured figure at the end of the run, also of one that passes."""
    return functools.partial(record_property, "figure")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    figures = [value for report in reports for name, value in report.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("figures")
        terminalreporter.write("".join(f"{figure}\n" for figure in figures))


@pytest.fixture(autouse=True)
def no_sockets() -> Iterator[None]:
    """Nothing here reaches a network; Unix sockets stay, because an event loop makes a pair of them."""
    pytest_socket.disable_socket(allow_unix_socket=True)
    yield
    pytest_socket.enable_socket()


@pytest.fixture(autouse=True)
def one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers of all prompts carry one word, so that what two runs were told can be compared."""
    monkeypatch.setattr(prompts, "new_word", lambda: "0123abcd")


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompts are of one second, for the same reason."""
    monkeypatch.setattr(prompts, "_time_text", lambda _: "2026-11-21 20:00:00 UTC")


@pytest.fixture(scope="session")
def captures() -> Path:
    """Recorded real traffic."""
    return Path(__file__).resolve().parents[1] / "captures"


@pytest.fixture
def snapshot() -> record.Snapshot:
    """An alert, and a chain of two stages, each with a provider of its own, and without a summary at the end."""
    stages = [
        {"name": "data-collection", "agent": "KubernetesAgent", "llmProvider": "first"},
        {"name": "analysis", "agent": "KubernetesAgent", "llmProvider": "second"},
    ]
    spec = {"alertTypes": ["KubePodCrashLooping"], "stages": stages, "executiveSummary": {"enabled": False}}
    return record.Snapshot(
        id="7d1c0b2e-0000-4000-8000-000000000001",
        namespace="tarsy",
        name="web-crash",
        alert_type="KubePodCrashLooping",
        alert_data="pod web-0 in namespace shop restarts every minute",
        chain_name="pod-crash",
        chain=chains.Spec.model_validate(spec),
    )


@pytest.fixture
def platform() -> platforms.Platform:
    """Two providers, one MCP server, one agent, and what follows on its work."""
    google = {"type": "google", "model": "gemini-2.5-flash"}
    return platforms.Platform.model_validate(
        {
            "defaults": {"llm_provider": "first"},
            "llm_providers": {"first": google, "second": google},
            "mcp_servers": {"k8s": {"transport": {"type": "stdio", "command": "kubernetes-mcp-server"}}},
            "agents": {
                "KubernetesAgent": {"mcp_servers": ["k8s"], "custom_instructions": "Be brief."},
                "SynthesisAgent": {"iteration_strategy": "synthesis", "custom_instructions": "Weigh it."},
                "ChatAgent": {},
            },
        }
    )


@pytest.fixture
def journal(snapshot: record.Snapshot) -> memory.MemoryJournal:
    """The investigation's journal, empty."""
    return memory.MemoryJournal(snapshot)


@pytest.fixture
def toolbox() -> memory.DictToolbox:
    """Two tools that read and one that writes."""
    answers = {"k8s.get": "CrashLoopBackOff", "k8s.list": "web-0", "k8s.restart": "restarted"}
    return memory.DictToolbox(answers, writing=["k8s.restart"])


@pytest.fixture
def script() -> Script:
    """Answers of the model: a question with three calls, one with one, and its conclusion."""

    def asks(text: str, *names: str) -> messages.Message:
        calls = tuple(messages.ToolCall(id="", name=name, arguments='{"name": "web-0"}') for name in names)
        state = messages.ProviderState(provider="first", data=[{"signature": text}])
        return messages.Message(role="assistant", text=text, calls=calls, provider_state=state)

    return (
        asks("I look at all of it.", "k8s.get", "k8s.restart", "k8s.list"),
        asks("", "k8s.get"),
        messages.Message(role="assistant", text="It is out of memory."),
    )


@pytest.fixture
def model(script: Script) -> Iterator[memory.ScriptedModel]:
    """A model that follows `script`; whatever a test does, it must always see user and assistant take turns."""
    scripted = memory.ScriptedModel(*script)
    yield scripted
    for request in scripted.requests:
        roles = [message.role for message in request.messages]
        broken = [pair for pair in itertools.pairwise(roles) if pair[1] not in _FOLLOWERS[pair[0]]]
        assert not broken, f"{roles}: {broken}"
        assert roles[-1] != "assistant", roles


@pytest.fixture
def runtime(platform: platforms.Platform, model: memory.ScriptedModel, toolbox: memory.DictToolbox) -> ports.Runtime:
    """Runtime that the engine works with."""
    return ports.Runtime(platform=platform, model=lambda _: model, toolbox=lambda *_: toolbox)


class _Doomed:
    """A journal whose process ends at a commit: from then on nothing is sent and nothing is kept."""

    def __init__(self, journal: memory.MemoryJournal, crash: Crash) -> None:
        self._kept = journal
        self._at, self._when = crash
        self._commits = 0
        self._dead = False

    @property
    def record(self) -> record.Record:
        return self._kept.record

    @property
    def joined(self) -> int:
        return self._kept.joined

    async def joined_alerts(self, after: int) -> ports.JoinedAlerts | None:
        await self._live()
        return await self._kept.joined_alerts(after)

    async def former(self, within: int) -> ports.Former | None:
        await self._live()
        return await self._kept.former(within)

    @property
    def waits(self) -> dict[str, ports.Wait]:
        return self._kept.waits

    def clock(self) -> float:
        return self._kept.clock()

    def suspended(self) -> bool:
        return self._kept.suspended()

    async def reserve(self, charges: Sequence[budgets.Charge], *, ended: Sequence[str] = ()) -> ports.Charged:
        await self._live()
        return await self._kept.reserve(charges, ended=ended)

    async def whole(self, execution: str, call_id: str) -> str | None:
        await self._live()
        return await self._kept.whole(execution, call_id)

    async def settle(self) -> None:
        await self._live()
        await self._kept.settle()

    async def ensure_lease(self) -> None:
        await self._live()
        await self._kept.ensure_lease()

    async def commit(self, *added: entries.Entry) -> None:
        await self._live()
        self._commits += 1
        self._end_at("before")
        await self._kept.commit(*added)
        self._end_at("after")

    async def _live(self) -> None:
        if self._dead:
            await asyncio.Event().wait()

    def _end_at(self, when: str) -> None:
        if (self._commits, when) == (self._at, self._when):
            self._dead = True
            raise failpoints.TriggeredError


@pytest.fixture
def doomed_journal(journal: memory.MemoryJournal, crash: Crash) -> ports.Journal:
    """A first life: keeps its facts in `journal` and raises TriggeredError at the commit that `crash` names."""
    return _Doomed(journal, crash)
