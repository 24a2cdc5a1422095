"""Agents side by side: a model that tells them apart by their names, and commits that are counted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from support.executions import says
from tarsy.transcript import entries, memory, messages, ports, record

STAGE = "data-collection"
NAMES = ("KubernetesAgent-1", "KubernetesAgent-2", "KubernetesAgent-3")
FIRST, SECOND, THIRD = NAMES
SYNTHESIS = "SynthesisAgent"
JOINED = "All three are right."
FATAL = messages.Failure(kind="fatal", text="the key is invalid")
UNKNOWN = (
    f"Chain 'pod-crash' stage '{STAGE}' references unknown agent 'Nobody'. "
    "Available agents: ChatAgent, KubernetesAgent, SynthesisAgent"
)

Script = Sequence[messages.Message | messages.Failure]
Meanwhile = Callable[[str, int], Awaitable[object]]
"""Callback while an agent, by its shown name, waits for the answer of a model call."""


def analysis(name: str) -> str:
    return f"{name} knows."


async def at_once(_name: str, _call_number: int) -> None:
    """Nothing."""


class Crew:
    """A model that knows the agents apart, by the names in their prompts; `meanwhile` is what they wait for.

    The synthesis of their results waits for nothing, unless it is `silent`: these never get an answer.
    """

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.asked: list[tuple[str, int]] = []
        """Agents that were answered, each with the number of its model call."""
        self.requests: list[ports.Request] = []
        self.meanwhile: Meanwhile = at_once
        self.silent: set[str] = set()
        all_scripts = {SYNTHESIS: (says(JOINED),), **{name: (says(analysis(name)),) for name in NAMES}, **scripts}
        self._models = {name: memory.ScriptedModel(*script) for name, script in all_scripts.items()}
        self._others = memory.ScriptedModel()

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        await scope.ensure_lease()
        name = agent_name(request)
        call_number = sum(message.role == "assistant" for message in request.messages)
        self.asked.append((name, call_number))
        self.requests.append(request)
        if name in self.silent:
            await asyncio.Event().wait()
        if name != SYNTHESIS:
            await self.meanwhile(name, call_number)
        return await self._models.get(name, self._others).ask(request, scope)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]

    def task_of_synthesis(self) -> str:
        (request,) = [request for request in self.requests if agent_name(request) == SYNTHESIS]
        assert request.tools == ()
        return request.messages[1].text


def agent_name(request: ports.Request) -> str:
    match = re.match(r"You are (\S+), the agent of stage", request.messages[0].text)
    assert match
    return match[1]


class Batches(memory.MemoryJournal):
    """A journal that remembers the kinds of entries of each commit."""

    def __init__(self, snapshot: record.Snapshot, *facts: entries.Entry) -> None:
        super().__init__(snapshot, *facts)
        self.commits: list[list[str]] = []

    async def commit(self, *added: entries.Entry) -> None:
        await super().commit(*added)
        self.commits.append([type(entry).__name__ for entry in added])


class Watched(memory.MemoryJournal):
    """A journal that calls `after_commit` with what each commit kept."""

    def __init__(
        self,
        snapshot: record.Snapshot,
        after_commit: Callable[[Sequence[entries.Entry]], object],
        *facts: entries.Entry,
    ) -> None:
        super().__init__(snapshot, *facts)
        self._after_commit = after_commit

    async def commit(self, *added: entries.Entry) -> None:
        await super().commit(*added)
        self._after_commit(added)


Tools = Mapping[str, str]
TOOLS: Tools = {"k8s.get": "CrashLoopBackOff", "k8s.restart": "restarted"}


class Opened(memory.DictToolbox):
    """Toolbox of one execution; remembers the task that opened and closed it, and each call with its execution."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.tools, writing=["k8s.restart"])
        self._shop = shop
        self.task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        await self._shop.opening()
        self.task = asyncio.current_task()
        self._shop.open.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert asyncio.current_task() is self.task
        self._shop.open.remove(self)

    async def call(self, call: messages.ToolCall, scope: ports.Scope) -> ports.ToolOutput:
        await scope.ensure_lease()
        self._shop.called.append((scope.execution, call.id))
        await self._shop.working()
        return await super().call(call, scope)


class Shop:
    """Makes toolboxes; `opening` and `working` are what they wait for."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.opening: Callable[[], Awaitable[object]] = self._nothing
        self.working: Callable[[], Awaitable[object]] = self._nothing
        self.made: list[Opened] = []
        self.open: list[Opened] = []
        self.called: list[tuple[str, str]] = []
        """Execution and call."""

    def __call__(self, _servers: Sequence[str], _admits: ports.ToolPredicate) -> Opened:
        self.made.append(Opened(self))
        return self.made[-1]

    async def _nothing(self) -> None:
        """Nothing."""
