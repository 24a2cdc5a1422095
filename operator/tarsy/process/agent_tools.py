"""Calls of tools and models outside of a worker, as an agent makes them; the providers that a worker could not use."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tarsy.config.model import platforms
from tarsy.llm import registry
from tarsy.masking import known_secrets
from tarsy.process import errors
from tarsy.transcript import messages, ports

Call = Callable[[str, Mapping[str, Any]], Awaitable[str]]


async def _always() -> None:
    """Need no lease: there is no investigation."""


@asynccontextmanager
async def calls_to(platform: platforms.Platform, server: str) -> AsyncIterator[Call]:
    """Connect to an MCP server of the platform file; yield a function that calls a tool of it and returns the result.

    The result is masked and whole; that of a failed call is its error. Raises a StartError if the server is away.
    """
    from tarsy.tools.servers import pool  # slow to import

    servers = pool.Pool(platform, secrets=known_secrets.KnownSecrets())
    numbers = itertools.count()
    running = asyncio.create_task(servers.run())
    try:
        await servers.tools.wait_tried()
        async with servers.tools.toolbox([server], lambda _: True) as toolbox:
            if toolbox.away:
                raise errors.StartError("\n".join(toolbox.problems))

            async def call(tool: str, arguments: Mapping[str, Any]) -> str:
                call_id = f"0.{next(numbers)}"
                asked = messages.ToolCall(id=call_id, name=f"{server}.{tool}", arguments=json.dumps(dict(arguments)))
                output = await toolbox.call(asked, ports.Scope(execution="check", ensure_lease=_always))
                return output.text

            yield call
    finally:
        running.cancel()
        await asyncio.wait([running])


@asynccontextmanager
async def questions_to(
    platform: platforms.Platform, provider: str
) -> AsyncIterator[Callable[[str], Awaitable[ports.Answer]]]:
    """Build a model of the platform file; yield a function that asks it one question, with its limits and retries.

    The function raises ports.ModelError.
    """
    async with registry.session() as http:
        secrets = known_secrets.KnownSecrets()
        models = await asyncio.to_thread(registry.build, platform, environment=os.environ, http=http, secrets=secrets)

        async def ask(question: str) -> ports.Answer:
            request = ports.Request(tools=(), messages=(messages.Message(role="user", text=question),))
            return await models[provider].ask(request, ports.Scope(execution="question", ensure_lease=_always))

        try:
            yield ask
        finally:
            for shared in models.shared.values():
                await shared.close()


def unusable_providers(platform: platforms.Platform) -> dict[str, str]:
    """Return the problems of the providers that a worker with this environment cannot use, by name."""
    return registry.unusable(platform, environment=os.environ)
