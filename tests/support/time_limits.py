"""Time limits that a test lets pass, instead of waiting for them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest


class TimeLimits:
    """The limits that `asyncio.timeout` has set since this was made, by their seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun: list[tuple[float, asyncio.Timeout]] = []
        timeout = asyncio.timeout

        def begin(seconds: float | None) -> asyncio.Timeout:
            limit = timeout(seconds)
            if seconds is not None:
                self._begun.append((seconds, limit))
            return limit

        monkeypatch.setattr(asyncio, "timeout", begin)

    def count(self, seconds: float) -> int:
        """Return the number of limits of this length."""
        return sum(length == seconds for length, _ in self._begun)

    def expire(self, seconds: float) -> int:
        """Let the running limits of this length pass now, and return their number."""
        expired = 0
        for length, limit in self._begun:
            if length == seconds:
                with contextlib.suppress(RuntimeError):  # it has ended
                    limit.reschedule(0.0)
                    expired += 1
        return expired
