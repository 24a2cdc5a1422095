"""One operator process: answer probes, wait for dependencies, build the parts, supervise them, stop them.

There are two groups of tasks: the ground (database hints, leases, tools), and the roles that need it (controller,
worker, api). Roles stop first, so that runs can still release their claims.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import uuid
from contextlib import AsyncExitStack, suppress
from importlib import metadata

from tarsy.config.load import reload, settings
from tarsy.config.model import reach
from tarsy.config.redact import secret_values
from tarsy.kube import client
from tarsy.llm import registry
from tarsy.masking import known_secrets
from tarsy.process import api, controller, garbage_collection, sampled_metrics, startup, supervision, traces, worker
from tarsy.process.context import Context
from tarsy.process.runtime import masking, platform_file
from tarsy.store.base import databases, hints, notify
from tarsy.store.fleet import reporter
from tarsy.telemetry import component_states, logs, metrics
from tarsy.transcript import record

log = logging.getLogger(__name__)


async def operator(process: settings.Settings, secrets: known_secrets.KnownSecrets) -> None:
    """Run an operator process until SIGTERM or SIGINT; a second signal ends it at once.

    `secrets` are masked in the log; the process adds to them. Raises StartError if the process cannot start.
    """
    with startup.start_errors():
        watched = reload.Watch(
            process.platform_file,
            environment=os.environ,
            other_files=platform_file.files_beside,
            own_namespace=_own_namespace(process),
        )
    running = asyncio.create_task(_run(process, watched, masking.Masking(secrets)))

    def stop() -> None:
        if running.cancelling():
            os._exit(1)
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await running
    log.info("stopped", extra={"action": "stopped"})


async def _run(process: settings.Settings, watched: reload.Watch, process_masking: masking.Masking) -> None:
    process_masking.adopt(watched.loaded.platform)
    logs.set_levels(watched.loaded.platform.logs.levels)
    async with AsyncExitStack() as stack:
        # Only workers need keys and packages, so only they check them.
        judge = functools.partial(registry.unusable, environment=os.environ)
        in_force = platform_file.PlatformFile(watched, unusable=judge if process.serves("worker") else lambda _: {})
        channels = hints.Channels()
        metrics.BUILD_INFO.set(1, metadata.version("tarsy"), ",".join(process.roles))
        metrics.PLATFORM_FILE_VALID.set(1)
        early = await startup.answer(process, in_force, stack, secrets=process_masking.secrets)
        async with asyncio.TaskGroup() as group:
            served = [
                group.create_task(supervision.endless(functools.partial(supervision.stand_for, asyncio.shield(server))))
                for server in early.servers
            ]
            database, token = await startup.wait(process, early, stack, channels=channels)
            for waiting in served:
                waiting.cancel()
        await asyncio.to_thread(process_masking.adopt, in_force.platform)  # again, with the secrets that have arrived
        process_masking.secrets.set_pepper(await asyncio.to_thread(secret_values.pepper, os.environ))
        in_force.prepare(process_masking.prepare)
        _log_unusable(in_force)
        in_force.follow(functools.partial(_log_unusable, in_force))
        in_force.follow(lambda: logs.set_levels(in_force.platform.logs.levels))
        own = early.cluster.served.own if early.cluster else _own_namespace(process)
        if not own:
            log.warning(
                "%s is not set: only providers and MCP servers with allowed_namespaces can be used",
                settings.NAMESPACE,
                extra={"action": "namespace_unknown"},
            )
        _warn_of_unserved(in_force, own)
        owner = uuid.uuid4()
        context = Context(
            options=process,
            in_force=in_force,
            masking=process_masking,
            channels=channels,
            database=database,
            early=early,
            own_namespace=own,
            stack=stack,
            traces=await traces.begin(in_force, database=database, stack=stack),
            owner=owner,
            process_reporter=_reporter(process, in_force, process_masking, database=database, owner=owner),
        )
        early.scrapes.add(functools.partial(sampled_metrics.sample, context.process_reporter, in_force))
        await _serve(context, token=token)


def _own_namespace(process: settings.Settings) -> str:
    """Return the operator's own namespace, "" if this process does not know it."""
    sends_requests = process.serves("controller") or process.serves("api")
    return ("" if sends_requests else process.namespace) or client.own_namespace(process.kubeconfig)


def _warn_of_unserved(in_force: platform_file.PlatformFile, own: str) -> None:
    """Warn of namespaces that are named and not served, now and after each change of the platform file."""

    def warnings() -> list[str]:
        return reach.unserved(in_force.platform, own=own)

    def log_warnings() -> None:
        for warning in warnings():
            log.warning("%s", warning, extra={"action": "namespace_unserved"})

    in_force.warn(warnings)
    in_force.follow(log_warnings)
    log_warnings()


async def _serve(context: Context, *, token: str | None) -> None:
    """Build the roles, and run all parts until cancelled."""
    process, cluster, database = context.options, context.early.cluster, context.database
    ground: list[supervision.Part] = [context.traces.run] if context.traces else []
    roles: list[supervision.Part] = [
        functools.partial(supervision.stand_for, server) for server in context.early.servers
    ]
    has_clients: asyncio.Event | None = None
    controlling = controller.build(context, cluster) if cluster and process.serves("controller") else None
    if process.serves("worker"):
        working = worker.build(context, watching=controlling.watching if controlling else None)
        ground += working.ground
        has_clients = working.has_clients
        roles += working.roles
    if controlling:
        roles += controlling.roles
    if cluster and process.serves("api"):
        roles += api.build(context, cluster, token=token, admitted=controlling.admitted if controlling else None)
    if has_clients is None:
        garbage_collection.freeze()

    async def renew() -> None:
        if has_clients is not None:  # until then, no clients can be exchanged
            await has_clients.wait()
        await context.in_force.run()

    listener = notify.Listener(database.url, context.channels)
    context.early.readiness.start()
    await supervision.supervise(ground=[listener.run, context.process_reporter.run, renew, *ground], roles=roles)


def _log_unusable(in_force: platform_file.PlatformFile) -> None:
    for name, reason in in_force.unusable.items():
        if registry.is_configured(name, in_force.platform):
            log.warning("llm_providers.%s cannot be used: %s", name, reason, extra={"action": "provider_unusable"})


def _reporter(
    process: settings.Settings,
    in_force: platform_file.PlatformFile,
    process_masking: masking.Masking,
    *,
    database: databases.Database,
    owner: uuid.UUID,
) -> reporter.Reporter:
    """Return the reporter of this process and its configuration."""
    detail = component_states.Process(
        roles=tuple(process.roles),
        version=metadata.version("tarsy"),
        build=record.build(),
        slots=in_force.platform.queue.slots if process.serves("worker") else 0,
    )
    fact_reporter = reporter.Reporter(
        database,
        process=owner,
        host=socket.gethostname(),
        detail=detail,
        mask=lambda text: process_masking.mask_alert(in_force.redacted.redact_text(text)),
    )
    fact_reporter.add_source(in_force.facts)
    return fact_reporter
