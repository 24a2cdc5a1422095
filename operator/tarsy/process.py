"""One operator process: build the parts, start them, supervise them, stop them.

Two groups of tasks: the ground (database hints, leases, tools) and the roles that stand on it (controller, worker,
api). Roles stop first, so that runs can still give their claims back. If a part ends by itself, in whatever way, the
process ends: an operator that has silently lost a part is worse than one that restarts.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

import aiohttp

from tarsy.api import app, health
from tarsy.api.live import hub as hubs
from tarsy.config import check, confidential, load, platform, settings, shown
from tarsy.controller import chains, duties, investigations, projector
from tarsy.kube import client, watch
from tarsy.llm import registry
from tarsy.masking import given, masker
from tarsy.store import database as databases
from tarsy.store import keeper, live, notify
from tarsy.store import throttle as throttles
from tarsy.telemetry import standing
from tarsy.transcript import ports, record
from tarsy.worker import claimer, lease, run

if TYPE_CHECKING:
    from tarsy.tools import pool as pools

RECONCILERS = 4
WATCHERS = 2
"""Connections for single statements of what is watched; it has its own, so that who watches makes nobody wait."""
COLLECTED_AFTER = 20_000
"""Containers made and not freed since the last look for cycles. Python's own 700 are reached once an iteration."""
FIRST_SECONDS = 1.0
"""For so long what answers to the outside comes first."""
ALERT_MASKER = masker.InForce(platform.AlertMasking().masker())
"""What every alert goes through before it is stored or sent."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The process cannot start as it was told to; the message says why."""


class PartEndedError(Exception):
    """A part of the process has ended, which none may."""


Part = Callable[[], Coroutine[Any, Any, None]]


async def operator(process: settings.Settings) -> None:
    """Run an operator process until SIGTERM or SIGINT; a second signal ends it at once.

    A StartError says why it cannot start.
    """
    with _start_errors():
        loaded = load.as_written(process.platform_file)
    running = asyncio.create_task(_run(process, loaded))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, running)
    with suppress(asyncio.CancelledError):
        await running
    log.info("stopped", extra={"action": "stopped"})


async def migrate(url: str) -> None:
    """Bring the database at `url` to the newest schema; a StartError says why it cannot be done."""
    database = databases.Database(url)
    try:
        with _start_errors():
            await database.migrate()
    finally:
        await database.close()


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """An MCP server that was tried once."""

    name: str
    problem: str
    """Why it cannot be used, or what is missing of its tools; "" where nothing is."""
    is_connected: bool
    tools: tuple[str, ...]


async def servers(loaded: platform.Platform) -> list[ServerReport]:
    """Connect to each MCP server of the platform file once, as a worker does, and list its tools."""
    from tarsy.tools import pool

    tools = pool.Pool(loaded)
    async with asyncio.TaskGroup() as group:
        connecting = group.create_task(tools.run())
        await tools.settled()
        facts = list(tools.facts())
        connecting.cancel()
    offered = {fact.name: fact.detail["tools"] for fact in facts if fact.kind == "tools"}
    return [
        ServerReport(
            name=fact.name,
            problem=fact.detail["problem"] or fact.detail["missing"],
            is_connected=fact.state == "connected",
            tools=tuple(tool["name"] for tool in offered.get(fact.name, ())),
        )
        for fact in facts
        if fact.kind == "server"
    ]


@contextmanager
def _start_errors() -> Iterator[None]:
    try:
        yield
    except (load.ConfigError, databases.SchemaError, databases.StoreDownError, client.ConfigError, OSError) as error:
        raise StartError(str(error)) from error


def mask_by(loaded: platform.Platform) -> None:
    """Mask from now on as that platform file says, and what this process was given wherever it turns up."""
    ALERT_MASKER.replace(loaded.defaults.alert_masking.masker())
    given.KNOWN.replace(confidential.values(loaded, os.environ), pepper=confidential.pepper(os.environ))


def _stop(running: asyncio.Task[None]) -> None:
    if running.cancelling():
        os._exit(1)
    running.cancel()


async def _run(process: settings.Settings, read: load.Loaded) -> None:
    loaded = read.platform
    mask_by(loaded)
    async with AsyncExitStack() as stack:
        database = databases.Database(process.database_url)
        stack.push_async_callback(database.close)
        unusable = registry.unusable(loaded, environment=os.environ)
        for name, why in unusable.items():
            if not registry.is_worth_telling(name, loaded):
                continue
            log.warning("llm_providers.%s cannot be used: %s", name, why, extra={"action": "provider_unusable"})
        index = functools.partial(check.ChainIndex, platform=loaded, unusable_providers=unusable)
        owner = uuid.uuid4()
        parts = _Parts(
            process=process,
            platform=loaded,
            index=index,
            unusable=unusable,
            database=database,
            stack=stack,
            owner=owner,
            kept=_keeper(
                process, loaded, database=database, owner=owner, written=shown.of(read.written, used=read.used)
            ),
        )
        with _start_errors():
            await database.check_schema()
            if process.serves("worker"):
                parts.worker()
            if process.serves("controller") or process.serves("api"):
                cluster = await client.connect(process.kubeconfig)
                stack.push_async_callback(cluster.close)
                if process.serves("controller"):
                    parts.controller(cluster)
                if process.serves("api"):
                    parts.api(cluster)
        await parts.run()


@dataclass(kw_only=True)
class _Parts:
    """The parts of this process, as its roles need them."""

    process: settings.Settings
    platform: platform.Platform
    index: check.Indexer
    unusable: Mapping[str, str]
    """The providers that cannot be used, and why."""
    database: databases.Database
    stack: AsyncExitStack
    owner: uuid.UUID
    """This process, to the leases; random, because a pod's name may be used again."""
    kept: keeper.Keeper
    ground: list[Part] = field(default_factory=list)
    roles: list[Part] = field(default_factory=list)
    watcher: watch.Watcher | None = None
    reconciler: investigations.Reconciler | None = None

    def worker(self) -> None:
        """Claim and run investigations, once models and tools are there."""
        queue = self.platform.queue
        lease_manager = lease.LeaseManager(self.process.database_url, lease=queue.lease, heartbeat=queue.heartbeat)
        equipped: asyncio.Future[tuple[registry.Models, pools.Pool]] = asyncio.get_running_loop().create_future()
        speaker = live.Speaker(self.database)
        claims: claimer.Claimer | None = None

        def hint(payload: str) -> bool:
            return claims is not None and claims.hint(payload)  # it looks for work when it begins

        async def equip() -> None:
            if self.watcher is not None:  # first things first: whoever imports keeps everybody else waiting
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.watcher.opened.wait(), FIRST_SECONDS)
            http = await self.stack.enter_async_context(registry.session())
            throttle = throttles.Throttle(self.database, self.platform.llm_providers)
            models, tools = await asyncio.to_thread(_equipment, self.platform, http, throttle)
            self.stack.push_async_callback(models.close)
            _keep_for_good()
            self.kept.hear(tools.facts)
            self.kept.hear(lambda: models.facts(self.unusable))
            equipped.set_result((models, tools))
            await tools.run()

        async def work() -> None:
            nonlocal claims
            models, tools = await equipped
            await tools.settled()
            runtime = ports.Runtime(
                platform=self.platform,
                model=models.__getitem__,
                toolbox=tools.toolbox,
                watched=speaker.turn,
                is_usable=lambda name: name not in self.unusable,
            )
            supervisor = run.Supervisor(
                database=self.database,
                runtime=runtime,
                lease_manager=lease_manager,
                max_attempts=queue.max_attempts,
                moved=speaker.moved,
            )
            claims = claimer.Claimer(
                supervisor, database=self.database, lease_manager=lease_manager, owner=self.owner, queue=queue
            )
            await claims.run()

        self.hear({notify.WORK: hint, notify.CANCEL: lease_manager.hint, live.WATCHING: speaker.hint})
        self.ground += [equip, lease_manager.run, speaker.run]
        self.roles.append(work)

    def controller(self, cluster: client.Cluster) -> None:
        """Admit what appears in the cluster, and show there what the store knows."""
        self.reconciler = reconciler = investigations.Reconciler(
            cluster=cluster, database=self.database, index=self.index, mask=ALERT_MASKER.text, workers=RECONCILERS
        )
        conditions = chains.Reconciler(cluster=cluster, database=self.database, index=self.index, owner=self.owner)
        self.watcher = watcher = watch.Watcher(
            cluster, namespace=cluster.namespace, investigation_seen=reconciler.seen, chain_seen=conditions.seen
        )
        self.kept.hear(watcher.facts)
        projection = projector.Projector(cluster=cluster, database=self.database)
        due = duties.Duties(
            cluster=cluster,
            database=self.database,
            reconciler=reconciler,
            owner=self.owner,
            dedup_window=self.platform.ingest.dedup_window,
            watch_lists=lambda: watcher.lists,
        )
        self.hear({notify.STATUS: projection.hint})
        self.roles += [reconciler.run, conditions.run, self.watcher.run, projection.run, due.run]

    def api(self, cluster: client.Cluster) -> None:
        """Serve HTTP."""
        readiness = health.Readiness(
            roles=self.process.roles, database=self.database, cluster=cluster, watcher=self.watcher
        )
        watched = databases.Database(self.process.database_url, pool_size=WATCHERS)
        self.stack.push_async_callback(watched.close)
        hub = hubs.Hub(watched)

        def look(_: str) -> bool:
            hub.look()
            return self.process.serves("controller")  # if not, there is one elsewhere

        application = app.build(
            app.Parts(
                cluster=cluster,
                database=self.database,
                platform=self.platform,
                index=self.index,
                mask=ALERT_MASKER.text,
                readiness=readiness,
                keeper=self.kept,
                hub=hub,
                token=self.process.webhook_token,
                admitted=self.reconciler.made if self.reconciler else None,
            )
        )
        host, port = self.process.listen_host, self.process.listen_port
        try:
            bound = app.bind(host, port)
        except OSError as error:
            raise StartError(f"--listen: {host}:{port}: {error.strerror}") from error
        self.stack.callback(bound.close)
        log.info("listening on %s:%s", *bound.getsockname()[:2], extra={"action": "listening"})
        self.hear({live.SAID: hub.hint, notify.STATUS: look})
        self.roles += [
            lambda: app.serve(application, bound, readiness=readiness, settings=self.platform.api),
            hub.run,
        ]

    def hear(self, hints: Mapping[str, Callable[[str], bool]]) -> None:
        """Have hints told, from this process and from others; beside those who are told of them already."""
        for channel, hint in hints.items():
            known = self.database.hinted.get(channel)
            self.database.hinted[channel] = notify.both(known, hint) if known else hint

    async def run(self) -> None:
        """Run all parts until cancelled."""
        if not self.process.serves("worker"):
            _keep_for_good()
        listener = notify.Listener(self.process.database_url, self.database.hinted)
        await supervise(ground=[listener.run, self.kept.run, *self.ground], roles=self.roles)


def _keeper(
    process: settings.Settings,
    loaded: platform.Platform,
    *,
    database: databases.Database,
    owner: uuid.UUID,
    written: shown.Shown,
) -> keeper.Keeper:
    """What tells others of this process, and of its configuration."""
    detail = {
        "roles": list(process.roles),
        "version": metadata.version("tarsy"),
        "build": record.build(),
        "slots": loaded.queue.slots if process.serves("worker") else 0,
    }
    kept = keeper.Keeper(
        database,
        process=owner,
        host=socket.gethostname(),
        detail=detail,
        mask=lambda text: ALERT_MASKER.text(written.without(text)),
    )
    configuration = standing.Fact(
        kind="configuration",
        name="platform",
        state=written.digest,
        since=datetime.now(UTC),
        detail={"written": written.written},
    )
    kept.hear(lambda: [configuration])
    return kept


def _equipment(
    settings: platform.Platform, http: aiohttp.ClientSession, throttle: ports.Throttle
) -> tuple[registry.Models, pools.Pool]:
    """The models and tools. Their SDKs take a second to import, for which nothing else of the process has to wait."""
    gc.disable()  # as while a command is imported; for everybody, but not for long
    try:
        from tarsy.tools import pool

        models = registry.build(settings, environment=os.environ, http=http, throttle=throttle)
        return models, pool.Pool(settings)
    finally:
        gc.enable()


def _keep_for_good() -> None:
    """Take what was imported and built for good out of the garbage collector's sight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])


async def supervise(*, ground: Iterable[Part], roles: Iterable[Part]) -> None:
    """Run all parts until cancelled; `roles` stop before the `ground` they stand on.

    A part that ends by itself ends them all: with its error, or with a PartEndedError where it had none.
    """
    async with asyncio.TaskGroup() as below:
        for part in ground:
            below.create_task(_endless(part))
        async with asyncio.TaskGroup() as above:
            for part in roles:
                above.create_task(_endless(part))


async def _endless(part: Part) -> None:
    await part()
    raise PartEndedError(f"{getattr(part, '__qualname__', part)} ended by itself")
