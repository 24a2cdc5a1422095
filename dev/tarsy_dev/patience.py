"""How long what should come is waited for, and the error of a wait in vain.

There is one length for everything: a wait never decides whether something is fast, only whether it comes. It is long
enough for a machine a third as fast as an idle one, and shorter than the limit of a test on real parts, so that a wait
in vain says what it waited for. Tests try once more what failed by `TooLong` alone: "not reached in time" may be bad
luck, "wrong when reached" never is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tarsy_dev import errors

PATIENCE = 240.0
"""Seconds."""


class TooLong(errors.Error, TimeoutError):  # noqa: N818 - it reads as what happened
    """An awaited event did not come in time."""


@contextlib.asynccontextmanager
async def limit(what: str = "what comes next", *, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Raise TooLong, which names `what`, when the body takes longer; a TimeoutError of the body itself passes."""
    try:
        async with asyncio.timeout(seconds) as running:
            yield
    except TimeoutError as error:
        if running.expired() and not isinstance(error, TooLong):
            raise TooLong(f"waited {seconds:.0f} s in vain for {what}") from None
        raise
