"""Receipts: only what intake made stands for an alert, and it makes one object for an episode."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from support import queue
from tarsy.resources import investigations, naming
from tarsy.store.base import databases
from tarsy.store.intake import episodes, queueing, receipts
from tarsy.store.queue import work
from tarsy.transcript import admission

FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)
REFUSAL = admission.Refusal(reason="ChainNotReady", message="Chain 'x' is not ready")


def subject(
    name: str = "web-crash", *, receipt: str | None = None, suspend: bool = False
) -> investigations.AlertInvestigation:
    source = {"type": "alertmanager"} | ({"receipt": receipt} if receipt else {})
    held = {"suspend": True} if suspend else {}
    return queue.subject(name, fingerprint=FINGERPRINT, startsAt=START, source=source, **held)


def copied(original: investigations.AlertInvestigation) -> investigations.AlertInvestigation:
    """The same object, made anew."""
    metadata = original.metadata.model_copy(update={"uid": str(uuid.uuid4())})
    return original.model_copy(update={"metadata": metadata})


async def ask(
    database: databases.Database, *, name: str = "web-crash", start: datetime = START, digest: str = ""
) -> receipts.Receipt | episodes.Repeat:
    return await receipts.issue_for_alert(
        database,
        namespace="tarsy",
        fingerprint=FINGERPRINT,
        starts_ms=naming.milliseconds(start),
        name=name,
        digest=digest or subject().digest(),
        rule=queue.RULE,
        previous=None,
    )


async def issue(
    database: databases.Database, *, name: str = "web-crash", start: datetime = START, digest: str = ""
) -> receipts.Receipt:
    issued = await ask(database, name=name, start=start, digest=digest)
    assert isinstance(issued, receipts.Receipt)
    return issued


async def stored(database: databases.Database) -> receipts.Receipt:
    """The receipt as it is now."""
    ((name, word, identity, digests),) = await queue.rows(
        database, "SELECT name, word, investigation, digests FROM receipts"
    )
    return receipts.Receipt(
        namespace="tarsy",
        fingerprint=FINGERPRINT,
        starts_ms=naming.milliseconds(START),
        name=name,
        word=word,
        investigation=identity,
        digests=tuple(digests),
    )


async def repeat(database: databases.Database, *, start: datetime = START) -> UUID | None:
    return await queue.repeat(database, fingerprint=FINGERPRINT, starts_at=start)


async def resolve(database: databases.Database) -> UUID | None:
    investigation = await episodes.resolve(database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=START)
    return investigation.id if investigation else None


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("presented", ["nothing", "a guess", "its receipt under another name", "an old receipt"])
async def test_object_that_a_user_created_stands_for_no_alert(
    database: databases.Database, *, presented: str, suspend: bool
) -> None:
    receipt = await issue(database)
    if presented == "an old receipt":
        await queue.execute(database, "UPDATE receipts SET created_at = clock_timestamp() - interval '8 days'")
        assert (await issue(database)).word != receipt.word
    words = {"nothing": None, "a guess": "0" * 32}
    name = "other" if presented == "its receipt under another name" else "web-crash"
    identity = await queue.admit(database, subject(name, receipt=words.get(presented, receipt.word), suspend=suspend))
    assert await repeat(database) is None
    assert await repeat(database, start=START + timedelta(hours=1)) is None, "no cool-down either"
    assert await resolve(database) is None
    summary = await queue.summary(database, identity)
    assert (summary.duplicates, summary.alert_status, summary.state) == (0, None, "queued")


def by(author: str, *, name: str = "web-crash", fingerprint: str = FINGERPRINT) -> investigations.AlertInvestigation:
    return queue.subject(name, fingerprint=fingerprint, startsAt=START, source={"type": "alertmanager"}, author=author)


async def test_audit_names_the_caller_of_intake_even_if_the_watch_admits_the_object(
    database: databases.Database,
) -> None:
    """`queue.received` issues receipts for CALLER's address."""
    received = await queue.received(database, by("by the watch"))
    await queue.admit(database, received)
    made = await queue.received(database, by("by intake", name="made", fingerprint="another"))
    for address in ("198.51.100.1", "198.51.100.2"):
        await queueing.admit(database, queue.admission(made), just_created=True, address=address)
    await queue.admit(database, copied(received))
    await queue.admit(database, queue.subject("of-people", author="somebody"))
    assert await queue.rows(database, "SELECT action, name, who, address FROM audit ORDER BY who") == [
        ("create", "made", "by intake", "198.51.100.1"),
        ("create", "web-crash", "by the watch", queue.CALLER.address),
    ]


async def test_the_first_object_with_the_receipt_stands_for_its_alert_and_a_copy_of_it_does_not(
    database: databases.Database,
) -> None:
    made = await queue.received(database, subject())
    copy = copied(made)
    first, second = await queue.admit(database, made), await queue.admit(database, copy)
    assert await repeat(database) == first
    assert await resolve(database) == first
    assert (await queue.summary(database, second)).alert_status is None
    receipt = await stored(database)
    assert (receipt.proves(made), receipt.proves(copy), receipt.proves(subject())) == (True, False, False)


def changed(
    original: investigations.AlertInvestigation, *, generation: int = 1, **spec: Any
) -> investigations.AlertInvestigation:
    """The same object with another spec: made anew, or edited where it is of a later generation."""
    copy = copied(original) if generation == 1 else original
    metadata = copy.metadata.model_copy(update={"generation": generation})
    return copy.model_copy(update={"metadata": metadata, "spec": copy.spec.model_copy(update=spec)})


@pytest.mark.parametrize(
    "spec",
    [{"alert_data": "nothing to see"}, {"suspend": True}, {"cancel": True}, {"ttl_seconds_after_finished": 0}],
    ids=lambda spec: ", ".join(spec),
)
async def test_object_that_replaces_intakes_object_counts_only_with_the_same_spec(
    database: databases.Database, spec: dict[str, Any]
) -> None:
    made = await queue.received(database, subject())
    put = changed(made, **spec)
    receipt = await issue(database)
    assert (receipt.proves(put), receipt.proves(copied(made))) == (False, True)
    identity = await queue.admit(database, put)
    assert await repeat(database) is None
    assert (await queue.summary(database, identity)).alert_status is None
    first = await queue.admit(database, copied(made))
    assert await repeat(database) == first


async def test_mutable_fields_of_intakes_object_may_change_before_admission(database: databases.Database) -> None:
    made = await queue.received(database, subject())
    edited = changed(made, generation=2, suspend=True, ttl_seconds_after_finished=60)
    receipt = await issue(database)
    assert receipt.proves(edited)
    assert not receipt.proves(changed(made, generation=2, alert_data="nothing to see"))
    assert await repeat(database) is None
    assert await queue.admit(database, edited) == await repeat(database)


async def test_receipt_has_the_digests_of_all_notifications_of_its_episode(database: databases.Database) -> None:
    made = await queue.received(database, subject())
    first = await issue(database)
    others = [await issue(database, digest=f"{number}") for number in range(receipts.DIGESTS_MAX - 1)]
    assert others[-1].proves(made)
    assert len({receipt.word for receipt in (first, *others)}) == 1
    assert (await receipts.read(database, first)) == others[-1]
    assert not (await issue(database, digest="one too many")).proves(made)
    assert (await issue(database)).proves(made)
    identity = await queue.admit(database, made)
    assert isinstance(await ask(database, digest="later"), episodes.Repeat)
    admitted = await stored(database)
    assert (admitted.investigation, "later" in admitted.digests) == (identity, False)


async def test_object_that_intake_just_created_stands_for_its_alert(database: databases.Database) -> None:
    made = await queue.received(database, subject())
    await queue.admit(database, made, chain=REFUSAL)
    again = copied(made)
    assert await queueing.admit(database, queue.admission(again), just_created=True)
    assert await repeat(database) == UUID(again.metadata.uid)


async def test_concurrent_admissions_admit_once(database: databases.Database) -> None:
    made = await queue.received(database, subject())
    admitted = await asyncio.gather(
        *(queueing.admit(database, queue.admission(made), just_created=number == 0) for number in range(10))
    )
    assert sorted(admitted) == [False] * 9 + [True]
    assert await repeat(database) == UUID(made.metadata.uid)


async def test_concurrent_notifications_of_an_episode_get_one_receipt(database: databases.Database) -> None:
    issued = await asyncio.gather(*(issue(database, name=f"name-{number}") for number in range(10)))
    assert len(set(issued)) == 1
    renamed = await asyncio.gather(*(receipts.rename(database, issued[0]) for _ in range(10)))
    assert len(set(renamed)) == 1
    assert renamed[0].name.startswith(f"{issued[0].name}-")
    assert renamed[0].word == issued[0].word
    assert await issue(database) == renamed[0]
    other = await issue(database, start=START + timedelta(milliseconds=1))
    assert other.word != issued[0].word


async def test_refused_alert_gets_a_new_receipt_and_name_once_its_object_is_deleted(
    database: databases.Database,
) -> None:
    receipt = await issue(database)
    identity = await queue.admit(database, await queue.received(database, subject()), chain=REFUSAL)
    repeated = await ask(database)
    assert isinstance(repeated, episodes.Repeat)
    assert repeated.investigation == episodes.Reference(id=identity, name="web-crash")
    await work.gone(database, identity)
    renewed = await issue(database)
    assert renewed.word != receipt.word
    assert (renewed.name, renewed.investigation) == ("web-crash-2", None)


async def test_receipts_are_dropped_after_the_window_and_not_within_the_hour(database: databases.Database) -> None:
    receipt = await issue(database)
    for age, window, remaining in (("8 days", "30 days", 1), ("59 minutes", "1 second", 1), ("8 days", "7 days", 0)):
        await queue.execute(
            database,
            "UPDATE receipts SET created_at = clock_timestamp() - CAST(CAST(:age AS text) AS interval)",
            age=age,
        )
        count, unit = window.split()
        await receipts.drop_expired(database, window=timedelta(**{f"{unit.removesuffix('s')}s": int(count)}))
        assert len(await queue.rows(database, "SELECT 1 FROM receipts")) == remaining
    for ask in (receipts.rename, receipts.read):
        with pytest.raises(databases.StoreDownError, match="has expired meanwhile"):
            await ask(database, receipt)
