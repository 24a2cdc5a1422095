"""The MCP servers, as all processes see them; and people's word that a tool which has changed may be what it is now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Literal, TypeAlias

import pydantic
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from tarsy.api.system import overview
from tarsy.auth import permissions
from tarsy.config.model import platforms
from tarsy.ingest import payload
from tarsy.kube import client
from tarsy.serve import bodies, openapi, problems, strict
from tarsy.store.base import audit, databases
from tarsy.store.fleet import catalogue, pins
from tarsy.telemetry import details
from tarsy.views import system_warnings

BODY_MAX = 256 * 1024
"""Bytes; more than the names and hashes of all tools that a server may have."""
TOLD_MAX = 10
"""Faults that are told, of however many."""
State: TypeAlias = Literal["connected", "connecting", "unreachable"]

log = logging.getLogger(__name__)


class StoppedTool(BaseModel):
    """A tool that is not what was pinned, and so is neither offered nor called."""

    tool: str
    pinned_hash: Annotated[str, Field(validation_alias="pinned")]
    """The hash of what it has to be; "" of one more than are pinned because they were seen."""
    offered_hash: Annotated[str, Field(validation_alias="offered")]
    """The hash of what its server says of it."""
    platform_key: Annotated[str, Field(validation_alias="written")] = ""
    """The key of the platform file that says what it has to be, where alone that is changed; "" where none does."""


class ServerPlace(overview.Place):
    """An MCP server as one process sees it."""

    problem: str
    """Why it cannot be called now, or ""."""
    missing: str
    """The problem with its tools, or ""."""
    stopped: list[StoppedTool] = []
    """Its tools that are not what was pinned."""


class Tool(BaseModel):
    """A tool, as its server describes it; long descriptions are cut."""

    name: str
    description: str
    read_only: bool
    """Whether its server says that it only reads."""
    hash: str = ""
    """The hash of its description, as `tool_hashes` of the platform file has it."""


class Server(BaseModel):
    """An MCP server of the platform file."""

    name: str
    state: State
    """The worst of its processes'."""
    since: datetime
    processes: list[ServerPlace]
    tools: list[Tool]
    """The tools that a process listed most recently."""


class Servers(BaseModel):
    """The MCP servers of all workers, by name."""

    items: list[Server]
    total: overview.Total


Hash = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class Wanted(BaseModel):
    """The accepted tools. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Annotated[
        dict[str, Hash] | None,
        Field(
            min_length=1,
            max_length=1000,
            description="Stopped tools, each with the hash that may be theirs now; without it all as they are now.",
        ),
    ] = None


class AcceptedTool(BaseModel):
    """A tool that is pinned at something else from now on."""

    tool: str
    before: str
    """The hash that it was pinned at, or ""."""
    hash: str


class Accepted(BaseModel):
    """The accepted tools. Empty: none was stopped, or not any more."""

    server: str
    tools: list[AcceptedTool]


@dataclass(frozen=True, kw_only=True)
class Tending:
    """Tells of servers, and has their tools confirmed."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force."""

    async def servers(self) -> Servers:
        """The MCP servers of all processes."""
        facts = await catalogue.read(self.database, "server")
        offers = {
            tools_fact.name: tools_fact for tools_fact in await catalogue.tools(self.database, limit=overview.ITEMS_MAX)
        }
        items = [_server(name, places, offers.get(name)) for name, places in overview.by_name(facts)]
        return Servers(items=items[: overview.ITEMS_MAX], total=len(items))

    async def accept(self, name: str, wanted: Wanted, caller: permissions.Caller) -> Accepted:
        """Pin the tools that are wanted at what they are now, for everybody."""
        server = next((candidate for candidate in (await self.servers()).items if candidate.name == name), None)
        if server is None:
            message = f"no worker that is there has an MCP server {name[: problems.ECHOED_MAX]}"
            raise problems.Problem(HTTPStatus.NOT_FOUND, message)
        hashes = self._chosen(server, wanted)
        by = audit.Caller(who=caller.author, address=caller.address)
        before = await pins.confirm(self.database, name, hashes, by=by, namespace=self.cluster.served.own)
        tools = [AcceptedTool(tool=tool, before=before[tool], hash=hashes[tool]) for tool in sorted(before)]
        log_fields = {
            "action": "tools_accepted",
            "server": name,
            "tools": [candidate.tool for candidate in tools],
            "who": by.who,
        }
        log.info("%d changed tools of %s were confirmed", len(tools), name, extra=log_fields)
        return Accepted(server=name, tools=tools)

    def _chosen(self, server: Server, wanted: Wanted) -> dict[str, str]:
        """The tools that are to be confirmed, and at which hashes; a Problem where that cannot be said or done."""
        offered: dict[str, set[str]] = {}
        for host in server.processes:
            for stopped_tool in host.stopped:
                offered.setdefault(stopped_tool.tool, set()).add(stopped_tool.offered_hash)
        settings = self.platform().mcp_servers.get(server.name)
        written = settings.tool_hashes if settings else {}
        if wanted.tools is not None:
            chosen = _as_wanted(wanted.tools, server, offered)
            elsewhere = chosen.keys() & written.keys()
        else:
            chosen = {tool: _the_only(tool, hashes) for tool, hashes in offered.items() if tool not in written}
            elsewhere = set() if chosen else offered.keys() & written.keys()
        _refuse(
            f"the platform file says what {tool} has to be (mcp_servers.{server.name}.tool_hashes): change it there"
            for tool in sorted(elsewhere)
        )
        return chosen


def _as_wanted(wanted: Mapping[str, str], server: Server, offered: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the wanted hashes, without those in force already; raises a Problem if a tool has changed again."""
    are_so = {(tool.name, tool.hash) for tool in server.tools}
    chosen = {tool: value for tool, value in wanted.items() if value in offered.get(tool, ())}
    _refuse(
        f"{tool[: problems.ECHOED_MAX]} is not {value}: "
        + (f"it is {' or '.join(sorted(offered[tool]))} now" if tool in offered else "it is not stopped")
        for tool, value in wanted.items()
        if tool not in chosen and (tool, value) not in are_so
    )
    return chosen


def _the_only(tool: str, hashes: set[str]) -> str:
    if len(hashes) > 1:
        choices = " or ".join(sorted(hashes))
        _refuse([f"{tool} is {choices}, as different processes are told: say in `tools` which it may be"])
    return min(hashes)


def _refuse(why: Iterable[str]) -> None:
    """A Problem that says why it cannot be done, where there is something to say."""
    if reasons := list(why):
        more = [f"and {len(reasons) - TOLD_MAX} more"] if len(reasons) > TOLD_MAX else []
        raise problems.Problem(HTTPStatus.CONFLICT, "; ".join([*reasons[:TOLD_MAX], *more]))


def routes(tending: Tending, may: permissions.Access) -> APIRouter:
    """`GET /api/v1/system/mcp-servers`, and `POST .../{name}/accept`."""
    router = strict.router(prefix="/api/v1/system/mcp-servers", tag="system")

    @router.get("", operation_id="listMcpServers", dependencies=[Depends(may.oversees)])
    async def servers() -> Servers:
        """List the MCP servers, how each process is connected to them, and their tools."""
        return await overview.available(tending.servers)

    @router.post(
        "/{name}/accept",
        operation_id="acceptTools",
        openapi_extra=openapi.body(Wanted.model_json_schema(), required=False),
        responses=openapi.problem_responses(HTTPStatus.CONFLICT),
    )
    async def accept(
        name: permissions.ServerName, request: Request, caller: permissions.Caller = Depends(may.accepts)
    ) -> Accepted:
        """Confirm what has changed of a server's tools: they are offered and called again, as they are now.

        With `tools`, only those, and only if each still is what its hash says.
        """
        wanted = await _wanted(request)
        return await overview.available(lambda: tending.accept(name, wanted, caller))

    return router


async def _wanted(request: Request) -> Wanted:
    body = await bodies.read(request, limit=BODY_MAX)
    if not body.strip():
        return Wanted()
    try:
        return Wanted.model_validate(payload.load(body))
    except payload.PayloadError as error:
        raise problems.Problem(HTTPStatus.BAD_REQUEST, str(error)) from error
    except pydantic.ValidationError as error:
        raise problems.of_body(error, Wanted) from error


def _server(name: str, places: Sequence[catalogue.Said], offer: catalogue.Said | None) -> Server:
    worst = system_warnings.worst(places)
    return Server.model_validate(
        {
            "name": name,
            "state": worst.state,
            "since": worst.since,
            "processes": [{**overview.place(fact), **_seen(fact.detail)} for fact in places],
            "tools": details.encode(offer.detail)["tools"] if offer else [],
        }
    )


def _seen(detail: details.Server) -> dict[str, object]:
    """Return one process's facts of a server."""
    return overview.fields_of(detail, "problem", "missing", "stopped")
