"""A lease that nothing is wrong with."""

from __future__ import annotations

from tarsy.transcript import ports


async def clear() -> None:
    """Nothing stands in the way of sending."""


SCOPE = ports.Scope(execution="any", ensure_lease=clear)
"""An execution that may send."""
