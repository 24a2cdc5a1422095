"""What is measured, as real processes: a world of `tarsy_dev`, the bench's own model and tools, one operator."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml
from tarsy.config.load import settings
from tarsy_dev import children, controlplane, postgres, tools, world

from bench import model, sdks

GROUPED, CAUSE = "grouped", "cause"
"""The alert type (and chain) whose alerts with the same value of this label are one investigation."""


@dataclass(frozen=True, kw_only=True)
class Another:
    """One more running operator."""

    operator: children.Child
    api: str


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running operator and what is around it."""

    operator: children.Child
    plane: controlplane.ControlPlane
    database: postgres.Server
    api: str
    token: str
    model_url: str
    model_log: Path
    tools_url: str
    database_url: str
    bare_database_url: str
    """An empty database on the same server."""
    another: Callable[[str, settings.Role], Another]
    """Start one more operator, by name and role, which ends with the rig."""


@contextmanager
def running(folder: Path, *, durable: bool = False, slots: int = 50, model_seconds: float = 0.0) -> Iterator[Rig]:
    """Start everything, its files in `folder`, and end it; a chain for each of the model's stages is there.

    A `durable` Postgres does what a commit promises, and nothing on its own (`_quiet`). `slots` are the operator's.
    The model waits `model_seconds` before each answer, beside what the stage says.
    """
    logs = folder / "logs"
    model_log = logs / "bench-requests.jsonl"
    model_port, tools_port = children.free_ports(2)
    with ExitStack() as stack:
        around = stack.enter_context(world.running(folder, durable=durable))
        if durable:
            _quiet(around.database)

        def start(name: str, *command: str, port: int, path: str) -> children.Child:
            child = children.start(
                command,
                name=name,
                log=logs / f"{name}.log",
                cwd=tools.ROOT,
                env=os.environ | around.env | {"TARSY_CONFIG": str(platform), "PATH": os.environ["PATH"]},
            )
            stack.callback(child.end)
            child.wait_until(
                lambda: children.http_status(HTTPConnection("127.0.0.1", port, timeout=5), path) == 200,
                timeout=120,
                what="readiness",
            )
            return child

        model_url, tools_url = f"http://127.0.0.1:{model_port}", f"http://127.0.0.1:{tools_port}/mcp"
        platform = folder / "bench.yaml"
        platform.write_text(_platform(model_url=model_url, tools_url=tools_url, slots=slots))
        python = [sys.executable, "-m"]
        start(
            "bench-model",
            *python,
            "bench.model",
            f"--port={model_port}",
            f"--log={model_log}",
            f"--seconds={model_seconds}",
            port=model_port,
            path="/log",
        )
        start("bench-tools", *python, "tarsy_dev.mcp_server", f"--port={tools_port}", port=tools_port, path="/log")
        around.plane.kubectl("apply", "-f", "-", namespace=world.NAMESPACE, input=_chains())
        tarsy = str(Path(sys.executable).with_name("tarsy"))

        def operator(name: str, role: settings.Role) -> Another:
            (port,) = children.free_ports(1)
            command = (tarsy, "operator", f"--listen=127.0.0.1:{port}", f"--role={role}")
            return Another(operator=start(name, *command, port=port, path="/readyz"), api=f"http://127.0.0.1:{port}")

        first = operator("bench-operator", "all")
        yield Rig(
            operator=first.operator,
            plane=around.plane,
            database=around.database,
            api=first.api,
            another=operator,
            token=around.env["TARSY_WEBHOOK_TOKEN"],
            model_url=model_url,
            model_log=model_log,
            tools_url=tools_url,
            database_url=around.env["DATABASE_URL"],
            bare_database_url=around.database.create_database("bare"),
        )


def _quiet(database: postgres.Server) -> None:
    """Have no work done at times of its own choice: no autovacuum, and no checkpoint while we measure.

    After a checkpoint the first change of each page logs the whole page, so one would be seen in the WAL as well.
    """
    for setting in ("autovacuum = off", "checkpoint_timeout = '1h'"):
        database.execute(f"ALTER SYSTEM SET {setting}")
    database.execute("SELECT pg_reload_conf()")


def _platform(*, model_url: str, tools_url: str, slots: int) -> str:
    key = {"api_key_env": world.SCRIPTED_MODEL_KEY}
    gemini = {"type": "google", "model": "gemini-2.5-flash", "base_url": model_url}
    others = {
        name: settings | {"base_url": model_url if name == "anthropic" else f"{model_url}/v1"} | key
        for name, settings in sdks.PROVIDERS.items()
    }
    return yaml.safe_dump(
        {
            "defaults": {
                "llm_provider": "bench",
                "max_iterations": 1 + max(stage.turns for stage in model.STAGES.values()),
            },
            "queue": {"slots": slots},
            "llm_providers": {"bench": gemini | key} | others,
            "mcp_servers": {model.SERVER: {"transport": {"type": "http", "url": tools_url}}},
            "agents": {"Bench": {"mcp_servers": [model.SERVER]}},
        }
    )


def _chains() -> str:
    """One chain a stage, each for the alert type of its stage's name, without a summary; one more a provider.

    A stage that calls no tool has none: who has tools and concludes without a result of theirs is asked again.
    """
    chains: list[dict[str, Any]] = [
        {
            "apiVersion": "tarsy.dev/v1alpha1",
            "kind": "AgentChain",
            "metadata": {"name": name},
            "spec": {
                "alertTypes": [name],
                "stages": [{"name": name, "agent": "Bench"} | ({} if stage.turns else {"mcpServers": []})],
                "executiveSummary": {"enabled": False},
            },
        }
        for name, stage in model.STAGES.items()
    ]
    iterations = next(chain for chain in chains if chain["metadata"]["name"] == model.ITERATIONS)
    for provider in sdks.PROVIDERS:
        name = iterations_of(provider)
        spec = iterations["spec"] | {"alertTypes": [name], "llmProvider": provider}
        chains.append(iterations | {"metadata": {"name": name}, "spec": spec})
    arrival = next(chain for chain in chains if chain["metadata"]["name"] == model.ARRIVAL)
    grouping = {"by": "Labels", "labels": [CAUSE]}
    spec = arrival["spec"] | {"alertTypes": [GROUPED], "grouping": grouping}
    chains.append(arrival | {"metadata": {"name": GROUPED}, "spec": spec})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": chains})


def iterations_of(provider: str) -> str:
    """The alert type (and chain) whose iterations ask that provider."""
    return f"{model.ITERATIONS}-{provider}"
