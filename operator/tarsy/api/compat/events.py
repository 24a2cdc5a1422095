"""Live events for earlier clients: a session where there is an investigation, and updates of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarsy.api.compat import plans, progress, words
from tarsy.live import live_events
from tarsy.store.reads import stage_rows, summaries
from tarsy.transcript import entries


@dataclass(frozen=True)
class Sessions:
    """The translation of live events, a `live_events.Translation`."""

    prefix: str = "session"

    def translate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message with the names of earlier clients, and with their status where it has a phase."""
        translated = {"session_id" if key == "investigation" else key: value for key, value in message.items()}
        room, dot, rest = message["type"].partition(".")
        if room == "investigation":
            translated["type"] = f"{self.prefix}{dot}{rest}"
        if phase := message.get("phase"):
            translated["status"] = words.INVESTIGATIONS[phase].session
            translated["has_errors"] = phase == "CompletedWithErrors"
        return translated

    def entry_updates(
        self,
        entry: entries.Entry | entries.Unreadable,
        summary: summaries.Summary,
        course: stage_rows.StageProgress | None,
    ) -> Iterator[live_events.Body]:
        """Yield the updates of the chain and its stages that an entry of the log brings."""
        return map(_body, progress.alert_status_updates(entry, summary, _chain(course)))

    def updates_since(
        self, since: int, summary: summaries.Summary, course: stage_rows.StageProgress | None
    ) -> tuple[Sequence[live_events.Body], int]:
        """Return the updates behind the first `since` ones, and the number of all so far."""
        updates, count = progress.updates_since(since, summary, _chain(course))
        return [_body(update) for update in updates], count


def _chain(course: stage_rows.StageProgress | None) -> Sequence[plans.Plan]:
    return plans.plans(course) if course else ()


def _body(update: progress.AlertStatusUpdate) -> live_events.Body:
    return update.type, update.model_dump(mode="json", exclude={"type"})
