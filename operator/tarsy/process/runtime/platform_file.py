"""The platform file in force in this process, and its problems.

A valid file comes into force all at once: slow parts (SDKs, connections to servers) are prepared beside the former
ones, and then all parts are exchanged without an await. An invalid file changes only the reported problem.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from tarsy.config.check import chain_index
from tarsy.config.load import loader, reload, secret_files
from tarsy.config.model import fields, platforms
from tarsy.config.redact import view
from tarsy.llm import credentials
from tarsy.resources import chains
from tarsy.telemetry import component_states, metrics

LOOK_SECONDS = 1.0
"""Seconds between two checks of the file; a change comes into force after two checks."""
PROBLEMS_MAX = 20
"""The maximal number of problems that are reported; `tarsy config check` lists all."""
STARTED_WITH = ("namespaces", "queue", "api", "web", "traces", "ingest.namespace")
"""Keys that change only at a restart: watches, routes and the connection to the collector are built once, other
processes rely on leases and slots."""

log = logging.getLogger(__name__)

Unusable: TypeAlias = Mapping[str, str]
"""The reasons why providers of a platform cannot be used, by the provider's name."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The parts that were built for the next platform."""

    exchange: Callable[[], None]
    """Puts them in force."""
    drop: Callable[[], None] = lambda: None
    """Discards them instead."""


Prepare: TypeAlias = Callable[[platforms.Platform, Unusable], Awaitable[Prepared]]
"""Builds the parts for a platform."""


class PlatformFile:
    """The platform in force."""

    def __init__(self, watch: reload.Watch, *, unusable: Callable[[platforms.Platform], Unusable]) -> None:
        """`unusable` finds the providers that this process cannot use; it may read files."""
        self.platform = watch.loaded.platform
        self.unusable = unusable(self.platform)
        self.redacted = _redacted(watch.loaded)
        self.number = 0
        """The number of changes so far."""
        self.needs_restart: Sequence[str] = ()
        """The changed keys that need a restart."""
        self.problem = ""
        """The problem of the present file; see `reload.Watch.problem`."""
        self._watch = watch
        self._find_unusable = unusable
        self._loaded = watch.loaded
        self._keys = watch.keys
        self._since = self._problem_since = self._restart_since = datetime.now(UTC)
        self._preparations: list[Prepare] = []
        self._followers: list[Callable[[], None]] = []
        self._warnings: list[Callable[[], Iterable[str]]] = [lambda: self.platform.runbooks.warnings]

    def index(
        self,
        listed: Iterable[chains.AgentChain],
        /,
        *,
        unusable_providers: Mapping[str, str],
        namespace: str,
        own: str,
    ) -> chain_index.ChainIndex:
        """Return an index of chains, checked against the platform in force; see `chain_index.ChainIndex`."""
        return chain_index.ChainIndex(
            listed, platform=self.platform, unusable_providers=unusable_providers, namespace=namespace, own=own
        )

    def prepare(self, prepare: Prepare) -> None:
        """Add a callback that builds the parts for a new platform before it is in force."""
        self._preparations.append(prepare)

    def follow(self, follow: Callable[[], None]) -> None:
        """Add a callback for each new platform in force."""
        self._followers.append(follow)

    def warn(self, warnings: Callable[[], Iterable[str]]) -> None:
        """Add a source of warnings about the file in force, which are shown but not public."""
        self._warnings.append(warnings)

    async def run(self) -> None:
        """Check the file at intervals until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Check the file once, and put a changed one in force."""
        if not await asyncio.to_thread(self._watch.changed):
            return
        if self._watch.problem != self.problem:
            if self._watch.problem:
                metrics.RELOADS.add("invalid")
            self._set_problem(self._watch.problem)
        if self._watch.loaded != self._loaded or self._watch.keys != self._keys:
            try:
                await self._renew(self._watch.loaded, self._watch.keys)
            except Exception as error:  # of any kind: work goes on with the former file
                log.warning(
                    "a valid platform file failed to come into force", exc_info=True, extra={"action": "not_renewed"}
                )
                metrics.RELOADS.add("failed")
                self._set_problem(f"it is valid, but failed to come into force: {type(error).__name__}; see the log")

    async def _renew(self, loaded: loader.Loaded, keys: secret_files.Digests) -> None:
        platform = _with_started(loaded.platform, self.platform)
        unusable = await asyncio.to_thread(self._find_unusable, platform)
        redacted = await asyncio.to_thread(_redacted, loaded)
        with ExitStack() as undo:
            exchanges = []
            for prepare in self._preparations:
                prepared = await prepare(platform, unusable)
                undo.callback(prepared.drop)
                exchanges.append(prepared.exchange)
            undo.pop_all()
        # The exchange: nothing is awaited from here on.
        now = datetime.now(UTC)
        self.platform, self.unusable, self.redacted = platform, unusable, redacted
        self._loaded, self._keys, self._since = loaded, keys, now
        self.number += 1
        for exchange in exchanges:
            exchange()
        for follow in self._followers:
            follow()
        log.info("the new platform file is in force", extra={"action": "platform_renewed"})
        metrics.RELOADS.add("renewed")
        needs_restart = tuple(_differing(loaded.platform, platform))
        if needs_restart != self.needs_restart:
            self.needs_restart, self._restart_since = needs_restart, now
            if needs_restart:
                log.warning("%s", _restart_warning(needs_restart), extra={"action": "platform_needs_restart"})

    def _set_problem(self, problem: str) -> None:
        self.problem, self._problem_since = problem, datetime.now(UTC)
        if problem:
            summary = "; ".join(_first_lines(problem))
            log.warning(
                "the platform file is not in force as it stands now: %s", summary, extra={"action": "platform_invalid"}
            )
        else:
            log.info("the platform file is valid again", extra={"action": "platform_mended"})

    def notes(self) -> list[str]:
        """Return the public problems of the file; they quote only names of keys."""
        remarks = []
        if self.problem:
            where = "the log and /api/v1/system/warnings say why"
            remarks.append(f"the platform file is not in force as it stands now: {where}")
        if self.needs_restart:
            remarks.append(_restart_warning(self.needs_restart))
        return remarks

    def facts(self) -> Iterable[component_states.ComponentState]:
        """Yield the state of the configuration: the redacted file in force, and its problems."""
        problems = [
            {"message": f"the platform file is not in force as it stands now: {problem}", "since": self._problem_since}
            for problem in _first_lines(self.problem)
        ]
        if self.needs_restart:
            problems.append({"message": _restart_warning(self.needs_restart), "since": self._restart_since})
        for warnings in self._warnings:
            problems += [{"message": warning, "since": self._since} for warning in warnings()]
        remarks = [
            component_states.Remark(message=str(problem["message"]), since=f"{problem['since']:%Y-%m-%dT%H:%M:%S.%fZ}")
            for problem in problems
        ]
        yield component_states.ComponentState(
            kind="configuration",
            name="platform",
            state=self.redacted.digest,
            since=self._since,
            detail=component_states.Configuration(written=self.redacted.written, problems=tuple(remarks)),
        )


def files_beside(loaded: platforms.Platform) -> set[Path]:
    """Return the files that a platform file names and that are checked with it."""
    token = loaded.runbooks.token_file
    files = (
        credentials.key_files(loaded, os.environ) | secret_files.server_files(loaded) | ({token} if token else set())
    )
    return files | {entry.token_file for entry in loaded.ingest.tokens} | secret_files.receiver_files(loaded)


def _redacted(loaded: loader.Loaded) -> view.View:
    return view.redact(loaded.written, used=loaded.used)


def _first_lines(problem: str) -> list[str]:
    """Return the first PROBLEMS_MAX problems, one a line."""
    lines = problem.splitlines()
    more = len(lines) - PROBLEMS_MAX
    return [*lines[:PROBLEMS_MAX], *([f"and {more} more: tarsy config check lists all"] if more > 0 else [])]


def _restart_warning(keys: Sequence[str]) -> str:
    return f"changes of the platform file to {', '.join(keys)} come into force at the next start"


def _with_started(loaded: platforms.Platform, started: platforms.Platform) -> platforms.Platform:
    """Return a platform with those keys of `started` that need a restart."""
    sections: dict[str, Any] = {}
    for name in STARTED_WITH:
        section, _, key = name.partition(".")
        value = getattr(started, section)
        sections[section] = getattr(loaded, section).model_copy(update={key: getattr(value, key)}) if key else value
    return loaded.model_copy(update=sections)


def _differing(current: platforms.Platform, other: platforms.Platform) -> Iterable[str]:
    """Yield the keys in which two platforms differ, of those that need a restart; of a section, its keys."""
    for name in STARTED_WITH:
        current_value, other_value = operator.attrgetter(name)(current), operator.attrgetter(name)(other)
        if not isinstance(current_value, fields.Part):
            if current_value != other_value:
                yield name
            continue
        for key in type(current_value).model_fields:
            if getattr(current_value, key) != getattr(other_value, key):
                yield f"{name}.{key}"
