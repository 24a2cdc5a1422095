"""The connection to one MCP server, with the task that owns it.

Only the owner enters and leaves the client's context; callers use the client inside it. A broken client never recovers,
and a call inside its context is cancelled with it. So the owner discards it and connects again, with a back-off that is
shortened while a caller waits. The owner also checks the server at intervals. Otherwise the end of an idle server, or a
drift of its tools from their pins (`pins`), would go unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

import mcp
from mcp import types

from tarsy import errors, slots
from tarsy.config.load import secret_files
from tarsy.config.model import platforms, server_transports
from tarsy.config.redact import view
from tarsy.masking import known_secrets, masker
from tarsy.telemetry import component_states
from tarsy.tools import pins
from tarsy.tools.servers import health, listing
from tarsy.tools.transports import progress, sse, stderr, stdio, streamable, wire

CONNECT_SECONDS = 30.0
FIRST_BACKOFF = 0.5  # seconds; doubled with each failure
LONGEST_BACKOFF = 30.0  # seconds
CHECK_INTERVAL = 15.0
"""Seconds between checks of a server that is idle, or that does not answer its calls."""
RELIST_SECONDS = 30.0
"""Seconds between two lists of its tools, because a server need not announce changes."""
RELIST_LEAST = 5.0
"""The minimal seconds between two lists, even if the server announces changes more often."""
PINS_SECONDS = 1.0
"""Seconds between attempts to read the pins."""
PROBLEM_MAX = 1024
"""Characters of a connection error that logs, statuses and warnings show."""
PROBLEM_READ = 4 * PROBLEM_MAX
NAMES_MAX = 10
"""Names of unusable tools in a log line."""
_OTHER_SETTINGS = ("instructions", "tools", "write_tools", "selectable")
"""The settings that concern prompts, toolboxes and alerts, and not the connection."""

log = logging.getLogger(__name__)


class Server:
    """One MCP server of the platform file, connected or trying to connect."""

    def __init__(
        self,
        name: str,
        settings: platforms.MCPServer,
        *,
        limit: slots.Slots,
        secrets: known_secrets.KnownSecrets,
        pin_store: pins.PinStore | None = None,
        start: Callable[[Server], object] | None = None,
    ) -> None:
        """`limit` is the limit of simultaneous calls; another connection to the server may share it.

        Without a `pin_store`, only this object has the pins. `start` is for a connection of one toolbox: it starts the
        owner when the toolbox opens.
        """
        self.name = name
        self.slots = limit
        self.calls = health.Calls()
        self.mask: Callable[..., str] = settings.data_masking.masker(secrets).text
        """Masks a text, with the fingerprints of an `investigation` if they are enabled."""
        self.is_child = isinstance(settings.transport, server_transports.StdioTransport)
        """Whether the server is a program that we started."""
        self.tools: Sequence[types.Tool] = ()
        """The usable tools of the last connection."""
        self.tools_problem = ""
        """The problem with its tools, or ""."""
        self.stopped: Mapping[str, pins.Stopped] = {}
        """Its tools that differ from their pins, by name."""
        self.problem = "is not connected yet"
        """The reason why it cannot be called now; "" if it can."""
        self.state = component_states.StateTracker("connecting")
        """Connecting, connected or unreachable."""
        self.timeout = (
            settings.transport.timeout.total_seconds()
            if isinstance(settings.transport, server_transports.RemoteTransport)
            else None
        )
        """The server's own limit for one request, in seconds; None if it has none."""
        self.tried = asyncio.Event()
        """Set once the first attempt to connect has succeeded or failed."""
        self.reports = progress.Reports()
        """The progress reports of current calls."""
        self._settings = settings
        self._secrets = secrets
        self._file_digests = secret_files.server_digests(settings.transport)
        self._redact = view.redact({"mcp_servers": {name: settings.model_dump(mode="json")}}).redact_text
        """Removes the values of arguments, of variables and of the address's query from a text."""
        self._standard_error = stderr.StandardError(name, mask=self.mask)
        self._client: mcp.Client | None = None
        self._backoff = FIRST_BACKOFF
        self._least_backoff = FIRST_BACKOFF
        """The back-off while a call waits; it is longer after a list of tools that exceeds its bounds."""
        self._pause: asyncio.Timeout | None = None
        """The current back-off."""
        self._waiting = 0
        """The number of callers that wait for the connection."""
        self._changed = asyncio.Condition()
        self._broken = asyncio.Event()
        self._pin_store = pin_store or pins.MemoryPins()
        self._pins = pins.ServerPins(name, store=self._pin_store, configured=settings.tool_hashes)
        self._relist_requested = asyncio.Event()
        """Set if its tools or pins may have changed."""
        self._tools_fact: component_states.ComponentState | None = None
        self._closed = asyncio.Event()
        self._start = start

    def is_unchanged(self, settings: platforms.MCPServer) -> bool:
        """Whether the connection is open, and these settings and their files describe the same one."""
        others = {key: getattr(self._settings, key) for key in _OTHER_SETTINGS}
        is_same = settings.model_copy(update=others) == self._settings
        return (
            not self._closed.is_set()
            and is_same
            and secret_files.server_digests(settings.transport) == self._file_digests
        )

    def for_toolbox(self, start: Callable[[Server], object]) -> Server:
        """The connection for one toolbox: this one, or a separate one if the server is stateful; `start` runs it."""
        if not self._settings.stateful:
            return self
        return Server(
            self.name,
            self._settings,
            limit=self.slots,
            secrets=self._secrets,
            pin_store=self._pin_store,
            start=start,
        )

    def acquire(self) -> None:
        """Begin the use by a toolbox: connect if only this toolbox uses the connection."""
        if self._start is not None:
            self._start(self)

    def release(self) -> None:
        """End the use by a toolbox: close the connection if only this toolbox uses it."""
        if self._start is not None:
            self._closed.set()

    async def close(self) -> None:
        """End the connection, because no configuration version has it any more."""
        self._closed.set()

    async def serve(self) -> None:
        """Keep the server connected until it is closed, or cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                owner = group.create_task(self.keep_connected())
                try:
                    await self._closed.wait()
                finally:
                    self._closed.set()  # a broken client may swallow the cancellation
                    self._broken.set()
                    owner.cancel()
        finally:
            self.tried.set()  # callers do not wait for a cancelled attempt
        log.info("closed", extra={"action": "mcp_closed", "server": self.name})

    async def keep_connected(self) -> None:
        """Connect, and connect again after each loss, until closed or cancelled."""
        while not self._closed.is_set():
            try:
                await self._connect()
            except Exception as error:  # noqa: BLE001 - after any error of the client, connect again
                self._record_loss(error)
                if isinstance(wire.first_error(error), listing.TooLongError):
                    self._backoff = self._least_backoff = LONGEST_BACKOFF
            self.tried.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._least_backoff if self._waiting else self._backoff) as self._pause:
                    await self._closed.wait()
            self._pause = None
            self._backoff = min(self._backoff * 2, LONGEST_BACKOFF)

    def _record_loss(self, error: Exception) -> None:
        reason = masker.or_withheld(self.mask, self._redact(wire.error_text(error)[:PROBLEM_READ]))
        self.problem = f"cannot be reached: {wire.on_one_line(reason)}"[:PROBLEM_MAX]
        if self.state.change("unreachable"):  # logged once, not at each attempt
            log.warning("%s %s", self.name, self.problem, extra={"action": "mcp_lost", "server": self.name})

    async def client(self) -> mcp.Client:
        """The connected client; wait for it without a limit of time."""
        pause = self._pause
        if self._client is None and pause is not None and not pause.expired():
            soon = asyncio.get_running_loop().time() + self._least_backoff
            if (pause.when() or 0.0) > soon:
                pause.reschedule(soon)
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._client is not None)
        finally:
            self._waiting -= 1
        assert self._client is not None  # noqa: S101 - the line above waited for it
        return self._client

    def report_broken(self, client: mcp.Client) -> None:
        """Withdraw a broken client at once: closing it takes a while, and the outcome of further calls is unknown."""
        if client is self._client:
            self._client, self.problem = None, "lost its connection"
            self.state.change("connecting")
            self._broken.set()

    def _on_end(self) -> None:
        """Handle the end of the server's messages."""
        if self._client is not None:
            self.report_broken(self._client)
        self._broken.set()

    async def _connect(self) -> None:
        """Connect, and return or raise once the connection has ended."""
        self._broken.clear()
        client = self._new_client()
        seconds = min(CONNECT_SECONDS, self.timeout or CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds) as deadline, client:
                listed = await listing.list_tools(self.name, client, mask=self.mask)
                deadline.reschedule(None)
                await self._check_pins(listed)
                async with health.checker(self._settings.transport, client) as check:  # now: a token file may vanish
                    self._backoff = self._least_backoff = FIRST_BACKOFF
                    self.calls.record_answer()
                    self._update_tools(listed)
                    await self._publish(client)
                    self.tried.set()
                    try:
                        async with asyncio.TaskGroup() as group:
                            relisting = group.create_task(self._relist_repeatedly(client))
                            await self._watch(client, check)
                            relisting.cancel()
                    finally:
                        self.report_broken(client)
        except Exception as error:
            if reason := wire.closing_reason(client):
                raise ConnectionError(reason) from error
            if deadline.expired():
                raise TimeoutError(f"it did not answer within {seconds:g} s") from error
            raise
        finally:
            self._client = None

    async def _watch(self, client: mcp.Client, check: health.Check) -> None:
        """Return when the connection is reported as broken. Raises ConnectionError if checks find no server.

        A server that has answered, and then is silent twice, is withdrawn until it answers again. A child process that
        stays silent without calls counts as gone.
        """
        answers, silences = self.is_child, 0  # a child has answered; some remote servers do not know the request
        while not self._broken.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL):
                    await self._broken.wait()
            if self.calls.would_notice or self._broken.is_set():
                continue
            is_there = await health.check_unless(self._broken, check)
            if self.calls.would_notice or self._broken.is_set():
                continue
            answers, silences = answers or is_there is True, silences + 1 if is_there is None else 0
            if is_there is False:
                raise ConnectionError("no server answers at its address")
            if answers and silences >= health.SILENCES:
                gone = ConnectionError("it no longer answers")
                self._client = None
                self._record_loss(gone)
                self.calls.cancel_waits()
                if self.is_child and silences >= health.HUNG_SILENCES and not self.calls.in_flight:
                    raise gone
            elif is_there and self._client is None and self.is_child:
                await self._publish(client)
            elif is_there and self._client is None and not self.calls.in_flight:
                return  # it may have lost our session

    async def _check_pins(self, listed: listing.ToolList) -> None:
        """Stop tools that differ from their pins. Wait until the pins can be read: before that no tool is called."""
        while True:
            try:
                listed.stop(await self._pins.stopped(listed.hashes))
            except errors.TemporaryError as error:
                self.problem = f"is connected, but its tools cannot be compared with their pins yet: {error}"
                self.tried.set()
                await asyncio.sleep(PINS_SECONDS)
            else:
                return

    async def _relist_repeatedly(self, client: mcp.Client) -> None:
        """List its tools at intervals, and after an announced change.

        Without a usable answer the former tools stay, because checks notice the end of a server.
        """
        while True:
            await asyncio.sleep(RELIST_LEAST)
            with suppress(TimeoutError):
                async with asyncio.timeout(RELIST_SECONDS):
                    await self._relist_requested.wait()
            self._relist_requested.clear()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    listed = await listing.list_tools(self.name, client, mask=self.mask)
                    listed.stop(await self._pins.stopped(listed.hashes))
            except listing.TooLongError as error:
                log.warning("tools of %s not listed: %s", self.name, error, extra={"action": "mcp_relist"})
                await asyncio.sleep(RELIST_SECONDS)
            except (mcp.MCPError, RuntimeError, ValueError, TimeoutError, errors.TemporaryError) as error:
                log.info("tools of %s not listed: %s", self.name, type(error).__name__, extra={"action": "mcp_relist"})
            else:
                self._update_tools(listed)

    def relist(self) -> None:
        """List the server's tools again soon, because an admin may have accepted a change."""
        self._relist_requested.set()

    async def _on_message(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.relist()

    def facts(self) -> Iterator[component_states.ComponentState]:
        """Yield the server's state, and its tools."""
        detail = component_states.Server(
            problem=self.problem,
            missing=self.tools_problem,
            tools=len(self.tools),
            stopped=tuple(component_states.StoppedTool(**asdict(tool)) for tool in self.stopped.values()),
        )
        yield component_states.ComponentState(
            kind="server", name=self.name, state=self.state.state, since=self.state.since, detail=detail
        )
        if self._tools_fact is not None:
            yield self._tools_fact

    def _update_tools(self, listed: listing.ToolList) -> None:
        """Replace the server's tools, and log a new problem with them."""
        is_new = listed.problem != self.tools_problem
        self.tools, self.tools_problem, self.stopped = listed.tools, listed.problem, listed.stopped
        self._tools_fact = listing.tools_fact(self.name, listed, before=self._tools_fact)
        if listed.problem and is_new:
            names = ", ".join(listed.left_out[:NAMES_MAX])
            log.warning(
                "%s %s", self.name, listed.problem, extra={"action": "mcp_tools", "server": self.name, "names": names}
            )

    async def _publish(self, client: mcp.Client) -> None:
        """Make the client available to callers."""
        async with self._changed:
            self._client, self.problem = client, ""
            self.state.change("connected")
            self._changed.notify_all()
        log.info("connected", extra={"action": "mcp_connected", "server": self.name, "tools": len(self.tools)})

    def _new_client(self) -> mcp.Client:
        match self._settings.transport:
            case server_transports.StdioTransport() as local:
                child = stdio.Stdio(
                    local.command,
                    local.args,
                    environment=local.env,
                    standard_error=self._standard_error,
                    reports=self.reports,
                    ended=self._on_end,
                )
                return mcp.Client(child, cache=None, message_handler=self._on_message)
            case server_transports.HTTPTransport() as remote:
                http = streamable.client(remote, reports=self.reports)
                return mcp.Client(http, cache=None, message_handler=self._on_message)
            case server_transports.SSETransport() as remote:
                events = sse.SSE(remote, reports=self.reports, ended=self._on_end)
                return mcp.Client(events, mode="legacy", cache=None, message_handler=self._on_message)
