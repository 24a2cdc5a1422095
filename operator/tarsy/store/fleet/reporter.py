"""Keeps in the catalogue what this process says of itself, for as long as it is there.

What the parts of the process say is looked at every second and written when it has changed; that the process is there
is written every ten. A database that is away costs nothing but that others do not hear of it.
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

LOOK_SECONDS = 1.0
RENEW_SECONDS = 10.0
AGAIN_SECONDS = 5.0
FORGET_SECONDS = 600.0
LEAVE_SECONDS = 2.0

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[component_states.ComponentState]]
"""Says what is so now; asked often, so it has to be cheap."""


class Reporter:
    """Tells others what the parts of this process say."""

    def __init__(
        self,
        database: databases.Database,
        *,
        process: UUID,
        host: str,
        detail: component_states.Process,
        mask: Callable[[str], str],
    ) -> None:
        """`detail` is said of the process itself, which runs on `host`; `mask` is applied to all text that is kept."""
        self.process = process
        self.database = component_states.StateTracker("unknown")
        """Answering or away, as far as this process knows."""
        self._store = database
        self._mask = mask
        self._sources: list[Source] = []
        self._self = component_states.ComponentState(
            kind="process", name=host, state="running", since=datetime.now(UTC), detail=detail
        )
        self._kept: dict[tuple[str, str], component_states.ComponentState] = {}
        """The facts in the catalogue, as they were reported."""
        self._is_told = True
        """Whether the last try to tell others worked, for the log; `database` is the word of others, too."""
        self._due = 0.0
        self._forget_at = 0.0

    def hear(self, source: Source) -> None:
        """Have told what `source` says, from now on."""
        self._sources.append(source)

    def facts(self) -> Sequence[component_states.ComponentState]:
        """All that is so now, as it is said: not masked."""
        return [self._self, *(fact for source in self._sources for fact in source())]

    async def run(self) -> None:
        """Tell until cancelled; then this process is no longer there."""
        try:
            while True:
                await self.report()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._leave()

    async def report(self) -> None:
        """Tell what has changed, or that nothing has, if it is time to."""
        current: dict[tuple[str, str], component_states.ComponentState] = {
            (fact.kind, fact.name): fact for fact in self.facts()
        }
        is_less = not self._kept.keys() <= current.keys()
        changed = {key: fact for key, fact in current.items() if is_less or self._kept.get(key) != fact}
        if time.monotonic() < self._due and not (changed and self.database.state == "answering"):
            return
        try:
            await self._write(changed, is_all=is_less)
        except errors.TemporaryError as error:
            self._due = time.monotonic() + AGAIN_SECONDS
            self.database.change("away")
            if self._is_told:
                log.warning("nobody is told of this process: %s", error, extra={"action": "catalogue_lost"})
            self._is_told = False
        else:
            self._due = time.monotonic() + RENEW_SECONDS
            self.database.change("answering")
            self._is_told = True

    async def _write(self, changed: Mapping[tuple[str, str], component_states.ComponentState], *, is_all: bool) -> None:
        """Write what has changed; where that `is_all` there is, forget what else was said."""
        prepared = await asyncio.to_thread(self._prepared, list(changed.values())) if changed else []
        others = [fact for fact in prepared if fact.kind != "process"]
        was_lost = await catalogue.write(self._store, self.process, [self._prepared([self._self])[0], *others])
        if is_all:
            await catalogue.keep_only(self._store, self.process, prepared)
        self._kept = {**({} if is_all or (was_lost and self._kept) else self._kept), **changed}
        if time.monotonic() >= self._forget_at:
            await catalogue.forget(self._store)
            self._forget_at = time.monotonic() + FORGET_SECONDS

    def _prepared(self, facts: Iterable[component_states.ComponentState]) -> list[component_states.ComponentState]:
        """As they can be kept."""
        masked_facts = {}
        for fact in facts:
            name = messages.storable(self._mask(fact.name))
            masked = messages.storable_json(self._masked(component_states.encode(fact.detail)))
            masked_facts[fact.kind, name] = replace(fact, name=name, detail=component_states.decode(fact.kind, masked))
        return list(masked_facts.values())

    def _masked(self, value: Any) -> Any:
        """JSON, all texts of which are masked; its keys are ours, or have been looked at."""
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
            why = str(error) or type(error).__name__
            log.warning("this process is told of a while longer: %s", why, extra={"action": "catalogue_left"})
