"""Connections to MCP servers: one per server and process, shared by all investigations, each with an owner task.

Another platform file brings another set of servers. Servers with unchanged settings stay. A server with changed
settings is another server beside the former one, which is closed once no configuration version has it.

Only the owner enters and leaves the client's context; others call through it. A client that broke never heals, and a
call made inside its context is cancelled with it, so the owner drops it and connects anew, with back-off that gives way
while a caller waits. The owner also looks at the server at intervals: otherwise the end of an idle server, or a drift
of its tools from their pins (`pins`), would go unnoticed. Owners are started with an empty context: inside an
investigation's, its end would be everybody's.

A `stateful` server has another connection for each toolbox, with an owner of its own; the shared one only serves to
know its offer, and that it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import asdict, dataclass

import mcp
from mcp import types

from tarsy import errors, slots
from tarsy.config.load import secret_files
from tarsy.config.model import platforms
from tarsy.config.redact import view
from tarsy.masking import known_secrets, masker
from tarsy.telemetry import details, standing
from tarsy.tools import pins
from tarsy.tools.calls import offered_tools
from tarsy.tools.servers import health, listing, toolbox
from tarsy.tools.transports import bounds, progress, sse, stderr, stdio, streamable, wire
from tarsy.transcript import ports

CONNECT_SECONDS = 30.0
FIRST_BACKOFF = 0.5  # seconds; doubled with each failure
LONGEST_BACKOFF = 30.0  # seconds
LOOK_SECONDS = 15.0
"""Seconds between looks at a server that is idle, or that leaves its calls without an answer."""
RELIST_SECONDS = 30.0
"""How often a server is asked again what it offers: it need not tell."""
RELIST_LEAST = 5.0
"""Seconds between two times, however often it tells that something has changed."""
PINS_SECONDS = 1.0
"""How often it is tried to find out what was pinned."""
PROBLEM_MAX = 1024
"""Characters of a connection error that are told on, to people."""
PROBLEM_READ = 4 * PROBLEM_MAX
NAMES_MAX = 10
"""Tools that are named in the log where some are left out."""

log = logging.getLogger(__name__)


_OF_OTHERS = ("instructions", "tools", "write_tools", "selectable")
"""The settings that concern others than the connection: prompts, toolboxes and alerts."""


class Server:
    """One MCP server of the platform file, connected or trying to be."""

    def __init__(
        self,
        name: str,
        settings: platforms.MCPServer,
        *,
        calls: slots.Slots,
        secrets: known_secrets.KnownSecrets,
        keep: pins.Keep | None = None,
    ) -> None:
        """`calls` are as many as may be made at once; another server of that name may share them.

        `keep` keeps what its tools are pinned at; None: this object alone.
        """
        self.name = name
        self.slots = calls
        self.calls = health.Calls()
        self.mask: toolbox.Mask = settings.data_masking.masker(secrets).text
        self.is_child = isinstance(settings.transport, platforms.StdioTransport)
        """Whether it is a program that we started."""
        self.tools: Sequence[types.Tool] = ()
        """The usable tools of the last connection."""
        self.missing = ""
        """The problem with its tools, or ""."""
        self.stopped: Mapping[str, pins.Stopped] = {}
        """Its tools that are not what was pinned, by their names."""
        self.problem = "is not connected yet"
        """Why it cannot be called now; "" when it can."""
        self.standing = standing.Standing("connecting")
        """Connecting, connected or unreachable."""
        self.timeout = (
            settings.transport.timeout.total_seconds()
            if isinstance(settings.transport, platforms.RemoteTransport)
            else None
        )
        """How long it may take for one request, in seconds; None is no limit of its own."""
        self.tried = asyncio.Event()
        """Set once the first attempt to connect has succeeded or failed."""
        self._settings = settings
        self._secrets = secrets
        self._files = secret_files.server_digests(settings.transport)
        """The digests of the files that it is reached with."""
        self._without = view.redact({"mcp_servers": {name: settings.model_dump(mode="json")}}).without
        """Takes out of a text what was written as an argument, a variable or the query of an address."""
        self.reports = progress.Reports()
        """The progress reports of calls under way."""
        self._spoken = stderr.Chatter(name, mask=self.mask)
        self._client: mcp.Client | None = None
        self._backoff = FIRST_BACKOFF
        self._least_backoff = FIRST_BACKOFF
        """Also where a call waits; longer behind an attempt that has read a list of tools beyond its bounds."""
        self._pausing: asyncio.Timeout | None = None
        """Until when it is not tried again."""
        self._waiting = 0
        """How many wait for it to be there."""
        self._changed = asyncio.Condition()
        self._broken = asyncio.Event()
        self._keep = keep or pins.Memory()
        self._pins = pins.Pins(name, keep=self._keep, written=settings.tool_hashes)
        self._relists = asyncio.Event()
        """Set where what it offers, or what was pinned, may have changed."""
        self._offered: standing.Fact | None = None
        """The offer as a fact."""
        self._closed = asyncio.Event()

    def is_as(self, settings: platforms.MCPServer) -> bool:
        """Whether it is, and stays, what these settings and files ask for, as far as its connection is concerned."""
        same = {key: getattr(self._settings, key) for key in _OF_OTHERS}
        is_same = settings.model_copy(update=same) == self._settings
        return not self._closed.is_set() and is_same and secret_files.server_digests(settings.transport) == self._files

    def lent(self, start: Callable[[Server], object]) -> Server:
        """Return the connection for one toolbox: itself, or one more of a stateful server, whose owner `start` runs."""
        if not self._settings.stateful:
            return self
        return _Own(self.name, self._settings, calls=self.slots, secrets=self._secrets, keep=self._keep, start=start)

    def hold(self) -> None:
        """Begin to be used by a toolbox: it is there as long as a configuration version has it."""

    def let_go(self) -> None:
        """Be no longer used by a toolbox."""

    async def close(self) -> None:
        """End the connection: no configuration version has it any more."""
        self._closed.set()

    async def serve(self) -> None:
        """Keep the server connected until it is closed, or cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                owner = group.create_task(self.own())
                try:
                    await self._closed.wait()
                finally:
                    self._closed.set()  # a cancellation alone may be lost on a client that is broken
                    self._broken.set()
                    owner.cancel()
        finally:
            self.tried.set()  # callers that wait for the first attempt do not wait for an aborted one
        log.info("closed", extra={"action": "mcp_closed", "server": self.name})

    async def own(self) -> None:
        """Keep the server connected until cancelled."""
        while not self._closed.is_set():
            try:
                await self._connected()
            except Exception as error:  # noqa: BLE001 - the owner: whatever broke the client, connect anew
                self._lost(error)
                if listing.is_too_long(error):
                    self._backoff = self._least_backoff = LONGEST_BACKOFF
            self.tried.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._least_backoff if self._waiting else self._backoff) as self._pausing:
                    await self._closed.wait()
            self._pausing = None
            self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)

    def _lost(self, error: Exception) -> None:
        why = masker.or_withheld(self.mask, self._without(bounds.error_text(error)[:PROBLEM_READ]))
        self.problem = f"cannot be reached: {bounds.on_one_line(why)}"[:PROBLEM_MAX]
        if self.standing.be("unreachable"):  # said once, not with each of many attempts
            log.warning("%s %s", self.name, self.problem, extra={"action": "mcp_lost", "server": self.name})

    async def client(self) -> mcp.Client:
        """The connected client; waits for one, so the caller sets the time limit."""
        if self._client is None:
            self._hurry()
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._client is not None)
        finally:
            self._waiting -= 1
        assert self._client is not None  # noqa: S101 - the line above waited for it
        return self._client

    def _hurry(self) -> None:
        """Retry the connection soon: a caller waits for it."""
        soon = asyncio.get_running_loop().time() + self._least_backoff
        if self._pausing is not None and not self._pausing.expired() and (self._pausing.when() or 0.0) > soon:
            self._pausing.reschedule(soon)

    def broke(self, client: mcp.Client) -> None:
        """Report that a call through `client` found it broken.

        It is lent no more from now on, though closing it takes a while: a call through it would be in doubt for
        nothing.
        """
        if client is self._client:
            self._client, self.problem = None, "lost its connection"
            self.standing.be("connecting")
            self._broken.set()

    def _ended(self) -> None:
        """Say that nothing more comes from the server."""
        if self._client is not None:
            self.broke(self._client)
        self._broken.set()

    async def _connected(self) -> None:
        self._broken.clear()
        client = self._new_client()
        seconds = min(CONNECT_SECONDS, self.timeout or CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds) as deadline, client:
                offer = await listing.offer(self.name, client, mask=self.mask)
                deadline.reschedule(None)
                await self._held_against_pins(offer)
                async with health.at(self._settings.transport, client) as look:  # first: its token may go
                    await self._publish(client, offer)
                    try:
                        async with asyncio.TaskGroup() as beside:
                            relisting = beside.create_task(self._relist(client))
                            await self._breaks(client, look)
                            relisting.cancel()
                    finally:
                        self.broke(client)
        except Exception as error:
            if why := wire.why_closed(client):
                raise ConnectionError(why) from error
            if deadline.expired():
                raise TimeoutError(f"it did not answer within {seconds:g} s") from error
            raise
        finally:
            self._client = None

    async def _breaks(self, client: mcp.Client, look: health.Look) -> None:
        """Return when the connection is broken, by its own report or that of a call; raise if the server is gone.

        A server that has answered, and then is silent twice, is lent no more until it answers again. A child process
        that stays silent without work is gone.
        """
        answers, silences = self.is_child, 0  # a child has answered by now; not every remote one knows the question
        while not self._broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._broken.wait()
            if self.calls.tell or self._broken.is_set():
                continue
            there = await health.unless(self._broken, look)
            if self.calls.tell or self._broken.is_set():
                continue
            answers, silences = answers or there is True, silences + 1 if there is None else 0
            if there is False:
                raise ConnectionError("nobody answers at its address")
            if answers and silences >= health.SILENCES:
                self._withdraw(ends=self.is_child and silences >= health.HUNG_SILENCES and not self.calls.under_way)
            elif there and self._client is None and self.is_child:
                await self._give(client)
            elif there and self._client is None and not self.calls.under_way:
                return  # it may have forgotten who we are

    def _withdraw(self, *, ends: bool) -> None:
        error = ConnectionError("it does not answer any more")
        self._client = None
        self._lost(error)
        self.calls.turn_away()
        if ends:
            raise error

    async def _held_against_pins(self, offer: bounds.Offer) -> None:
        """Stop what of the offer is not what was pinned; waits until that can be said: nothing is called unseen."""
        while True:
            try:
                offer.stop(await self._pins.stopped(offer.hashes))
            except errors.TemporaryError as error:
                self.problem = f"is connected, and its tools wait to be held against what was pinned: {error}"
                self.tried.set()
                await asyncio.sleep(PINS_SECONDS)
            else:
                return

    async def _relist(self, client: mcp.Client) -> None:
        """List its tools again: at intervals, and after a possible change.

        Without a usable answer the former offer stays: the end of a server is noticed elsewhere, and tools that are not
        listed are offered to no model.
        """
        while True:
            await asyncio.sleep(RELIST_LEAST)
            with suppress(TimeoutError):
                async with asyncio.timeout(RELIST_SECONDS):
                    await self._relists.wait()
            self._relists.clear()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    offer = await listing.offer(self.name, client, mask=self.mask)
                    offer.stop(await self._pins.stopped(offer.hashes))
            except listing.TooLongError as error:
                log.warning("%s was not looked at: %s", self.name, error, extra={"action": "mcp_relist"})
                await asyncio.sleep(RELIST_SECONDS)
            except (mcp.MCPError, RuntimeError, ValueError, TimeoutError, errors.TemporaryError) as error:
                log.info("%s was not looked at: %s", self.name, type(error).__name__, extra={"action": "mcp_relist"})
            else:
                self._offer_now(offer)

    def look_again(self) -> None:
        """List its tools again and compare them with the pins: a change may have been accepted."""
        self._relists.set()

    async def _hear(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.look_again()

    def facts(self) -> Iterator[standing.Fact]:
        """How it stands, and what it offers."""
        detail = details.Server(
            problem=self.problem,
            missing=self.missing,
            tools=len(self.tools),
            stopped=tuple(details.StoppedTool(**asdict(tool)) for tool in self.stopped.values()),
        )
        yield standing.Fact(
            kind="server", name=self.name, state=self.standing.state, since=self.standing.since, detail=detail
        )
        if self._offered is not None:
            yield self._offered

    async def _publish(self, client: mcp.Client, offer: bounds.Offer) -> None:
        self._backoff = self._least_backoff = FIRST_BACKOFF
        self.calls.answered()
        self._offer_now(offer)
        await self._give(client)
        self.tried.set()

    def _offer_now(self, offer: bounds.Offer) -> None:
        """Have these tools, and say what is missing where that is another than before."""
        is_new = offer.problem != self.missing
        self.tools, self.missing, self.stopped = offer.tools, offer.problem, offer.stopped
        self._offered = listing.offer_fact(self.name, offer, before=self._offered)
        if offer.problem and is_new:
            names = ", ".join(offer.left_out[:NAMES_MAX])
            log.warning(
                "%s %s", self.name, offer.problem, extra={"action": "mcp_tools", "server": self.name, "names": names}
            )

    async def _give(self, client: mcp.Client) -> None:
        """Let everybody have it."""
        async with self._changed:
            self._client, self.problem = client, ""
            self.standing.be("connected")
            self._changed.notify_all()
        log.info("connected", extra={"action": "mcp_connected", "server": self.name, "tools": len(self.tools)})

    def _new_client(self) -> mcp.Client:
        match self._settings.transport:
            case platforms.StdioTransport() as local:
                child = stdio.Stdio(
                    local.command,
                    local.args,
                    environment=local.env,
                    spoken=self._spoken,
                    reports=self.reports,
                    ended=self._ended,
                )
                return mcp.Client(child, cache=None, message_handler=self._hear)
            case platforms.HTTPTransport() as remote:
                there = streamable.client(remote, reports=self.reports)
                return mcp.Client(there, cache=None, message_handler=self._hear)
            case platforms.SSETransport() as remote:
                events = sse.SSE(remote, reports=self.reports, ended=self._ended)
                return mcp.Client(events, mode="legacy", cache=None, message_handler=self._hear)


class _Own(Server):
    """A connection of one toolbox alone, which is made when that is opened."""

    def __init__(
        self,
        name: str,
        settings: platforms.MCPServer,
        *,
        calls: slots.Slots,
        secrets: known_secrets.KnownSecrets,
        keep: pins.Keep,
        start: Callable[[Server], object],
    ) -> None:
        super().__init__(name, settings, calls=calls, secrets=secrets, keep=keep)
        self._start = start

    def hold(self) -> None:
        """Begin to connect."""
        self._start(self)

    def let_go(self) -> None:
        """End the connection."""
        self._closed.set()


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The MCP servers of one platform file, and what a call to them may take."""

    servers: Mapping[str, Server]
    settings: Mapping[str, platforms.MCPServer]
    """The platform file's settings of each server."""
    limits: platforms.Limits
    start: Callable[[Server], object]
    """Has the owner of a connection run."""

    def toolbox(self, servers: Sequence[str], admits: ports.ToolPredicate) -> toolbox.PoolToolbox:
        """The tools of `servers` that are offered; of one that the platform file has lost since there are none."""
        servers_known = [self.servers[name] for name in servers if name in self.servers]
        lent = [server.lent(self.start) for server in servers_known]
        return toolbox.PoolToolbox(lent, limits=self.limits, offered=offered_tools.Offered(self.settings, admits))

    async def settled(self) -> None:
        """Return when every server has been tried once."""
        for server in self.servers.values():
            await server.tried.wait()


class Pool:
    """All MCP servers of the platform file that is in force, and those of earlier ones that are still used."""

    def __init__(
        self, settings: platforms.Platform, *, secrets: known_secrets.KnownSecrets, keep: pins.Keep | None = None
    ) -> None:
        """`keep` keeps what tools are pinned at; None: this pool alone."""
        self._secrets = secrets
        self._keep = keep or pins.Memory()
        self._owned: list[Server] = []
        """Those that are connected or trying to be, or will be once it runs."""
        self._owners: asyncio.TaskGroup | None = None
        self.tools = Tools(servers={}, settings={}, limits=settings.limits, start=self._start)
        """Those in force."""
        self.exchange(self.prepared(settings))

    def prepared(self, settings: platforms.Platform) -> Tools:
        """The servers of that file, which begin to be connected; to be given to `exchange`."""
        servers = {
            name: self._server(name, server_settings, settings.limits)
            for name, server_settings in settings.mcp_servers.items()
        }
        for server in servers.values():
            if server not in self._owned:
                self._owned.append(server)
                self._begin(server)
        return Tools(servers=servers, settings=settings.mcp_servers, limits=settings.limits, start=self._start)

    def exchange(self, tools: Tools) -> None:
        """Have those in force from now on."""
        self.tools = tools
        for server in tools.servers.values():
            server.slots.set_limit(tools.limits.server_calls)

    async def run(self) -> None:
        """Keep all servers connected until cancelled."""
        async with asyncio.TaskGroup() as self._owners:
            for server in self._owned:
                self._begin(server)
            await asyncio.Event().wait()

    def facts(self) -> Iterator[standing.Fact]:
        """How the servers in force stand, and what they offer."""
        for server in self.tools.servers.values():
            yield from server.facts()

    def look_again(self) -> None:
        """List the tools of all servers again: a change may have been accepted."""
        for server in self._owned:
            server.look_again()

    def _server(self, name: str, settings: platforms.MCPServer, limits: platforms.Limits) -> Server:
        """The one that there is, or else a new one, beside which no more calls are made than one may have."""
        alike = [server for server in self._owned if server.name == name]
        if same := next((server for server in alike if server.is_as(settings)), None):
            return same
        calls = alike[-1].slots if alike else slots.Slots(limits.server_calls)
        return Server(name, settings, calls=calls, secrets=self._secrets, keep=self._keep)

    def _begin(self, server: Server) -> None:
        if (serving := self._start(server)) is not None:
            serving.add_done_callback(lambda _: self._owned.remove(server))

    def _start(self, server: Server) -> asyncio.Task[None] | None:
        """Run the owner of a connection, if the pool runs."""
        if self._owners is None:
            return None
        return self._owners.create_task(server.serve(), name=f"mcp {server.name}", context=Context())
