"""Receipts: only what intake made stands for an alert, and it makes one object for an episode."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support import queue
from tarsy.resources import investigation, naming
from tarsy.store import admission as admissions
from tarsy.store import database as databases
from tarsy.store import episodes, receipts, retention
from tarsy.transcript import admission

FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)
WINDOW = timedelta(days=7)
REFUSAL = admission.Refusal(reason="ChainNotReady", message="Chain 'x' is not ready")


def subject(
    name: str = "web-crash", *, receipt: str | None = None, suspend: bool = False
) -> investigation.AlertInvestigation:
    source = {"type": "alertmanager"} | ({"receipt": receipt} if receipt else {})
    return queue.subject(name, fingerprint=FINGERPRINT, startsAt=START, source=source, suspend=suspend)


def copied(given: investigation.AlertInvestigation) -> investigation.AlertInvestigation:
    """The same object, made anew."""
    metadata = given.metadata.model_copy(update={"uid": str(uuid.uuid4())})
    return given.model_copy(update={"metadata": metadata})


async def issue(database: databases.Database, *, name: str = "web-crash", start: datetime = START) -> receipts.Receipt:
    return await receipts.issue(
        database,
        namespace="tarsy",
        fingerprint=FINGERPRINT,
        starts_ms=naming.milliseconds(start),
        name=name,
        window=WINDOW,
    )


async def repeat(database: databases.Database, *, start: datetime = START) -> UUID | None:
    known = await episodes.repeat(
        database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=start, window=WINDOW, cooldown=WINDOW
    )
    return known.investigation if known else None


async def resolve(database: databases.Database) -> UUID | None:
    known = await episodes.resolved(database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=START)
    return known.investigation if known else None


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("shown", ["nothing", "a guess", "its receipt under another name", "an old receipt"])
async def test_an_object_of_people_stands_for_no_alert(
    database: databases.Database, *, shown: str, suspend: bool
) -> None:
    receipt = await issue(database)
    if shown == "an old receipt":
        await queue.execute(database, "UPDATE receipts SET created_at = clock_timestamp() - interval '8 days'")
        assert (await issue(database)).word != receipt.word
    words = {"nothing": None, "a guess": "0" * 32}
    name = "other" if shown == "its receipt under another name" else "web-crash"
    identity = await queue.admit(database, subject(name, receipt=words.get(shown, receipt.word), suspend=suspend))
    assert await repeat(database) is None
    assert await repeat(database, start=START + timedelta(hours=1)) is None, "no cool-down either"
    assert await resolve(database) is None
    found = await queue.summary(database, identity)
    assert (found.duplicates, found.alert_status, found.state) == (0, None, "queued")


async def test_the_first_object_with_the_receipt_stands_for_its_alert_and_a_copy_of_it_does_not(
    database: databases.Database,
) -> None:
    made = await queue.received(database, subject())
    copy = copied(made)
    first, second = await queue.admit(database, made), await queue.admit(database, copy)
    assert await repeat(database) == first
    assert await resolve(database) == first
    assert (await queue.summary(database, second)).alert_status is None
    receipt = await issue(database)
    assert (receipt.is_of(made), receipt.is_of(copy), receipt.is_of(subject())) == (True, False, False)


async def test_what_intake_has_just_made_stands_for_its_alert_whatever_had_the_receipt_before(
    database: databases.Database,
) -> None:
    made = await queue.received(database, subject())
    await queue.admit(database, made, chain=REFUSAL)
    again = copied(made)
    assert await admissions.admit(database, queue.admission(again), made=True)
    assert await repeat(database) == UUID(again.metadata.uid)


async def test_who_admits_it_at_once_admits_it_once(database: databases.Database) -> None:
    made = await queue.received(database, subject())
    admitted = await asyncio.gather(
        *(admissions.admit(database, queue.admission(made), made=number == 0) for number in range(10))
    )
    assert sorted(admitted) == [False] * 9 + [True]
    assert await repeat(database) == UUID(made.metadata.uid)


async def test_one_episode_has_one_receipt_whoever_asks_at_once(database: databases.Database) -> None:
    issued = await asyncio.gather(*(issue(database, name=f"name-{number}") for number in range(10)))
    assert len(set(issued)) == 1
    renamed = await asyncio.gather(*(receipts.rename(database, issued[0]) for _ in range(10)))
    assert len(set(renamed)) == 1
    assert renamed[0].name.startswith(f"{issued[0].name}-")
    assert renamed[0].word == issued[0].word
    assert await issue(database) == renamed[0]
    other = await issue(database, start=START + timedelta(milliseconds=1))
    assert other.word != issued[0].word


async def test_an_episode_whose_object_was_deleted_gets_a_new_receipt(database: databases.Database) -> None:
    receipt = await issue(database)
    identity = await queue.admit(database, await queue.received(database, subject()), chain=REFUSAL)
    kept = await issue(database)
    assert (kept.word, kept.investigation) == (receipt.word, identity)
    await retention.gone(database, identity)
    renewed = await issue(database)
    assert renewed.word != receipt.word
    assert renewed.investigation is None


async def test_receipts_are_dropped_after_the_window_and_not_within_the_hour(database: databases.Database) -> None:
    receipt = await issue(database)
    for age, window, kept in (("8 days", "30 days", 1), ("59 minutes", "1 second", 1), ("8 days", "7 days", 0)):
        await queue.execute(
            database,
            "UPDATE receipts SET created_at = clock_timestamp() - CAST(CAST(:age AS text) AS interval)",
            age=age,
        )
        count, unit = window.split()
        await receipts.drop_expired(database, window=timedelta(**{f"{unit.removesuffix('s')}s": int(count)}))
        assert len(await queue.rows(database, "SELECT 1 FROM receipts")) == kept
    with pytest.raises(databases.StoreDownError, match="has expired meanwhile"):
        await receipts.rename(database, receipt)
