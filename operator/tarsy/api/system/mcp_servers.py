"""The MCP servers in the reports of all processes, and the acceptance of tools that have changed since their pin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from tarsy.auth import identities, parameters, permissions
from tarsy.config.model import platforms
from tarsy.ingest import payload
from tarsy.kube import client
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import audit, databases
from tarsy.store.fleet import catalogue, pins
from tarsy.views import mcp_servers, system

BODY_MAX = 256 * 1024
"""Bytes of a request: more than the names and hashes of all tools that a server may have."""
REASONS_MAX = 10
"""Reasons of a refusal that are listed; the others are counted."""

log = logging.getLogger(__name__)

Hash = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class Acceptance(BaseModel):
    """The tools to accept. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Annotated[
        dict[str, Hash] | None,
        Field(
            min_length=1,
            max_length=1000,
            description="Stopped tools, each with the hash to accept; by default all, with their present hashes.",
        ),
    ] = None


class AcceptedTool(BaseModel):
    """A tool that is pinned at another hash from now on."""

    tool: str
    before: str
    """The former pin, or ""."""
    hash: str


class Accepted(BaseModel):
    """The accepted tools; empty if no tool was stopped any more."""

    server: str
    tools: list[AcceptedTool]


@dataclass(frozen=True, kw_only=True)
class McpServers:
    """Reads the MCP servers of all workers, and accepts their changed tools."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force."""
    bodies: bodies.Bodies

    async def servers(self) -> mcp_servers.Servers:
        """Read the MCP servers of all processes."""
        facts = await catalogue.read(self.database, "server")
        tools = {fact.name: fact for fact in await catalogue.tools(self.database, limit=system.ITEMS_MAX)}
        return mcp_servers.servers(facts, tools)

    async def accept(self, name: str, acceptance: Acceptance, caller: identities.Caller) -> Accepted:
        """Pin the tools at their present hashes, in all processes."""
        server = next((server for server in (await self.servers()).items if server.name == name), None)
        if server is None:
            message = f"no live worker has an MCP server {name[: problems.ECHOED_MAX]}"
            raise problems.Problem(HTTPStatus.NOT_FOUND, message)
        settings = self.platform().mcp_servers.get(name)
        hashes = _hashes(server, acceptance.tools, platform_pins=settings.tool_hashes if settings else {})
        by = audit.Caller(who=caller.author, address=caller.address)
        before = await pins.confirm(self.database, name, hashes, by=by, namespace=self.cluster.served.own)
        tools = [AcceptedTool(tool=tool, before=before[tool], hash=hashes[tool]) for tool in sorted(before)]
        log_fields = {"action": "tools_accepted", "server": name, "tools": sorted(before), "who": by.who}
        log.info("accepted %d changed tools of %s", len(tools), name, extra=log_fields)
        return Accepted(server=name, tools=tools)


def _hashes(
    server: mcp_servers.Server, requested: Mapping[str, str] | None, *, platform_pins: Mapping[str, str]
) -> dict[str, str]:
    """Return the hashes to pin, by tool. Raises a Problem with the tools that cannot be accepted, and the reasons."""
    offered: dict[str, set[str]] = {}
    for process in server.processes:
        for stopped in process.stopped:
            offered.setdefault(stopped.tool, set()).add(stopped.offered_hash)
    if requested is not None:
        in_force = {(tool.name, tool.hash) for tool in server.tools}
        hashes = {tool: value for tool, value in requested.items() if value in offered.get(tool, ())}
        _refuse(
            f"{tool[: problems.ECHOED_MAX]} is not {value}: "
            + (f"it is {' or '.join(sorted(offered[tool]))} now" if tool in offered else "it is not stopped")
            for tool, value in requested.items()
            if tool not in hashes and (tool, value) not in in_force
        )
        pinned_elsewhere = hashes.keys() & platform_pins.keys()
    else:
        open_tools = {tool: values for tool, values in offered.items() if tool not in platform_pins}
        for tool, values in open_tools.items():
            if len(values) > 1:
                choices = " or ".join(sorted(values))
                _refuse([f"{tool} is {choices} in different processes: name the one to accept in `tools`"])
        hashes = {tool: min(values) for tool, values in open_tools.items()}
        pinned_elsewhere = set() if hashes else offered.keys() & platform_pins.keys()
    _refuse(
        f"the platform file has the hash of {tool} (mcp_servers.{server.name}.tool_hashes): change it there"
        for tool in sorted(pinned_elsewhere)
    )
    return hashes


def _refuse(reasons: Iterable[str]) -> None:
    """Raise a Problem if there are reasons."""
    if listed := list(reasons):
        more = [f"and {len(listed) - REASONS_MAX} more"] if len(listed) > REASONS_MAX else []
        raise problems.Problem(HTTPStatus.CONFLICT, "; ".join([*listed[:REASONS_MAX], *more]))


def routes(servers: McpServers, may: permissions.Access) -> APIRouter:
    """Return the routes `GET /api/v1/system/mcp-servers`, and `POST .../{name}/accept`."""
    router = strict.router(prefix="/api/v1/system/mcp-servers", tag="system")

    @router.get("", operation_id="listMcpServers", dependencies=[Depends(may.see_setup)])
    async def list_servers() -> mcp_servers.Servers:
        """List the MCP servers, the connection of each process to them, and their tools."""
        return await servers.servers()

    @router.post(
        "/{name}/accept",
        operation_id="acceptTools",
        openapi_extra=openapi.body(Acceptance.model_json_schema(), required=False),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def accept(
        name: parameters.ServerName, request: Request, caller: identities.Caller = Depends(may.accept_tools)
    ) -> Accepted:
        """Accept the changed tools of a server: they are offered and called again, in their present form.

        With `tools`, only these are accepted, and only if each still has the given hash.
        """
        return await servers.accept(name, _acceptance(await servers.bodies.read(request, limit=BODY_MAX)), caller)

    return router


def _acceptance(body: bytes) -> Acceptance:
    if not body.strip():
        return Acceptance()
    try:
        return Acceptance.model_validate(payload.load(body))
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    except pydantic.ValidationError as error:
        raise problems.invalid_body(error, Acceptance) from error
