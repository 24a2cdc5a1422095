"""Batches of deletions: limited in rows and bytes, so that no statement holds its locks for long."""

from __future__ import annotations

ROWS = 500
"""The maximal number of rows that a statement deletes."""
BYTES = 32 * 1024 * 1024
"""The maximal bytes, as stored, that a statement deletes; its first row is not counted."""


def limited(column: str, *, order: str = "") -> str:
    """Return the SELECT of a column of the rows of `candidates`, which have a `size`, that are a batch."""
    over = f"ORDER BY {order} ROWS UNBOUNDED PRECEDING" if order else "ROWS UNBOUNDED PRECEDING"
    return f"""
    SELECT {column} FROM (SELECT *, sum(size) OVER ({over}) - size AS before FROM candidates) AS measured
    WHERE before < {BYTES}"""  # noqa: S608 - our own text
