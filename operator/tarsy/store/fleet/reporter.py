"""Reports the facts of this process to the catalogue, while the process runs.

The facts are read every second and written when they have changed. Every ten seconds the process itself is written.
While the database is unavailable, other processes read old facts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tarsy import errors
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states
from tarsy.transcript import messages

READ_SECONDS = 1.0
RENEW_SECONDS = 10.0
RETRY_SECONDS = 5.0
FORGET_SECONDS = 600.0
LEAVE_SECONDS = 2.0

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[component_states.ComponentState]]
"""Returns the present facts; it is called every second, so it has to be cheap."""


class Reporter:
    """Reports the facts of the parts of this process."""

    def __init__(
        self,
        database: databases.Database,
        *,
        process: UUID,
        host: str,
        detail: component_states.Process,
        mask: Callable[[str], str],
    ) -> None:
        """`detail` describes the process itself, which runs on `host`; `mask` is applied to all written text."""
        self.process = process
        self.database = component_states.StateTracker("unknown")
        """The state of the database, answering or away; readiness checks set it too."""
        self._store = database
        self._mask = mask
        self._sources: list[Source] = []
        self._self = component_states.ComponentState(
            kind="process", name=host, state="running", since=datetime.now(UTC), detail=detail
        )
        self._written: dict[tuple[str, str], component_states.ComponentState] = {}
        """The facts in the catalogue, before masking."""
        self._succeeded = True
        """Whether the last write succeeded: a failure is logged once."""
        self._due = 0.0
        self._forget_at = 0.0

    def add_source(self, source: Source) -> None:
        """Report the facts of `source` from now on."""
        self._sources.append(source)

    def facts(self) -> Sequence[component_states.ComponentState]:
        """Return the present facts, not masked."""
        return [self._self, *(fact for source in self._sources for fact in source())]

    async def run(self) -> None:
        """Report until cancelled; then delete the facts of this process."""
        try:
            while True:
                await self.report()
                await asyncio.sleep(READ_SECONDS)
        finally:
            await self._leave()

    async def report(self) -> None:
        """Write the facts that have changed; if none has, write the process itself when that is due."""
        current: dict[tuple[str, str], component_states.ComponentState] = {
            (fact.kind, fact.name): fact for fact in self.facts()
        }
        has_removed = not self._written.keys() <= current.keys()
        changed = {key: fact for key, fact in current.items() if has_removed or self._written.get(key) != fact}
        if time.monotonic() < self._due and not (changed and self.database.state == "answering"):
            return
        try:
            await self._write(changed, replace_all=has_removed)
        except errors.TemporaryError as error:
            self._due = time.monotonic() + RETRY_SECONDS
            self.database.change("away")
            if self._succeeded:
                log.warning(
                    "the facts of this process cannot be written: %s", error, extra={"action": "catalogue_lost"}
                )
            self._succeeded = False
        else:
            self._due = time.monotonic() + RENEW_SECONDS
            self.database.change("answering")
            self._succeeded = True

    async def _write(
        self, changed: Mapping[tuple[str, str], component_states.ComponentState], *, replace_all: bool
    ) -> None:
        """Write `changed`; with `replace_all` delete all other facts of this process."""
        prepared = await asyncio.to_thread(self._prepared, list(changed.values())) if changed else []
        others = [fact for fact in prepared if fact.kind != "process"]
        was_lost = await catalogue.write(self._store, self.process, [self._prepared([self._self])[0], *others])
        if replace_all:
            await catalogue.delete_others(self._store, self.process, prepared)
        self._written = {**({} if replace_all or (was_lost and self._written) else self._written), **changed}
        if time.monotonic() >= self._forget_at:
            await catalogue.forget(self._store)
            self._forget_at = time.monotonic() + FORGET_SECONDS

    def _prepared(self, facts: Iterable[component_states.ComponentState]) -> list[component_states.ComponentState]:
        """Return the facts masked and storable."""
        masked_facts = {}
        for fact in facts:
            name = messages.storable(self._mask(fact.name))
            masked = messages.storable_json(self._masked(component_states.encode(fact.detail)))
            masked_facts[fact.kind, name] = replace(fact, name=name, detail=component_states.decode(fact.kind, masked))
        return list(masked_facts.values())

    def _masked(self, value: Any) -> Any:
        """Return JSON with all text masked; keys are constants of this program, or masked before."""
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, Mapping):
            return {key: self._masked(below) for key, below in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(element) for element in value]
        return value

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await catalogue.leave(self._store, self.process)
        except (errors.TemporaryError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            log.warning(
                "facts of this process not deleted, they expire: %s", reason, extra={"action": "catalogue_left"}
            )
