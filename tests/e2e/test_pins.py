"""A tool that is changed under a running investigation, and people who are told and confirm it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from support import audits, manifests
from tarsy.store.base import databases
from tarsy_dev import hostile_mcp, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

SAY = model.Call(name="odd__say", args={"how": "fine"})
SYSTEM = "/api/v1/system"


async def tarsy(process: Process, *arguments: str) -> str:
    environment = {**os.environ, "TARSY_API": process.url, "TARSY_TOKEN": process.editor}
    start = "from tarsy.cli.main import main; main()"
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, *arguments, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await child.communicate()
    assert child.returncode == 0, output
    return output.decode()


async def items(process: Process, path: str) -> list[Any]:
    status, listing = await process.request("GET", f"{SYSTEM}/{path}")
    assert status == 200
    return list(listing["items"])


async def offered(process: Process) -> list[Any]:
    servers = await items(process, "mcp-servers")
    return [tool for server in servers if server["name"] == "odd" for tool in server["tools"]]


async def stopped(process: Process) -> list[Any]:
    """The tools that some process has stopped: who was killed is told of a while longer."""
    servers = await items(process, "mcp-servers")
    return [tool for server in servers for process_state in server["processes"] for tool in process_state["stopped"]]


async def until(ready: Callable[[], Awaitable[Any]]) -> Any:
    async with patience.limit():
        while not (outcome := await ready()):  # noqa: ASYNC110 - what is waited for is told by the API
            await asyncio.sleep(0.1)
        return outcome


async def test_tool_with_changed_definition_is_not_called_until_confirmed(
    operator: Operator, llm: model.Server, database: databases.Database
) -> None:
    """The model does whatever it is told: it calls the tool whether that is offered or not."""
    asked = asyncio.Event()
    refused: list[str] = []

    async def script(model_call: model.Turn) -> model.Reply:
        match model_call.iteration:
            case 0:
                return model.Answer(calls=(SAY,))
            case 1 if not asked.is_set():
                asked.set()
                return model.Hang()
            case 1:
                return model.Answer(calls=(SAY,))
        refused.extend(tool_result.text for tool_result in model_call.messages[-1].results)
        return model.Answer(text="root cause [tool 0.0]")

    llm.script = model.agents(script)
    async with hostile_mcp.serve() as remote:
        operator.configure(
            mcp_servers={"odd": {"transport": {"type": "http", "url": remote.url}}},
            agents={"KubernetesAgent": {"mcp_servers": ["odd"]}},
        )
        first = await operator.start()
        await operator.apply(manifests.chain(), manifests.investigation())
        async with patience.limit():
            await asked.wait()
        (seen,) = await until(lambda: offered(first))
        pinned = seen["hash"]
        await first.kill()
        await operator.let_leases_pass()

        remote.offer = "another description"
        second = await operator.start()
        await operator.finished()
        assert remote.calls == 1, "what it was, once; what it is, never"
        (changed,) = await until(lambda: stopped(second))
        now = changed["offered_hash"]
        assert changed == {"tool": "say", "pinned_hash": pinned, "offered_hash": now, "platform_key": ""}
        assert any(
            "it has changed since it was pinned" in refusal and pinned in refusal and now in refusal
            for refusal in refused
        )
        (warning,) = (
            listed_warning for listed_warning in await items(second, "warnings") if listed_warning["kind"] == "tool"
        )
        assert warning["name"] == "odd.say"
        assert pinned in warning["message"]
        assert now in warning["message"]
        assert hostile_mcp.RUG_PULL not in str([request.body for request in llm.requests])

        assert await tarsy(second, "tools", "accept", "odd") == f"odd.say: {pinned} -> {now}\n"
        assert audits.row("accept", "odd") in await audits.audit_rows(database.url)

        async def is_offered() -> bool:
            return not await stopped(second)

        await until(is_offered)
        await operator.apply(manifests.investigation(name="another"))
        await operator.finished("another")
        assert remote.calls == 3
