"""The page of TARSy itself: warnings, queue, MCP servers, providers, chains, budgets and more, each part on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import yaml
from fastapi import APIRouter, Depends, Request, Response

from tarsy.api import app
from tarsy.auth import identities
from tarsy.serve import problems
from tarsy.views import budgets, mcp_servers, system
from tarsy.web import rendering

ITEMS_MAX = 100
"""Items of a part that are shown; the API has the others."""
TOOLS_MAX = 200
"""Tools of one server that are shown."""
CONFIGURATION_MAX = 256 * 1024
"""Characters of a configuration that are shown."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the page: what was read, or why it could not be read."""

    content: Any = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A tool that differs from its pin, as its processes see it."""

    tool: str
    pinned_hash: str
    offered_hash: str
    platform_key: str
    hosts: list[str]
    description: str
    """The description that has the offered hash; "" if no process lists it."""


def routes(services: app.Services, renderer: rendering.Renderer) -> APIRouter:
    """Return the route `/system`, and that of its parts."""
    router = APIRouter(prefix="/system", route_class=renderer.route_class(), redirect_slashes=False)
    overview, access = services.overview, services.access

    async def parts(request: Request) -> dict[str, Any]:
        async def chains() -> system.Chains:
            scope = await access.list_chains_in(request)
            return await overview.all_chains(scope.namespaces, unchecked=scope.unchecked)

        async def read_budgets() -> budgets.Budgets:
            return await services.budgets.read(await access.list_chains_in(request), listable=listable)

        listable = await access.listable(request)
        reads = {
            "warnings": overview.warnings(listable=listable),
            "queue": overview.queue(),
            "servers": services.mcp_servers.servers(),
            "providers": overview.providers(),
            "chains": chains(),
            "alert_types": overview.alert_types(),
            "budgets": read_budgets(),
            "storage": services.storage.read(),
            "configurations": overview.configurations(),
        }
        contents = dict(zip(reads, await asyncio.gather(*map(read_part, reads.values())), strict=True))
        return {
            **contents,
            "changes": {},
            "acceptable": {},
            "items_max": ITEMS_MAX,
            "tools_max": TOOLS_MAX,
            "configuration_text": configuration_text,
        } | await drift(request, contents["servers"])

    async def drift(request: Request, servers: Part) -> dict[str, Any]:
        if servers.content is None:
            return {}
        tools_by_server = {server.name: list(changes(server)) for server in servers.content.items[:ITEMS_MAX]}
        changed = [name for name, tools in tools_by_server.items() if tools]
        refusals = await asyncio.gather(*(refusal(request, name) for name in changed))
        return {"changes": tools_by_server, "acceptable": dict(zip(changed, refusals, strict=True))}

    async def refusal(request: Request, server: str) -> str:
        """Return why the caller may not accept tools of a server; "" if it may."""
        try:
            await access.accept_tools(request, server)
        except problems.Problem as problem:
            if problem.status is HTTPStatus.UNAUTHORIZED:
                raise
            return problem.detail
        return ""

    @router.get("", include_in_schema=False)
    async def page(request: Request, caller: identities.Caller = Depends(access.see_setup)) -> Response:
        """Show TARSy itself."""
        content = await parts(request)
        return await asyncio.to_thread(
            renderer.page, request, "system.html", title="System", section="System", user=caller, **content
        )

    @router.get("/parts", include_in_schema=False, dependencies=[Depends(access.see_setup)])
    async def fragment(request: Request) -> Response:
        """Return the parts of the page."""
        content = await parts(request)
        return await asyncio.to_thread(renderer.page, request, "system_parts.html", **content)

    return router


async def read_part(reading: Awaitable[Any]) -> Part:
    """Return a part, or the reason why it cannot be read now."""
    try:
        return Part(content=await reading)
    except problems.Problem as problem:
        return Part(problem=problem.detail)
    except app.UNAVAILABLE as error:
        return Part(problem=str(error))


def changes(server: mcp_servers.Server) -> list[Change]:
    """Return the tools of a server that differ from their pins, each offered hash once, at most TOOLS_MAX."""
    hosts: dict[tuple[str, str, str, str], list[str]] = {}
    for process in server.processes:
        for stopped in process.stopped:
            key = (stopped.tool, stopped.pinned_hash, stopped.offered_hash, stopped.platform_key)
            hosts.setdefault(key, []).append(process.host)
    descriptions = {(tool.name, tool.hash): tool.description for tool in server.tools}
    return [
        Change(
            tool=tool,
            pinned_hash=pinned,
            offered_hash=offered,
            platform_key=key,
            hosts=sorted(names),
            description=descriptions.get((tool, offered), ""),
        )
        for (tool, pinned, offered, key), names in sorted(hosts.items())[:TOOLS_MAX]
    ]


def configuration_text(configuration: system.Configuration) -> str:
    """Return a redacted platform file as YAML, cut to CONFIGURATION_MAX characters."""
    if not configuration.written:
        return ""
    text = yaml.safe_dump(configuration.written, sort_keys=False, allow_unicode=True, width=120)
    return text if len(text) <= CONFIGURATION_MAX else f"{text[:CONFIGURATION_MAX]}\n# cut: the API has the whole"
