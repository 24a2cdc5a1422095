"""The rate limits of providers, over all processes together: `transcript.ports.Throttle` in Postgres.

A row for each provider counts the grants, second by second, over the last window, a minute. A request takes the row's
lock, and then reads the database's clock: so one order and one clock hold for all processes. The window slides; one
that begins anew each minute would grant twice as much around its turn. A second counts until all of it is out of the
window: a grant comes up to a second late, never early.

A take is one statement, an update of that row. A refused request learns what stands in the window, sleeps until there
is room, if no other takes it, and asks again. Nothing is reserved: a cancelled request leaves nothing behind but
earlier grants. A grant stays counted, also if its process dies before it sends: the window forgets it.

Within a process requests are served in order, for each provider; among processes, the first to look once there is room
wins: a large request may be overtaken by small ones of others. If limits differ, as during the rollout of a platform
file, each process compares its own with all grants.
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
"""The seconds of a window. Tests use a shorter window, whose second is a sixtieth of it."""
JITTER = 0.5
"""Seconds, at most, that one who waits comes late, so that processes do not come as one."""
RETRY_SECONDS = 0.5
MOST_TOKENS = 10**12
"""The limit for one request: a larger count is wrong."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """The limits of a window; None: no limit."""

    requests: int | None
    tokens: int | None

    def admit(self, past: Iterable[Grant], *, second: int, tokens: int) -> bool:
        """Whether another request may be granted in that second, after those of the past."""
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
    """How many seconds after `now` a request may be granted, if nothing else is until then; 0 where it may be now."""
    past = list(past)
    leaving = sorted(usage.second + SECONDS + 1 for usage in past)
    seconds = [math.floor(now), *(second for second in leaving if second > now)]
    admitted = (second for second in seconds if limits.admit(past, second=second, tokens=tokens))
    return max(0.0, next(admitted) - now)  # there is one: at last nothing is left of the past


# Seconds in the future were counted before the clock was set back. They count, but not beyond a window: otherwise no
# request could be sent until the clock is there again.
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
    """The limits a minute of a platform file's providers."""

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
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._corrections: dict[str, dict[int, int]] = defaultdict(dict)
        """Tokens by the second that they are added to, or taken from."""

    def renewed(self, settings: Mapping[str, providers.Common]) -> RateLimits:
        """Return the limits of another platform file, for its users; both share the counts."""
        other = copy.copy(self)
        other._limits = _limits(settings)
        return other

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        """Wait until `provider` may be asked with so many tokens, by estimate.

        The grant counts whether it is used or not.

        A provider without limits costs no statement. A request that has more tokens than the limit, and so would never
        be granted, is granted once the window holds none. While the database is away, keep trying: the lease is in
        doubt as well, so nothing could be sent, and a run that loses it is cancelled here.
        """
        limits = self._limits.get(provider)
        tokens = min(tokens, MOST_TOKENS)
        if limits is None:
            return ports.Reservation(provider=provider, tokens=tokens)
        is_logged = False
        async with self._turns[provider]:
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
                    log.info("%s has been asked as fast as it may be: a request waits", provider, extra=about)
                    is_logged = True
                await asyncio.sleep(decision + random.random() * JITTER * self._second)  # noqa: S311 - spreads load

    def correct(self, taken: ports.Reservation, tokens: int) -> None:
        """Count so many tokens for a request instead of the estimate, from the next one that is taken on.

        What it had more is counted from now on, what it had less no longer where it stands: so the window never holds
        less than there was. With a statement that fails its corrections are lost, and the estimates stand.
        """
        limits = self._limits.get(taken.provider)
        if limits is None or limits.tokens is None:
            return
        more = min(tokens, MOST_TOKENS) - taken.tokens
        passed = math.ceil((time.monotonic() - taken.at) / self._second) if more > 0 else 0
        pending = self._corrections[taken.provider]
        pending[taken.second + passed] = pending.get(taken.second + passed, 0) + more

    async def _ask(self, provider: str, limits: Limits, tokens: int) -> ports.Reservation | float:
        """Take, or be told in how many seconds to ask again."""
        pending = self._corrections.pop(provider, {})  # before the statement, which may be kept though it seems to fail
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
