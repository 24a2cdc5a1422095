"""A stand: a scenario's world on loopback, a database, and a real worker that investigates in that world.

The worker is `tarsy operator --role worker` as a process of its own, so that what is measured is what runs in
production. Investigations are admitted as a webhook's are, without an object in a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarsy.config.check import chain_index
from tarsy.config.load import loader, settings
from tarsy.config.model import platforms
from tarsy.evaluation import checks, leash, scenarios, subjects, world_platform, world_server, worlds
from tarsy.ingest import alertmanager, decision, manifest
from tarsy.masking import known_secrets
from tarsy.resources import chains, files, investigations
from tarsy.store.base import databases, scratch_databases
from tarsy.store.intake import queueing
from tarsy.store.reads import log_entries, summaries, transcript_pages
from tarsy.transcript import admission, entries
from tarsy.views import base, markdown

POLL_SECONDS = 0.3
_PROGRAM = (sys.executable, "-c", "from tarsy.cli.main import main; main(prog_name='tarsy')")
_LOG_END = 2_000
"""Characters of a worker's log in the error of one that has ended."""


class StandError(Exception):
    """A run could not be made; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An investigation that has ended."""

    details: summaries.Details
    logged: list[entries.Logged]
    wholes: list[str]
    """The whole results of calls of which models got a part."""
    transcript: str
    """In Markdown."""


@dataclass(frozen=True, kw_only=True)
class Stand:
    """An open stand."""

    scenario: scenarios.Scenario
    world: worlds.World
    platform: platforms.Platform
    unusable: Mapping[str, str]
    """The providers that workers cannot use, with reasons."""
    database: databases.Database
    worker: asyncio.subprocess.Process
    log: Path

    async def investigate(self, chain: chains.AgentChain) -> Ended:
        """Run the chain on the scenario's alert; raises StandError if the worker cannot."""
        return await self.ended(await self.admit(chain))

    async def ended(self, identity: uuid.UUID) -> Ended:
        """Wait for the end of an investigation; raises StandError if the worker cannot run it."""
        while True:
            summary = await summaries.load(self.database, identity)
            if summary is not None and summary.state == "ended":
                break
            if self.worker.returncode is not None:
                log_text = await asyncio.to_thread(self.log.read_text, errors="replace")
                raise StandError(f"the worker ended with status {self.worker.returncode}:\n{log_text[-_LOG_END:]}")
            if summary is not None and summary.waits_for:
                raise StandError(f"no worker can run it: {summary.waits_for}")
            await asyncio.sleep(POLL_SECONDS)
        details = await summaries.details(self.database, identity)
        assert details  # noqa: S101 - nothing deletes it here
        logged = await log_entries.load(self.database, identity)
        wholes = [
            full_text
            for each in logged
            if isinstance(each.entry, entries.ToolsAnswered)
            for run in each.entry.runs
            if run.length is not None
            and (full_text := await transcript_pages.full_result(self.database, identity, each.execution, run.call.id))
        ]
        transcript = await self._markdown(details)
        return Ended(details=details, logged=logged, wholes=wholes, transcript=transcript)

    async def admit(self, chain: chains.AgentChain) -> uuid.UUID:
        """Queue the chain on the scenario's alert; raises StandError if it cannot run."""
        identity = uuid.uuid4()
        masker = self.platform.defaults.alert_masking.masker(known_secrets.KnownSecrets())
        notification = alertmanager.parse(json.dumps(_notification(self.scenario)).encode())
        (alert,) = notification.readable
        draft = manifest.draft_from_alert(
            alert,
            manifest.notification_data(notification, mask=masker.text),
            sent_by="alertmanager",
            alert_type=alert.alertname,
            namespace=subjects.NAMESPACE,
            author="",
            mask=masker.text,
        )
        metadata = {**draft.manifest["metadata"], "uid": str(identity), "generation": 1}
        spec = {**draft.manifest["spec"], "chainRef": {"name": chain.metadata.name}}
        index = chain_index.ChainIndex(
            [chain],
            platform=self.platform,
            unusable_providers=self.unusable,
            namespace=subjects.NAMESPACE,
            own=subjects.NAMESPACE,
        )
        decided = decision.decide(
            investigations.AlertInvestigation.model_validate({"metadata": metadata, "spec": spec}),
            index,
            mask=str,
            secrets=known_secrets.KnownSecrets(),
        )
        if isinstance(decided.chain, admission.Refusal):
            raise StandError(decided.chain.message)
        await queueing.admit(self.database, decided)
        return identity

    async def _markdown(self, details: summaries.Details) -> str:
        identity, document = details.summary.id, markdown.Document(details, mask=base.MASK)
        parts = [document.head()]
        for outline in await transcript_pages.outlines(self.database, identity, upto=details.log_seq, limit=1000):
            parts += [document.scope([outline]), document.execution(outline)]
            async for page in transcript_pages.walk(
                self.database, identity, after=outline.seq - 1, upto=details.log_seq, execution=outline.id
            ):
                parts.append(document.page(page))
        return "".join([*parts, markdown.END])


def _notification(scenario: scenarios.Scenario) -> dict[str, Any]:
    """Return the notification of the scenario's alert, alone in its group."""
    alert = checks.alert_json(scenario)
    return {
        "version": alertmanager.VERSION,
        "groupKey": "{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "tarsy",
        "groupLabels": {},
        "commonLabels": alert["labels"],
        "commonAnnotations": alert["annotations"],
        "externalURL": "",
        "alerts": [alert],
    }


@contextlib.asynccontextmanager
async def opened(
    scenario: scenarios.Scenario,
    *,
    written: Mapping[str, Any] | None,
    mcp_command: str | None,
    unusable: Mapping[str, str],
    template: scratch_databases.Template,
) -> AsyncIterator[Stand]:
    """Open a stand for a scenario, and take it down at the end.

    `written` is the content of the user's platform file. Raises files.FileError, loader.ConfigError and
    databases.StoreDownError.
    """
    world = await asyncio.to_thread(worlds.load, scenario.world)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tarsy-eval-", ignore_cleanup_errors=True))
        )
        kubeconfig, path, log = folder / "kubeconfig", folder / "platform.yaml", folder / "worker.log"
        content = world_platform.for_world(written, kubeconfig=kubeconfig, command=mcp_command)
        await asyncio.to_thread(path.write_text, files.to_yaml(content), encoding="utf-8")
        platform = await asyncio.to_thread(loader.platform_file, path)
        await stack.enter_async_context(world_server.serve(world, kubeconfig=kubeconfig))
        url = await stack.enter_async_context(template.copied())
        database = databases.Database(url)
        stack.push_async_callback(database.close)
        process = await stack.enter_async_context(worker(path, url, log))
        yield Stand(
            scenario=scenario,
            world=world,
            platform=platform,
            unusable=unusable,
            database=database,
            worker=process,
            log=log,
        )


@contextlib.asynccontextmanager
async def worker(path: Path, database_url: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker with the platform file at `path`; end it at the end, or with this process."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TARSY_CONFIG", f"DATABASE_URL{settings.FILE}")
    } | {settings.DATABASE_URL: database_url, settings.NAMESPACE: subjects.NAMESPACE}
    arguments = ("operator", "--role=worker", f"--config={path}", "--listen=127.0.0.1:0", "--metrics-listen=off")
    with log.open("wb") as output:
        process = await leash.start((*_PROGRAM, *arguments), log=output, environment=environment, removes=path.parent)
    try:
        yield process
    finally:
        await leash.stop(process)
