"""An operator with investigations that ended in each way, for the commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import command_line, manifests
from tarsy_dev import controlplane, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

HOSTILE = "root \x1b[31mcause\x1b[0m \x9b2J \u202egnp"


@dataclass
class World:
    """An operator with investigations, and the command line."""

    operator: Operator
    process: Process
    llm: model.Server
    plane: controlplane.Administrator
    run: command_line.CommandLine

    async def uid(self, name: str) -> str:
        return (await self.operator.kubectl("get", "inv", name, "-o", "jsonpath={.metadata.uid}")).strip()


@pytest.fixture
async def ended_world(
    operator: Operator, llm: model.Server, plane: controlplane.Administrator, programs: dict[str, Path]
) -> World:
    """`completed`, `failed` and `deleted` have ended, `running` runs; the model never answers it."""

    def script(request: model.Turn) -> model.Reply:
        replies: dict[str, model.Reply] = {
            "failed": model.HttpError(status=400),
            "cancelled": model.Hang(),
            "running": model.Hang(),
            "late": model.Hang(),
        }
        return replies.get(request.key.investigation.partition("/")[2], model.Answer(text=HOSTILE))

    llm.script = script
    process = await operator.start()
    names = ["completed", "failed", "deleted", "running"]
    await operator.apply(manifests.chain(), *map(manifests.investigation, names))
    await operator.finished("completed", "failed", "deleted")
    await operator.kubectl("wait", "inv/running", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )
    return World(operator=operator, process=process, llm=llm, plane=plane, run=run)
