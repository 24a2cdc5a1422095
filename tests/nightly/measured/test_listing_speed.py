"""A hundred thousand investigations are listed, filtered, searched and counted in less than 200 ms on two idle cores.

What is asserted is how often longer that takes than a fixed statement in the same database at that moment: so a slower
machine, or a busy one, fails nothing. The milliseconds are printed.
"""

from __future__ import annotations

import json
import operator
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import sqlalchemy
from support import crowd, queue
from tarsy.api.compat import history
from tarsy.store.base import databases, schema
from tarsy.store.intake import queueing
from tarsy.store.reads import listing

pytestmark = pytest.mark.timeout(480)

FIXED = sqlalchemy.text(
    "SELECT count(*) FROM generate_series(1, 100000) AS number WHERE md5(CAST(number AS text)) < '8'"
)
"""36 ms of an idle core that lists in 192 ms at most: 5.3 times as long."""
P95_TIMES = 8
ADMISSION_TIMES = 1.5
SAMPLES = 20
ROUNDS = 10
"""The rounds: a slow one is measured again, because other programs may have the machine just now."""
ALL = listing.Query(namespaces={crowd.NAMESPACE: crowd.NAMESPACE_UID})
MIDDLE = datetime(2026, 2, 5, tzinfo=UTC)
LAST_DAY = datetime(2026, 3, 10, tzinfo=UTC)


@pytest.fixture
async def crowded(database_url: str) -> AsyncIterator[databases.Database]:
    """A database with a hundred thousand investigations."""
    database = databases.Database(database_url)
    await schema.migrate(database)
    await crowd.gather(database)
    yield database
    await database.close()


HARDEST = "a phrase of none, whose words are in all"
PHRASES = {
    "a phrase of all": f"{crowd.COMMON} failed container",
    HARDEST: f"container {crowd.COMMON}",
    "a phrase of none, one word of which is in few": f"{crowd.RARE} {crowd.COMMON}",
}
HOUR = {"since": MIDDLE, "until": MIDDLE + timedelta(hours=1)}


def searching(text: str, *phrases: str, **asked: Any) -> listing.Query:
    return replace(ALL, search=listing.Search(text=text, phrases=phrases), **asked)


def queries() -> Iterator[tuple[str, listing.Query]]:
    """Yield the usual queries, and those that are worst for a database."""
    yield "the newest", ALL
    for key in get_args(listing.Key):
        yield f"by {key}, from the last", replace(ALL, key=key)
    yield "the oldest", replace(ALL, descending=False)
    yield "ended in one way", replace(ALL, phases=("TimedOut",))
    yield "open", replace(ALL, phases=("Running",))
    yield "open or ended", replace(ALL, phases=("Queued", "Failed"))
    yield "of a type", replace(ALL, alert_type="AlertType7")
    yield "of no type", replace(ALL, alert_type="nothing")
    yield "of an alert", replace(ALL, fingerprint="cfcd208495d565ef")
    yield "since", replace(ALL, since=MIDDLE)
    yield "a rare word", searching(crowd.RARE)
    yield "a word of all", searching(crowd.COMMON)
    yield "a rare word beside those of all", searching(f"{crowd.COMMON} failed {crowd.RARE}")
    for name, phrase in PHRASES.items():
        yield name, searching(phrase, phrase)
    yield f"{HARDEST}, by author", searching(PHRASES[HARDEST], PHRASES[HARDEST], key="author")
    yield f"{HARDEST}, ended in one way", searching(PHRASES[HARDEST], PHRASES[HARDEST], phases=("TimedOut",))
    yield f"{HARDEST}, of an hour", searching(PHRASES[HARDEST], PHRASES[HARDEST], **HOUR)
    yield (
        "all together",
        replace(
            ALL,
            phases=("Completed", "Failed", "Running"),
            alert_type="AlertType7",
            chain="chain-1",
            author="person-1@example.com",
            since=datetime(2026, 1, 2, tzinfo=UTC),
            until=MIDDLE,
            search=listing.Search(text=crowd.COMMON),
            key="ended_at",
        ),
    )


async def fixed(database: databases.Database) -> float:
    """Seconds that the fixed statement takes just now."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        await database.run(FIXED)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def p95(
    database: databases.Database, query: listing.Query, *, after: listing.Position | None = None, skip: int = 0
) -> tuple[float, float]:
    """Seconds within which all pages but one of SAMPLES are there, and how often longer than the fixed statement.

    Of the best round, if it takes more than one.
    """
    best = float("inf"), float("inf")
    for _ in range(ROUNDS):
        took, unit = [], await fixed(database)
        for _ in range(SAMPLES):
            began = time.perf_counter()
            await listing.page(database, query, after=after, skip=skip, limit=25)
            took.append(time.perf_counter() - began)
        seconds = sorted(took)[-2]
        best = min(best, (seconds, seconds / unit), key=operator.itemgetter(1))
        if best[1] < P95_TIMES:
            break
    return best


async def admitted(database: databases.Database, *, count: int) -> list[float]:
    """Seconds of each of so many admissions of alerts of 2 kB."""
    took = []
    for number in range(count):
        lines = [{"pod": f"web-{number:x}-{line:x}", "message": f"{number * line:08x} back-off"} for line in range(40)]
        made = queue.admission(queue.subject(f"one-{number}", alertData=json.dumps(lines)))
        began = time.perf_counter()
        assert await queueing.admit(database, made)
        took.append(time.perf_counter() - began)
    return took


async def test_pages_and_admissions_stay_fast_with_a_hundred_thousand_investigations(
    crowded: databases.Database,
) -> None:
    page = await listing.page(crowded, ALL, limit=1)
    assert sum(page.counts.values()) == crowd.COUNT
    slow = {}
    for name, query in queries():
        slow[name] = await p95(crowded, query)
    deep = (await listing.page(crowded, replace(ALL, until=MIDDLE), limit=1)).items[0]
    for key in get_args(listing.Key):
        slow[f"deep, by {key}"] = await p95(crowded, replace(ALL, key=key), after=deep.position(key))
    slow["deep, a word of all"] = await p95(crowded, searching(crowd.COMMON), after=deep.position("admitted_at"))
    hardest = searching(PHRASES[HARDEST], PHRASES[HARDEST])
    slow[f"deep, {HARDEST}"] = await p95(crowded, hardest, after=deep.position("admitted_at"))
    last = history.REACHED_MAX - 25
    slow["the last page by number"] = await p95(crowded, ALL, skip=last)
    slow["the last page by number, of a type"] = await p95(crowded, replace(ALL, alert_type="AlertType7"), skip=last)
    print({name: round(seconds * 1000) for name, (seconds, _) in slow.items()})
    assert {name: timing for name, timing in slow.items() if timing[1] >= P95_TIMES} == {}
    unit = await fixed(crowded)
    took = await admitted(crowded, count=100)
    print(f"admission: {statistics.median(took) * 1000:.1f} ms, at most {max(took) * 1000:.1f}")
    assert sorted(took)[-2] < ADMISSION_TIMES * unit
