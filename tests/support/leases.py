"""A lease that nothing is wrong with."""

from __future__ import annotations


async def clear() -> None:
    """Nothing stands in the way of sending."""
