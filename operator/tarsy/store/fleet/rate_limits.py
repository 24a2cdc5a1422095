"""The rate limits of providers over all processes: `transcript.ports.Throttle` in Postgres.

A row of `throttles` for each provider counts the grants of each second in the window, the last minute. A request locks
the row and then reads the database's clock, so that all processes share one order and one clock. The window slides; one
that begins anew each minute would grant twice as much around its beginning. A second counts until all of it has left
the window, so a grant may come up to a second late, but never early.

A request for a grant is one statement, an update of the row. A refused request gets the counts of the window, sleeps
until the limits could admit it, and asks again. A waiting request reserves nothing, so it can be cancelled at any time.
If a process dies before it uses its grant, the grant counts until it leaves the window.

Within a process, the requests to a provider are served in order. Among processes, the first that asks after a grant is
possible gets it, so small requests may overtake a large one of another process. If limits differ between processes, as
during the rollout of a platform file, each process compares its own limits with all grants.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from tarsy.config.model import providers
from tarsy.store.base import databases
from tarsy.transcript import ports

WINDOW = 60.0  # seconds
SECONDS = 60
"""The number of parts of the window, each called a second. Tests use a shorter window with as many parts."""
JITTER = 0.5
"""The maximum random delay of a waiting request, in seconds, so that processes do not ask at the same time."""
RETRY_SECONDS = 0.5
MOST_TOKENS = 10**12
"""The maximum tokens of one request; a larger count is an error."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """The limits of a provider in a window; None is no limit."""

    requests: int | None
    tokens: int | None

    def admit(self, past: Iterable[Grant], *, second: int, tokens: int) -> bool:
        """Whether a request of `tokens` may be granted in that second, after the `past` grants."""
        counted = [usage for usage in past if usage.second >= second - SECONDS]
        return (self.requests is None or sum(usage.requests for usage in counted) < self.requests) and (
            self.tokens is None or sum(usage.tokens for usage in counted) + min(tokens, self.tokens) <= self.tokens
        )


@dataclass(frozen=True)
class Grant:
    """The grants of one second."""

    second: int
    requests: int
    tokens: int


def until_admitted(limits: Limits, past: Iterable[Grant], *, now: float, tokens: int) -> float:
    """Return the seconds from `now` until a request may be granted if no other is granted before; 0 if now."""
    past = list(past)
    leaving = sorted(usage.second + SECONDS + 1 for usage in past)
    seconds = [math.floor(now), *(second for second in leaving if second > now)]
    admitted = (second for second in seconds if limits.admit(past, second=second, tokens=tokens))
    return max(0.0, next(admitted) - now)  # never empty: the last of the seconds has an empty window


# Seconds in the future were counted before the clock was set back. They count up to one window ahead: otherwise no
# request could be sent until the clock reaches them.
_TAKE = text(f"""
  WITH held AS (
    SELECT seconds, requests, tokens FROM throttles WHERE provider = :provider FOR NO KEY UPDATE
  ), timed AS MATERIALIZED (
    SELECT held.*, extract(epoch FROM clock_timestamp()) / CAST(:second AS double precision) AS now FROM held
  ), counted AS (
    SELECT second, sum(past.requests) AS requests, greatest(sum(past.tokens), 0) AS tokens
    FROM timed, LATERAL (
      SELECT * FROM unnest(timed.seconds, timed.requests, timed.tokens) AS known (second, requests, tokens)
      UNION ALL
      SELECT corrected.second, 0, corrected.tokens
      FROM unnest(CAST(:corrected AS bigint[]), CAST(:corrections AS bigint[])) AS corrected (second, tokens)
    ) AS past
    WHERE second BETWEEN floor(timed.now) - {SECONDS} AND floor(timed.now) + {SECONDS}
    GROUP BY second
  ), judged AS (
    SELECT now,
      coalesce(used.requests < CAST(:most_requests AS bigint), true)
      AND coalesce(
        used.tokens + least(CAST(:tokens AS bigint), CAST(:most_tokens AS bigint)) <= CAST(:most_tokens AS bigint), true
      ) AS granted
    FROM timed, (
      SELECT coalesce(sum(requests), 0) AS requests, coalesce(sum(tokens), 0) AS tokens FROM counted
    ) AS used
  ), kept AS (
    SELECT coalesce(array_agg(CAST(second AS bigint) ORDER BY second), '{{}}') AS seconds,
      coalesce(array_agg(CAST(requests AS integer) ORDER BY second), '{{}}') AS requests,
      coalesce(array_agg(CAST(tokens AS bigint) ORDER BY second), '{{}}') AS tokens
    FROM (
      SELECT second, sum(requests) AS requests, sum(tokens) AS tokens
      FROM (
        SELECT * FROM counted
        UNION ALL
        SELECT CAST(floor(now) AS bigint), 1, CAST(:tokens AS bigint) FROM judged WHERE granted
      ) AS each
      GROUP BY second
    ) AS summed
  ), moved AS (
    UPDATE throttles SET seconds = kept.seconds, requests = kept.requests, tokens = kept.tokens
    FROM kept, judged
    WHERE provider = :provider
  )
  SELECT judged.*, kept.* FROM judged, kept
""")  # noqa: S608 - our own text

_BEGIN = text("INSERT INTO throttles (provider) VALUES (:provider) ON CONFLICT DO NOTHING")


def _limits(settings: Mapping[str, providers.Common]) -> dict[str, Limits]:
    return {
        name: Limits(requests=provider.requests_per_minute, tokens=provider.tokens_per_minute)
        for name, provider in settings.items()
        if provider.requests_per_minute or provider.tokens_per_minute
    }


class RateLimits:
    """The limits of a platform file's providers."""

    def __init__(
        self,
        database: databases.Database,
        settings: Mapping[str, providers.Common],
        *,
        window: float = WINDOW,
    ) -> None:
        """`settings` are the providers, by name; `window` is in seconds."""
        self._database = database
        self._second = window / SECONDS
        self._limits = _limits(settings)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._corrections: dict[str, dict[int, int]] = defaultdict(dict)
        """Tokens to add or subtract, by provider and second."""

    def renewed(self, settings: Mapping[str, providers.Common]) -> RateLimits:
        """Return the limits of another platform file; both share the counts."""
        other = copy.copy(self)
        other._limits = _limits(settings)
        return other

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        """Wait until the limits of `provider` admit a request of `tokens`, an estimate; the grant counts, used or not.

        A provider without limits costs no statement. A request of more tokens than the limit is granted when the window
        is empty. While the database is unavailable, the request is retried: the lease is uncertain then, so no call may
        be sent anyway, and a run that loses its lease is cancelled here.
        """
        limits = self._limits.get(provider)
        tokens = min(tokens, MOST_TOKENS)
        if limits is None:
            return ports.Reservation(provider=provider, tokens=tokens)
        is_logged = False
        async with self._locks[provider]:
            while True:
                try:
                    decision = await self._ask(provider, limits, tokens)
                except databases.StoreDownError as error:
                    log.warning("a request waits: %s", error, extra={"action": "throttle_waits"})
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if isinstance(decision, ports.Reservation):
                    return decision
                if not is_logged:
                    about = {"action": "throttled", "provider": provider, "seconds": round(decision, 3)}
                    log.info("%s is at its rate limit: a request waits", provider, extra=about)
                    is_logged = True
                await asyncio.sleep(decision + random.random() * JITTER * self._second)  # noqa: S311 - spreads load

    def correct(self, taken: ports.Reservation, tokens: int) -> None:
        """Count `tokens` for a granted request instead of the estimate, from the next request on.

        Additional tokens are added to the present second, and surplus tokens are subtracted from the second of the
        grant, so the window never counts too few. If the next statement fails, the correction is lost.
        """
        limits = self._limits.get(taken.provider)
        if limits is None or limits.tokens is None:
            return
        more = min(tokens, MOST_TOKENS) - taken.tokens
        passed = math.ceil((time.monotonic() - taken.at) / self._second) if more > 0 else 0
        pending = self._corrections[taken.provider]
        pending[taken.second + passed] = pending.get(taken.second + passed, 0) + more

    async def _ask(self, provider: str, limits: Limits, tokens: int) -> ports.Reservation | float:
        """Ask for a grant; return it, or the seconds until the next attempt."""
        pending = self._corrections.pop(provider, {})  # before the statement: it may commit although its reply is lost
        values = {
            "provider": provider,
            "tokens": tokens,
            "second": self._second,
            "corrected": list(pending),
            "corrections": list(pending.values()),
            "most_requests": limits.requests,
            "most_tokens": limits.tokens,
        }
        while not (rows := await self._database.run(_TAKE, **values)):
            await self._database.run(_BEGIN, provider=provider)
        (row,) = rows
        now = float(row.now)
        if row.granted:
            return ports.Reservation(provider=provider, tokens=tokens, second=math.floor(now), at=time.monotonic())
        past = map(Grant, row.seconds, row.requests, row.tokens)
        return self._second * until_admitted(limits, past, now=now, tokens=tokens)
