"""kopf as a watcher, in a thread of its own with its own event loop: its handlers only pass on a key.

There are no finalizers, annotations, daemons or peering: kopf writes nothing to the cluster. The consumer of a key
reads the object and the store, and decides. Every replica watches.

kopf begins with a list, without the ended investigations, and then watches all of them, by their metadata. (The list is
not one of metadata: that has `null` for no items, which ends kopf.) A selector of kopf's own would also exclude ended
investigations from the watch, and so the changes of their time to live.

Each namespace has watches of its own, so a namespace in which the operator lacks a right holds up no other. One that
does not exist is watched as well, and is served when it appears.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
import kopf
import yarl

from tarsy.kube import client, discovery, objects
from tarsy.resources import base, chains, investigations, namespaces
from tarsy.telemetry import component_states

RETRY_SECONDS = 1.0
REFUSED_SECONDS = 5.0
"""The pause between two requests of a watch that the API server refuses for lack of a right."""
FAILED_SECONDS = 10.0
"""The longest wait for the end of kopf's thread after one of kopf's tasks has failed: others may hang then."""
CUT_SECONDS = 10.0
"""Time without a watch that counts as an interruption.

A watch that ends regularly is open again after a tenth of a second; one whose API server restarts, after a few seconds.
"""
LOGGED_SECONDS = 60.0
"""Seconds between two logged failures of kopf's requests: in an outage each watch fails each second."""
_IDENTITY: Any = "tarsy"  # kopf's default needs a user name, which a container may not have

log = logging.getLogger(__name__)


class _BoundedLog(logging.Filter):
    """Drops the records of failed requests but for one in LOGGED_SECONDS. It is used in kopf's thread alone."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0
        """The number of records that were dropped since the last one that was not."""
        self._next_at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if not record.getMessage().startswith("Request attempt "):
            return True
        if time.monotonic() < self._next_at:
            self.dropped += 1
            return False
        if self.dropped:
            record.msg, record.args = f"{record.getMessage()} ({self.dropped} such lines were left out before)", ()
        self.dropped, self._next_at = 0, time.monotonic() + LOGGED_SECONDS
        return True


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An event of the watch: an object in its present generation, or its deletion."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleted: bool = False


class WatchError(Exception):
    """The watch has ended, or has not begun; the process must end as well."""


@dataclass(frozen=True, kw_only=True)
class _Watched:
    """A kind in a namespace: the object of one watch."""

    namespace: str
    plural: str

    @classmethod
    def by(cls, url: yarl.URL) -> _Watched:
        """Return what a request of kopf is about, by the end of its path: `.../namespaces/NAMESPACE/PLURAL`."""
        return cls(namespace=url.parts[-2] if len(url.parts) > 2 else "", plural=url.name)


class _OpenWatches:
    """Which kinds are watched now, in which namespaces, by the requests that kopf makes.

    A watch is open from its answer to its next request, which kopf makes at once when the watch has ended. kopf ends a
    silent watch after 70 s. A watch that is refused, outside of the operator's own namespace, counts neither as open
    nor as cut. Written in kopf's thread and read in the main thread, one value at a time.
    """

    def __init__(self, served: namespaces.Served, plurals: Iterable[str], *, opened: Callable[[], None]) -> None:
        self._own = served.own
        self._opened = opened
        """Called in kopf's thread each time that no watch is left to be opened."""
        keys = [_Watched(namespace=namespace, plural=plural) for plural in plurals for namespace in served]
        self._cut = dict.fromkeys(keys, -math.inf)
        """Monotonic seconds; `math.inf` while a watch is open."""
        self._refused = dict.fromkeys(keys, False)

    def __contains__(self, watched: _Watched) -> bool:
        return watched in self._cut

    def cut_for(self) -> float:
        """Return for how many seconds a kind has not been watched in a namespace; 0 while all are."""
        counted = [
            cut for watched, cut in self._cut.items() if watched.namespace == self._own or not self._refused[watched]
        ]
        return max(0.0, time.monotonic() - min(counted))

    def refuse(self, watched: _Watched) -> bool:
        """Note that a watch is refused; return whether that is new."""
        is_new = not self._refused[watched]
        self._refused[watched] = True
        self._report()
        return is_new

    def refused(self) -> set[str]:
        """Return the namespaces, but for the operator's own, in which a watch is refused."""
        return {watched.namespace for watched, refused in self._refused.items() if refused} - {self._own}

    def tracing(self) -> aiohttp.TraceConfig:
        """Return the trace configuration for the HTTP session of kopf."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._on_request)
        trace.on_request_end.append(self._answered)
        return trace

    async def _on_request(self, _session: object, _context: object, request: aiohttp.TraceRequestStartParams) -> None:
        watched = _Watched.by(request.url)
        if self._cut.get(watched) == math.inf:
            self._cut[watched] = time.monotonic()

    async def _answered(self, _session: object, _context: object, request: aiohttp.TraceRequestEndParams) -> None:
        watched = _Watched.by(request.url)
        if watched in self._cut and "watch" in request.url.query and request.response.ok:
            self._cut[watched] = math.inf
            if self._refused[watched]:
                self._refused[watched] = False
                fields = {"kind": watched.plural, "namespace": watched.namespace}
                log.info("the watch is no longer refused", extra={"action": "watch_granted", **fields})
            self._report()

    def _report(self) -> None:
        if self.cut_for() == 0:
            self._opened()


class Watcher:
    """Watches the served namespaces; the callbacks are called on the event loop that created the watcher."""

    def __init__(
        self,
        cluster: client.Cluster,
        *,
        investigation_seen: Callable[[Seen], None],
        chain_seen: Callable[[Seen], None],
    ) -> None:
        self._cluster = cluster
        self._callbacks = {investigations.PLURAL: investigation_seen, chains.PLURAL: chain_seen}
        self._main = asyncio.get_running_loop()
        self.opened = asyncio.Event()
        """Set when all kinds are watched for the first time, but for watches that are refused."""
        self.lists = dict.fromkeys(cluster.served, 0)
        """How often the watch of investigations has begun with a list, which leaves out ended ones, by namespace."""
        self._open_watches = _OpenWatches(
            cluster.served, self._callbacks, opened=lambda: self._on_main(self.opened.set)
        )
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._standing = component_states.StateTracker("opening")
        self._refusals: dict[str, component_states.StateTracker] = {}
        """The states of the namespaces in which a watch is refused."""

    async def run(self) -> None:
        """Watch until cancelled. Raises WatchError when kopf ends by itself."""
        await self._wait_for_kinds()
        thread = threading.Thread(target=self._thread, name="kopf", daemon=True)
        thread.start()
        try:
            await self._ended.wait()
        finally:
            self._stopping = True  # before `_loop` is read: the thread sets `_loop` and then reads this flag
            if self._loop is not None and self._stop is not None:
                with suppress(RuntimeError):  # kopf has ended by itself, and its loop is closed
                    self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, FAILED_SECONDS if self._error else None)
        raise WatchError("kopf ended by itself") from self._error

    async def _wait_for_kinds(self) -> None:
        """Wait until both kinds are served: kopf looks for them once, when it starts."""
        reported = ""
        while True:
            try:
                if not await discovery.unserved_kinds(self._cluster):
                    return
                why = f"the API server does not serve the kinds of {base.API_VERSION}: apply crds/"
            except (client.ClusterDownError, objects.RefusedError) as error:
                why = str(error)
            if why != reported:  # log it once, not with each attempt
                log.warning("not watching yet: %s", why, extra={"action": "watch_waits"})
            reported = why
            await asyncio.sleep(RETRY_SECONDS)

    def cut_for(self) -> float:
        """Return for how many seconds a kind has not been watched; infinite before all were for the first time."""
        return self._open_watches.cut_for()

    def is_cut(self) -> bool:
        """Return whether the watch is interrupted, for longer than the pause between two watches."""
        return self.cut_for() >= CUT_SECONDS

    def facts(self) -> Iterator[component_states.ComponentState]:
        """Yield the state of the watch (opening, open or cut), and the namespaces in which it is refused."""
        if not self.is_cut():
            self._standing.change("open")
        elif self._standing.state == "open":
            self._standing.change("cut")
            self._standing.since -= timedelta(seconds=self.cut_for())
        yield component_states.ComponentState(
            kind="watch",
            name=self._cluster.served.own,
            state=self._standing.state,
            since=self._standing.since,
            detail=component_states.Watch(),
        )
        self._refusals = {
            namespace: self._refusals.get(namespace) or component_states.StateTracker("refused")
            for namespace in sorted(self._open_watches.refused())
        }
        for namespace, refusal in self._refusals.items():
            yield component_states.ComponentState(
                kind="watch",
                name=namespace,
                state=refusal.state,
                since=refusal.since,
                detail=component_states.Watch(),
            )

    def _on_main(self, call: Callable[[], None]) -> None:
        # Empty, because the default would copy this thread's context variables into the main loop's tasks.
        self._main.call_soon_threadsafe(call, context=Context())

    def _thread(self) -> None:
        try:
            asyncio.run(self._operator())
        except Exception as error:  # noqa: BLE001 - carried to the main loop, which ends the process
            self._error = error
        finally:
            self._on_main(self._ended.set)

    async def _operator(self) -> None:
        logging.getLogger(_REQUESTS_LOGGER).addFilter(_bounded_log)  # adding it again has no effect
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            return
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=_settings(),
            namespaces=list(self._cluster.served),
            standalone=True,
            identity=_IDENTITY,
            stop_flag=self._stop,
        )
        for task in tasks:
            task.add_done_callback(self._report_failure)
        await kopf.run_tasks(tasks)

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        """End the watch if one of kopf's tasks has failed; kopf may wait for ever for its other watches then."""
        if not task.cancelled() and (error := task.exception()):
            self._error = error
            self._on_main(self._ended.set)

    async def _narrow(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Send a request of kopf, narrowed to the metadata, or to the investigations that have not ended."""
        watched, query = _Watched.by(request.url), request.url.query
        if watched not in self._open_watches:
            return await _json_answer(request, send)
        if "watch" in query:
            request.headers["Accept"] = objects.METADATA
            return await self._once_granted(watched, request, send)
        if watched.plural != investigations.PLURAL:
            return await self._once_granted(watched, request, send)
        request.url = request.url.update_query(fieldSelector=investigations.UNFINISHED)
        response = await self._once_granted(watched, request, send)
        if response.ok and "continue" not in query:
            self.lists[watched.namespace] += 1
        return response

    async def _once_granted(
        self, watched: _Watched, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request for one of the two kinds, and repeat it while a right is missing (403).

        kopf would ask each second, and log each answer.
        """
        while (response := await _once_served(request, send)).status == HTTPStatus.FORBIDDEN:
            response.release()
            if self._open_watches.refuse(watched):
                fields = {"kind": watched.plural, "namespace": watched.namespace}
                log.warning("the watch is refused: its right is missing", extra={"action": "watch_refused", **fields})
            is_own = watched.namespace == self._cluster.served.own
            await asyncio.sleep(RETRY_SECONDS if is_own else REFUSED_SECONDS)
        if response.status == HTTPStatus.GONE and "continue" in request.url.query:
            response.release()
            raise aiohttp.ClientPayloadError("the list has expired between two pages")  # kopf lists again
        return response

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: object) -> kopf.AiohttpSession:
            credentials = await self._cluster.credentials()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=credentials.as_ssl_context()),
                headers=credentials.as_http_headers(),
                proxy=self._cluster.configuration.proxy,
                trace_configs=[self._open_watches.tracing()],
                middlewares=[self._narrow],
            )
            return kopf.AiohttpSession(
                server=credentials.server,
                aiohttp_session=session,
                default_namespace=credentials.default_namespace,
                expiration=credentials.expiration,
            )

        @kopf.on.event(base.GROUP, base.VERSION, investigations.PLURAL, registry=registry)
        @kopf.on.event(base.GROUP, base.VERSION, chains.PLURAL, registry=registry)
        async def event(event: kopf.RawEvent, resource: kopf.Resource, **_: object) -> None:
            metadata: Any = event["object"]["metadata"]
            seen = Seen(
                namespace=metadata["namespace"],
                name=metadata["name"],
                uid=metadata["uid"],
                generation=metadata["generation"],
                deleted=event["type"] == "DELETED",
            )
            self._on_main(functools.partial(self._callbacks[resource.plural], seen))

        return registry


async def _once_served(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request for one of the two kinds, and repeat it while the kind is not served.

    After a 404, as when the CRD is deleted, kopf would wait for ever for another watch of its own.
    """
    is_logged = False
    while (response := await _json_answer(request, send)).status == HTTPStatus.NOT_FOUND:
        response.release()
        if not is_logged:
            log.warning("%s are no longer served", request.url.name, extra={"action": "watch_waits"})
        is_logged = True
        await asyncio.sleep(RETRY_SECONDS)
    return response


async def _json_answer(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request. An answer that is not the API server's, such as a proxy's page, counts as a lost connection.

    kopf repeats a request whose connection is lost, and ends after most other errors.
    """
    try:
        response = await send(request)
    except aiohttp.ClientResponseError as error:
        raise aiohttp.ClientConnectionError("the answer is not HTTP") from error
    if response.content_type != "application/json" and response.status not in _PLAIN:
        response.release()
        raise aiohttp.ClientConnectionError(f"the answer {response.status} is not JSON")
    return response


_PLAIN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND)
"""The statuses whose answers need not be JSON: kopf logs in again, or the path is not served."""

_REQUESTS_LOGGER = "kopf._cogs.clients.watching"
_bounded_log = _BoundedLog()


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.chunk_size = 50  # a page of 500 large objects takes 128 MB
    settings.watching.server_timeout = 600
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # After the last backoff of a finite list the watch would end, and with it the process.
    settings.networking.error_backoffs = itertools.repeat(RETRY_SECONDS)
    settings.queueing.idle_timeout = 1.0
    return settings
