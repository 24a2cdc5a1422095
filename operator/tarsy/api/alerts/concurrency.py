"""Concurrency of notifications, and of the parts of one.

A flood of alerts is more than a process can take in time. If it took all notifications at once, each would take
longer than its sender waits, be sent again, and be worked on twice. So it takes a few at once, and the others of a
burst wait. Once some have been there without a break for BURST_SECONDS, it is a flood: one waits for a short time, and
the others are refused before they are read, because what refusals cost is taken from the alerts. The flood is over when
none was refused for CALM_SECONDS: else senders that come again together would begin a new burst each time. Alertmanager
sends again, after a longer time with each refusal. Alerts are counted by a field that each of them has.

Source: B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015, "Adaptive LIFO and Controlled Delay".
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

from starlette import types

from tarsy.serve import limits, problems, webhook_answers
from tarsy.telemetry import metrics

AT_ONCE = 8
"""Parts of one notification that are taken at once."""
ALERTS_AT_ONCE = 8
"""Alerts of all notifications that are taken at once, each notification counted with 1 to AT_ONCE."""
LARGE = 64 * 1024
"""Bytes above which notifications are taken one at a time, so that they leave room for small ones."""
WAIT_SECONDS = 0.05
"""Seconds that a notification of a flood waits until it is taken."""
BURST_SECONDS = 2.0
"""Seconds from the first notification that met none to the end of the wait of those that came since."""
CALM_SECONDS = 10.0
"""Seconds without a refusal after which a flood is over."""
REFUSAL = "other notifications are being taken: send it again"
LOGGED_SECONDS = 60.0
"""Seconds between two log lines about refused notifications."""

log = logging.getLogger(__name__)


class NotificationSlots:
    """The notifications that a process takes at once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds: the log goes by it."""
        self._clock = clock
        self._all = limits.Gate(ALERTS_AT_ONCE)
        self._large = limits.Gate(1)
        self._present = 0
        """Notifications that are taken or wait."""
        self._waiting = 0
        self._busy_since = -math.inf
        self._refused_at = -math.inf
        self._refused = 0
        """Those that no log line counts yet."""
        self._logged_at = -math.inf

    @asynccontextmanager
    async def slot(self, body: bytes) -> AsyncIterator[None]:
        """Hold what a notification needs. Raises a Problem (503) if it is not free in time."""
        needed = min(max(1, body.count(b'"startsAt"')), AT_ONCE)
        if not self._present:
            self._busy_since = self._clock()
        self._present += 1
        try:
            async with AsyncExitStack() as held:
                self._waiting += 1
                try:
                    if len(body) > LARGE:
                        await held.enter_async_context(self._large.slot(seconds=self._wait(), refusal=REFUSAL))
                    await held.enter_async_context(self._all.slot(seconds=self._wait(), refusal=REFUSAL, slots=needed))
                except problems.Problem:
                    self.report_refusal()
                    raise
                finally:
                    self._waiting -= 1
                yield
        finally:
            self._present -= 1

    @property
    def is_flood(self) -> bool:
        """Whether a notification was refused a short time ago."""
        return self._clock() - self._refused_at < CALM_SECONDS

    @property
    def are_full(self) -> bool:
        """Whether no further notification may even wait."""
        return self._waiting > 0 and self.is_flood

    def _wait(self) -> float:
        """Return the seconds that a notification may wait now."""
        return WAIT_SECONDS if self.is_flood else max(WAIT_SECONDS, self._busy_since + BURST_SECONDS - self._clock())

    def report_refusal(self) -> None:
        """Count a refusal, log it once in a while, and begin or prolong the flood."""
        self._refused_at = self._clock()
        metrics.WEBHOOKS_REFUSED.add()
        self._refused += 1
        if self._clock() - self._logged_at >= LOGGED_SECONDS:
            text = "notifications were refused, because too many came at once: their senders send them again"
            log.warning(text, extra={"action": "notifications_refused", "count": self._refused})
            self._refused, self._logged_at = 0, self._clock()


class EarlyRefusals:
    """Middleware that refuses notifications before they are read and their senders are identified."""

    def __init__(self, app: types.ASGIApp, *, slots: NotificationSlots) -> None:
        self._app = app
        self._slots = slots
        problem = problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, REFUSAL, headers={"Retry-After": "1"})
        self._refusal = problems.response(problem)

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve a request, or refuse it."""
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(webhook_answers.PREFIX) and self._slots.are_full:
            self._slots.report_refusal()
            app = self._refusal
        await app(scope, receive, send)


async def for_each(names: Iterable[str], take: Callable[[str], Awaitable[None]]) -> None:
    """Await `take` for each name, AT_ONCE at a time.

    After an error, no further one begins. The error is raised once those under way have ended.
    """
    left = deque(names)

    async def take_until_empty() -> None:
        while left:
            try:
                await take(left.popleft())
            except BaseException:
                left.clear()
                raise

    for error in await asyncio.gather(*(take_until_empty() for _ in range(AT_ONCE)), return_exceptions=True):
        if error is not None:
            raise error
