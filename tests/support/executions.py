"""One execution of an agent that has just begun, for tests of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tarsy.agent import loop
from tarsy.config import resolve
from tarsy.transcript import entries, memory, messages, ports, record

ID = "e0"


def says(text: str) -> messages.Message:
    return messages.Message(role="assistant", text=text)


def asks(*names: str, text: str = "", arguments: str = "{}") -> messages.Message:
    """An answer that calls these tools; the model's own ids of the calls do not count."""
    calls = tuple(messages.ToolCall(id="the model's", name=name, arguments=arguments) for name in names)
    return messages.Message(role="assistant", text=text, calls=calls)


def started(
    toolbox: memory.DictToolbox, *, execution: str = ID, stage: str = "", **settings: Any
) -> entries.ExecutionStarted:
    """The start of an execution with these tools; `settings` are those of its agent."""
    agent = {
        "name": "KubernetesAgent",
        "provider": "first",
        "strategy": "native-thinking",
        "max_iterations": 20,
        "servers": ("k8s",),
        "custom_instructions": "",
        "server_instructions": (),
    }
    return entries.ExecutionStarted(
        stage=stage,
        execution=execution,
        index=0,
        name="KubernetesAgent",
        agent=resolve.ResolvedAgent(**agent | settings),  # type: ignore[arg-type]
        tools=tuple(toolbox.specs),
        messages=(
            messages.Message(role="system", text="You are."),
            messages.Message(role="user", text="web-0 restarts"),
        ),
    )


async def run(
    journal: ports.Journal,
    model: ports.Model,
    toolbox: ports.Toolbox,
    *,
    execution: str = ID,
    others: Mapping[str, ports.Model] | None = None,
    **options: Any,
) -> record.Execution:
    """Run the execution until it ends or is suspended; `others` are models of providers, `model` that of the rest."""
    models = others or {}
    running = journal.record.executions[execution]
    await loop.Loop(
        execution=running,
        model=lambda provider: models.get(provider, model),
        toolbox=toolbox,
        journal=journal,
        **{"ends_with": lambda _: (), **options},
    ).run()
    return running
