"""One operator process: answer, wait for what is needed, build the parts, start them, supervise them, stop them.

It answers HTTP before anything else is there, whatever its roles: what it waits for is told by `/readyz`. The database
and the secrets have to be there before the parts are built; the parts themselves wait for the rest.

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
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tarsy.api import app, front, health, needs
from tarsy.api.live import hubs
from tarsy.config.load import loader, reload, server_files, settings
from tarsy.config.model import platforms, tool_filters
from tarsy.config.redact import known_secrets
from tarsy.config.tool_selection import grants, ineffective
from tarsy.controller import chains, duties, investigations, notices, projector
from tarsy.kube import client, rights, watch
from tarsy.llm import registry
from tarsy.masking import given, masker
from tarsy.process.runtime import clients, platform_file
from tarsy.store.base import databases, notify
from tarsy.store.fleet import pins, reporter, throttles
from tarsy.store.live import deltas
from tarsy.telemetry import details, standing
from tarsy.transcript import record
from tarsy.worker import claimer, leases, run

RECONCILERS = 4
WATCHERS = 2
"""Connections for single statements of live updates, apart from the others, so that viewers delay no work."""
COLLECTED_AFTER = 20_000
"""Containers made and not freed since the last look for cycles. Python's own 700 are reached once an iteration."""
FIRST_SECONDS = 1.0
"""For so long what answers to the outside comes first."""
MIGRATE_SECONDS = 1.0
"""Between two looks at a database that is to be migrated and is not there yet."""
ALERT_MASKER = masker.InForce(platforms.AlertMasking().masker())
"""The masking of every alert before it is stored or sent."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The process cannot start as it was told to; the message says why."""


class PartEndedError(Exception):
    """A part of the process has ended, which none may."""


Part = Callable[[], Coroutine[Any, Any, None]]
_NOT_YET = (settings.SecretError, databases.StoreDownError)


async def operator(process: settings.Settings) -> None:
    """Run an operator process until SIGTERM or SIGINT; a second signal ends it at once.

    A StartError says why it cannot start.
    """
    with _start_errors():
        watched = reload.Watch(process.platform_file, environment=os.environ, beside=_beside)
    running = asyncio.create_task(_run(process, watched))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, running)
    with suppress(asyncio.CancelledError):
        await running
    log.info("stopped", extra={"action": "stopped"})


async def migrate(url: settings.Secret, *, patience: float, waits: Callable[[str], None]) -> str:
    """Bring the database at `url` to the newest schema; a StartError says why it cannot be done.

    A newer version's that serves this one, too, stays as it is, and its revision is returned; else "". For `patience`
    seconds what is not there yet is waited for: the file with the URL, the server, the database and the way into it.
    `waits` is told what that is, whenever it is something else.
    """
    until = time.monotonic() + patience
    last_problem = ""
    while True:
        try:
            return await _migrate(url)
        except _NOT_YET as error:
            why = error.why if isinstance(error, databases.NotOpenError) else str(error)
            if time.monotonic() >= until:
                raise StartError(why) from error
            if why != last_problem:
                last_problem = why
                waits(last_problem)
        await asyncio.sleep(MIGRATE_SECONDS)


async def _migrate(url: settings.Secret) -> str:
    database = databases.Database(url.read(), statement_seconds=databases.MIGRATION_SECONDS)
    try:
        at = await database.migrate()
    except databases.SchemaError as error:
        raise StartError(str(error)) from error
    finally:
        await database.close()
    return "" if at == databases.NEWEST else at


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """An MCP server that was tried once."""

    name: str
    problem: str
    """Why it cannot be used, or what is missing of its tools; "" where nothing is."""
    is_connected: bool
    tools: tuple[str, ...]
    not_offered: tuple[str, ...]
    """A sentence for each group of tools that no agent is offered."""
    warnings: tuple[str, ...] = ()
    """The conflicts between the platform file and the tools: changed ones, and missing ones."""


async def servers(loaded: platforms.Platform) -> tuple[list[ServerReport], list[str]]:
    """Connect to each MCP server of the platform file once, as a worker does, and list its tools.

    Beside what is found: what of the choices of the file's agents fits none of them, a sentence each.
    """
    from tarsy.tools.servers import pool

    tools = pool.Pool(loaded)
    async with asyncio.TaskGroup() as group:
        connecting = group.create_task(tools.run())
        await tools.tools.settled()
        facts = list(tools.facts())
        connecting.cancel()
    tools_by_server = {
        fact.name: tool_filters.tools_from_detail(fact.detail)
        for fact in facts
        if isinstance(fact.detail, details.Tools)
    }
    of_servers = (fact for fact in facts if fact.kind == "server")
    reports = [_report(fact, tools_by_server.get(fact.name, ()), loaded.mcp_servers[fact.name]) for fact in of_servers]
    return reports, list(ineffective.unfit_in_file(loaded, tools_by_server))


def _report(fact: standing.Fact, tools: Sequence[tool_filters.Tool], settings: platforms.MCPServer) -> ServerReport:
    assert isinstance(fact.detail, details.Server)  # noqa: S101 - its kind
    stopped, is_connected = fact.detail.stopped, fact.state == "connected"
    names = {*(tool.name for tool in tools), *(stopped_tool.tool for stopped_tool in stopped)}
    differing = (
        tool_filters.differs(stopped_tool.written, says=stopped_tool.pinned, offered=stopped_tool.offered)
        for stopped_tool in stopped
    )
    return ServerReport(
        name=fact.name,
        problem=fact.detail.problem or fact.detail.missing,
        is_connected=is_connected,
        tools=tuple(tool.name for tool in tools),
        not_offered=tuple(grants.of_tools(tools, settings, server=fact.name)),
        warnings=(*differing, *(grants.of_names(names, settings, server=fact.name) if is_connected else ())),
    )


def _beside(loaded: platforms.Platform) -> set[Path]:
    """The files that a platform file names, and that are looked at with it."""
    token = loaded.runbooks.token_file
    return registry.key_files(loaded, os.environ) | server_files.all_files(loaded) | ({token} if token else set())


@contextmanager
def _start_errors() -> Iterator[None]:
    try:
        yield
    except (loader.ConfigError, client.ConfigError, OSError) as error:
        raise StartError(str(error)) from error


def mask_by(loaded: platforms.Platform) -> None:
    """Mask from now on as that platform file says, and what this process was given wherever it turns up."""
    ALERT_MASKER.replace(loaded.defaults.alert_masking.masker())
    given.KNOWN.replace(known_secrets.values(loaded, os.environ))


async def _prepare_masking(next_in_force: platforms.Platform, _: platform_file.Unusable) -> platform_file.Prepared:
    """Mask by the next platform already now: what its new servers and providers say may have its secrets in it."""
    await asyncio.to_thread(mask_by, next_in_force)
    return platform_file.Prepared(exchange=lambda: None)


def _stop(running: asyncio.Task[None]) -> None:
    if running.cancelling():
        os._exit(1)
    running.cancel()


async def _run(process: settings.Settings, watched: reload.Watch) -> None:
    mask_by(watched.loaded.platform)
    async with AsyncExitStack() as stack:
        # Keys and packages may be the workers' alone: no other process looks for them.
        judge = functools.partial(registry.unusable, environment=os.environ)
        in_force = platform_file.PlatformFile(watched, unusable=judge if process.serves("worker") else lambda _: {})
        early = await _answer(process, in_force, stack)
        async with asyncio.TaskGroup() as group:
            served = group.create_task(_endless(lambda: _held(asyncio.shield(early.serving))))
            database, token = await _wait(process, early, stack)
            served.cancel()
        await asyncio.to_thread(mask_by, in_force.platform)  # with the secrets that were waited for
        given.KNOWN.season(await asyncio.to_thread(known_secrets.pepper, os.environ))
        in_force.prepare(_prepare_masking)
        _tell_unusable(in_force)
        in_force.follow(functools.partial(_tell_unusable, in_force))
        owner = uuid.uuid4()
        parts = _Parts(
            process=process,
            in_force=in_force,
            database=database,
            early=early,
            stack=stack,
            owner=owner,
            kept=_keeper(process, in_force, database=database, owner=owner),
        )
        if process.serves("worker"):
            parts.worker()
        if early.cluster and process.serves("controller"):
            parts.controller(early.cluster)
        if early.cluster and process.serves("api"):
            parts.api(early.cluster, token=token)
        await parts.run()


@dataclass(frozen=True, kw_only=True)
class _Early:
    """The parts that exist before any connection."""

    readiness: health.Readiness
    front: front.Front
    serving: asyncio.Task[None]
    cluster: client.Cluster | None
    """None where no role of the process asks an API server."""


async def _answer(process: settings.Settings, in_force: platform_file.PlatformFile, stack: AsyncExitStack) -> _Early:
    """Begin to answer whether the process lives, and whether it is ready, which it is not."""
    readiness = health.Readiness(process.roles, notes=in_force.notes)
    cluster = None
    if process.serves("controller") or process.serves("api"):
        with _start_errors():
            cluster = await client.connect(process.kubeconfig)  # it reads files, and makes no calls
        stack.push_async_callback(cluster.close)
    host, port = process.listen_host, process.listen_port
    try:
        bound = app.bind(host, port)
    except OSError as error:
        raise StartError(f"--listen: {host}:{port}: {error.strerror}") from error
    stack.callback(bound.close)
    answers = front.Front(app.probes(readiness), more_comes=process.serves("api"))
    serving = asyncio.create_task(app.serve(answers, bound, readiness=readiness, settings=in_force.platform.api))
    stack.push_async_callback(_end, serving)
    log.info("listening on %s:%s", *bound.getsockname()[:2], extra={"action": "listening"})
    return _Early(readiness=readiness, front=answers, serving=serving, cluster=cluster)


async def _held(task: asyncio.Future[None]) -> None:
    """Stand for that task: it ends with its caller, and its end ends the caller."""
    await task


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _wait(
    process: settings.Settings, early: _Early, stack: AsyncExitStack
) -> tuple[databases.Database, str | None]:
    """Wait for the secrets and the database, and say what else is missing; the database, and the webhook's token."""
    database: databases.Database | None = None
    url = needs.Secret(process.database_url, needed_by=needs.EVERYBODY)
    token = needs.Secret(process.webhook_token, needed_by=("api",)) if process.webhook_token else None
    wanted: list[needs.Need] = [url, *([token] if token else []), needs.Database(lambda: database)]
    for need in wanted:
        early.readiness.want(need)
    if early.cluster:
        needed = rights.needed(process.roles, asks_who_calls=token is not None, deployment=process.deployment)
        early.readiness.want(needs.Cluster(early.cluster, needed))
    await early.readiness.provided(url)
    database = databases.Database(url.value)
    stack.push_async_callback(database.close)
    await early.readiness.provided(*wanted)
    return database, token.value if token else None


@dataclass(kw_only=True)
class _Parts:
    """The parts of this process, as its roles need them."""

    process: settings.Settings
    in_force: platform_file.PlatformFile
    database: databases.Database
    early: _Early
    stack: AsyncExitStack
    owner: uuid.UUID
    """This process, to the leases; random, because a pod's name may be used again."""
    kept: reporter.Keeper
    equipped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once models and tools are there, where they are wanted."""
    ground: list[Part] = field(default_factory=list)
    roles: list[Part] = field(default_factory=list)
    watcher: watch.Watcher | None = None
    reconciler: investigations.Reconciler | None = None

    def worker(self) -> None:
        """Claim and run investigations, once models and tools are there."""
        queue = self.in_force.platform.queue
        lease_manager = leases.LeaseManager(self.database.url, lease=queue.lease, heartbeat=queue.heartbeat)
        speaker = deltas.Speaker(self.database)
        throttle = throttles.Throttle(self.database, {})
        equipped = clients.Clients(
            in_force=self.in_force,
            throttle=throttle,
            pins=pins.Pins(self.database),
            watched=speaker.open_stream,
            mask=ALERT_MASKER.text,
            loopback=self.process.insecure_dev,
        )
        claims: claimer.Claimer | None = None

        def hint(payload: str) -> bool:
            return claims is not None and claims.hint(payload)  # it looks for work when it begins

        def confirmed(_: str) -> bool:
            if self.equipped.is_set():
                equipped.pool.look_again()
            return False  # others have their own servers

        async def equip() -> None:
            if self.watcher is not None:  # in this order: an import blocks all other work
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.watcher.opened.wait(), FIRST_SECONDS)
            await equipped.begin(self.stack)
            _keep_for_good()
            self.kept.hear(equipped.facts)
            self.in_force.prepare(equipped.prepare)
            self.equipped.set()
            await equipped.run()

        async def work() -> None:
            nonlocal claims
            await self.equipped.wait()
            supervisor = run.Supervisor(
                database=self.database,
                runtime=await equipped.settled(),
                lease_manager=lease_manager,
                max_attempts=queue.max_attempts,
                moved=speaker.moved,
            )
            claims = claimer.Claimer(
                supervisor,
                database=self.database,
                lease_manager=lease_manager,
                owner=self.owner,
                queue=queue,
                eligible=equipped.eligible,
            )
            await claims.run()

        self.hear({notify.WORK: hint, notify.CANCEL: lease_manager.hint, deltas.WATCHING: speaker.hint})
        self.hear({pins.CHANGED: confirmed})
        self.ground += [equip, lease_manager.run, speaker.run]
        self.roles.append(work)

    def controller(self, cluster: client.Cluster) -> None:
        """Admit what appears in the cluster, and show there what the store knows."""
        self.reconciler = reconciler = investigations.Reconciler(
            cluster=cluster,
            database=self.database,
            index=self.in_force.index,
            mask=ALERT_MASKER.text,
            workers=RECONCILERS,
        )
        conditions = chains.Reconciler(
            cluster=cluster, database=self.database, index=self.in_force.index, owner=self.owner
        )

        def check_again() -> None:
            for namespace in cluster.served:
                conditions.check_again(namespace)

        self.in_force.follow(check_again)
        self.watcher = watcher = watch.Watcher(
            cluster, namespace=cluster.served.own, investigation_seen=reconciler.seen, chain_seen=conditions.seen
        )
        self.early.readiness.want(needs.Watch(watcher))
        self.kept.hear(watcher.facts)
        projection = projector.Projector(cluster=cluster, database=self.database)
        due = duties.Duties(
            cluster=cluster,
            database=self.database,
            reconciler=reconciler,
            owner=self.owner,
            dedup_window=lambda: self.in_force.platform.ingest.dedup_window,
            watch_lists=lambda: watcher.lists,
            tell=self._notices(cluster).tell if self.process.deployment else None,
        )
        self.hear({notify.STATUS: projection.hint})
        self.roles += [reconciler.run, conditions.run, self.watcher.run, projection.run, due.run]

    def _notices(self, cluster: client.Cluster) -> notices.Notices:
        return notices.Notices(
            cluster=cluster,
            database=self.database,
            deployment=self.process.deployment,
            index=self.in_force.index,
            ingest=lambda: self.in_force.platform.ingest,
        )

    def api(self, cluster: client.Cluster, *, token: str | None) -> None:
        """Serve the API."""
        watched = databases.Database(self.database.url, pool_size=WATCHERS)
        self.stack.push_async_callback(watched.close)
        hub = hubs.Hub(watched)

        def refresh(_: str) -> bool:
            hub.poll()
            return self.process.serves("controller")  # if not, there is one elsewhere

        application = app.build(
            app.Parts(
                cluster=cluster,
                database=self.database,
                platform=lambda: self.in_force.platform,
                index=self.in_force.index,
                generation=lambda: self.in_force.number,
                mask=ALERT_MASKER.text,
                readiness=self.early.readiness,
                keeper=self.kept,
                hub=hub,
                token=token,
                admitted=self.reconciler.made if self.reconciler else None,
            )
        )
        self.early.front.hand_over(application)
        self.hear({deltas.SAID: hub.hint, notify.STATUS: refresh})
        self.roles.append(hub.run)

    def hear(self, hints: Mapping[str, Callable[[str], bool]]) -> None:
        """Have hints told, from this process and from others; beside those who are told of them already."""
        for channel, hint in hints.items():
            waiter = self.database.hinted.get(channel)
            self.database.hinted[channel] = notify.both(waiter, hint) if waiter else hint

    async def run(self) -> None:
        """Run all parts until cancelled."""
        if not self.process.serves("worker"):
            _keep_for_good()
            self.equipped.set()
        listener = notify.Listener(self.database.url, self.database.hinted)
        self.early.readiness.start()
        await supervise(
            ground=[listener.run, self.kept.run, self.reload, *self.ground],
            roles=[lambda: _held(self.early.serving), *self.roles],
        )

    async def reload(self) -> None:
        """Have in force what the platform file says, once there is something in force."""
        await self.equipped.wait()
        await self.in_force.run()


def _tell_unusable(now: platform_file.PlatformFile) -> None:
    for name, why in now.unusable.items():
        if registry.is_worth_telling(name, now.platform):
            log.warning("llm_providers.%s cannot be used: %s", name, why, extra={"action": "provider_unusable"})


def _keeper(
    process: settings.Settings, in_force: platform_file.PlatformFile, *, database: databases.Database, owner: uuid.UUID
) -> reporter.Keeper:
    """Return the reporter of this process and its configuration."""
    detail = details.Process(
        roles=tuple(process.roles),
        version=metadata.version("tarsy"),
        build=record.build(),
        slots=in_force.platform.queue.slots if process.serves("worker") else 0,
    )
    fact_reporter = reporter.Keeper(
        database,
        process=owner,
        host=socket.gethostname(),
        detail=detail,
        mask=lambda text: ALERT_MASKER.text(in_force.shown.without(text)),
    )
    fact_reporter.hear(in_force.facts)
    return fact_reporter


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
