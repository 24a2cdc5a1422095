"""The bare loop: what an iteration costs without us.

The same SDK, the same MCP client, the same model and tools, and two commits of one statement each; no fence, no queue,
no status, no retries. What TARSy takes beyond it is what TARSy adds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import mcp
from google import genai
from google.genai import types

from bench import model

_KEEP = "INSERT INTO said (conversation, entry) VALUES ($1, $2)"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop with its connections."""

    models: Any
    tools: mcp.Client
    commits: asyncio.LifoQueue[asyncpg.Connection]
    """The connections that nobody commits on just now; asyncpg's pool would ask for a reset after each commit."""
    declared: types.Tool

    async def converse(self, name: str, *, stage: str) -> None:
        """Go through one conversation of `stage` to its end; to the model's log it is investigation bare/`name`."""
        contents = [_user(types.Part(text=f"Investigation: bare/{name}\n\nA pod restarts every minute."))]
        config = types.GenerateContentConfig(
            system_instruction=f"You are Bare, the agent of stage '{stage}' of chain 'bare'.",
            tools=[self.declared],
            thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=-1),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        while True:
            answer = await self._ask(contents, config)
            contents.append(answer)
            await self._keep(name, answer)
            calls = [part.function_call for part in answer.parts or () if part.function_call]
            if not calls:
                return
            results = _user(*await asyncio.gather(*(self._call(call) for call in calls)))
            contents.append(results)
            await self._keep(name, results)

    async def _ask(self, contents: list[types.Content], config: types.GenerateContentConfig) -> types.Content:
        parts: list[types.Part] = []
        chunks = await self.models.generate_content_stream(model="gemini-2.5-flash", contents=contents, config=config)
        async for chunk in chunks:
            parts += chunk.candidates[0].content.parts or ()
        return types.Content(role="model", parts=parts)

    async def _call(self, call: types.FunctionCall) -> types.Part:
        name = (call.name or "").removeprefix(f"{model.SERVER}__")
        result = await self.tools.call_tool(name, call.args)
        text = "\n".join(block.text for block in result.content if block.type == "text")
        return types.Part(
            function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": text})
        )

    async def _keep(self, name: str, said: types.Content) -> None:
        connection = await self.commits.get()
        try:
            await connection.execute(_KEEP, name, json.dumps(said.model_dump(mode="json", exclude_none=True)))
        finally:
            self.commits.put_nowait(connection)


@asynccontextmanager
async def connected(*, model_url: str, tools_url: str, database_url: str, connections: int = 1) -> AsyncIterator[Loop]:
    """A loop, connected to the same model and tools as the operator and to an empty database of its own.

    `connections` are to the database, for that many commits at once.
    """
    options = types.HttpOptions(base_url=model_url, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(api_key="any", http_options=options)
    opened = [await asyncpg.connect(database_url) for _ in range(connections)]
    commits = asyncio.LifoQueue[asyncpg.Connection]()
    for connection in opened:
        commits.put_nowait(connection)
    try:
        await opened[0].execute("CREATE TABLE said (id bigserial PRIMARY KEY, conversation text, entry json)")
        async with mcp.Client(tools_url) as tools:
            declared = types.Tool(
                function_declarations=[
                    types.FunctionDeclaration(
                        name=f"{model.SERVER}__{tool.name}",
                        description=tool.description,
                        parameters_json_schema=tool.input_schema,
                    )
                    for tool in (await tools.list_tools()).tools
                ]
            )
            yield Loop(models=client.aio.models, tools=tools, commits=commits, declared=declared)
    finally:
        for connection in opened:
            await connection.close()
        await client.aio.aclose()
        client.close()


def _user(*parts: types.Part) -> types.Content:
    return types.Content(role="user", parts=list(parts))
