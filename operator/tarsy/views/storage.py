"""The size of the database, and what retention is about to delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tarsy.store.operations import retention, storage
from tarsy.views import base


class Table(base.View):
    """One table of the database."""

    name: str
    size: int
    """Bytes, with indexes and large values."""
    row_count: int
    """The number of rows, as Postgres estimates it."""
    dead_row_count: int
    """The estimated number of rows whose space is not free yet."""


class Oldest(base.View):
    """The times of the oldest rows; null if there are none."""

    admitted_at: datetime | None
    """The admission of the oldest investigation that is not deleted."""
    deleted_at: datetime | None
    """The earliest deletion of an investigation that is not purged, and not held."""
    changed_at: datetime | None
    """The oldest row of the audit."""


class Due(base.View):
    """The number of rows of one kind that retention is about to delete."""

    kind: retention.Kind
    """`transcripts` are to be hidden, `purges` to be purged; `transcript_rows` are purged investigations whose rows,
    `tool_results` ended ones whose full texts, `investigations` purged ones whose empty rows are to be deleted; `audit`
    and `tool_pins` are rows."""
    count: int


class Storage(base.View):
    """The size of the database, and what is due."""

    size: int
    """Bytes of all tables."""
    tables: list[Table]
    """The largest first."""
    oldest: Oldest
    due: list[Due] | None
    """The rows that are due now; null if counting it takes too long."""
    dry_run: bool
    """Whether `retention.dry_run` keeps what is due."""


def storage_view(
    tables: Sequence[storage.Table],
    oldest: storage.Oldest,
    due: Mapping[retention.Kind, int] | None,
    *,
    dry_run: bool,
) -> Storage:
    """Return the view of what was read; `due` is None if it took too long."""
    return Storage(
        size=sum(table.size for table in tables),
        tables=[Table.model_validate(table) for table in tables],
        oldest=Oldest.model_validate(oldest),
        due=None if due is None else [Due(kind=kind, count=count) for kind, count in due.items()],
        dry_run=dry_run,
    )
