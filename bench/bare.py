"""The bare loop: what an iteration costs without us.

The same SDK, the same MCP client, the same model and tools, and two commits of one statement each; no fence, no queue,
no status, no retries. What TARSy takes beyond it is what TARSy adds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import mcp

from bench import model, sdks

_KEEP = "INSERT INTO said (conversation, entry) VALUES ($1, $2)"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop with its connections."""

    opening: sdks.Opening
    tools: mcp.Client
    commits: asyncio.LifoQueue[asyncpg.Connection]
    """The connections that nobody commits on just now; asyncpg's pool would ask for a reset after each commit."""

    async def converse(self, name: str, *, stage: str) -> None:
        """Go through one conversation of `stage` to its end; to the model's log it is investigation bare/`name`."""
        conversation = self.opening(name, stage)
        while True:
            answer, calls = await conversation.ask()
            await self._keep(name, answer)
            if not calls:
                return
            texts = await asyncio.gather(*(self._call(call) for call in calls))
            await self._keep(name, conversation.tell(list(zip(calls, texts, strict=True))))

    async def _call(self, call: sdks.Call) -> str:
        result = await self.tools.call_tool(call.name.removeprefix(f"{model.SERVER}__"), call.arguments)
        return "\n".join(block.text for block in result.content if block.type == "text")

    async def _keep(self, name: str, said: Any) -> None:
        connection = await self.commits.get()
        try:
            await connection.execute(_KEEP, name, json.dumps(said))
        finally:
            self.commits.put_nowait(connection)


@asynccontextmanager
async def connected(
    *,
    sdk: Callable[[Sequence[mcp.types.Tool]], AbstractAsyncContextManager[sdks.Opening]],
    tools_url: str,
    database_url: str,
    connections: int = 1,
) -> AsyncIterator[Loop]:
    """A loop, connected to the same model and tools as the operator and to a database of its own.

    `sdk` is of `sdks`, with the model's address. `connections` are to the database, for that many commits at once.
    """
    opened = [await asyncpg.connect(database_url) for _ in range(connections)]
    commits = asyncio.LifoQueue[asyncpg.Connection]()
    for connection in opened:
        commits.put_nowait(connection)
    try:
        await opened[0].execute(
            "CREATE TABLE IF NOT EXISTS said (id bigserial PRIMARY KEY, conversation text, entry json)"
        )
        async with mcp.Client(tools_url) as tools, sdk((await tools.list_tools()).tools) as opening:
            yield Loop(opening=opening, tools=tools, commits=commits)
    finally:
        for connection in opened:
            await connection.close()
