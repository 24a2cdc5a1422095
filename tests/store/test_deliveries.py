"""The rows of messages to receivers: their order, their outcomes, their ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.operations import deliveries as stored
from tarsy.views import system_warnings

ROW = "SELECT event, attempts, next_at IS NULL, next_at <= clock_timestamp(), problem FROM deliveries"


async def queued(database: databases.Database, identity: UUID, event: Any = "ended", revision: int = 3) -> None:
    wanted = stored.Wanted(investigation=identity, receiver="r", event=event, revision=revision)
    await stored.queue(database, [wanted], changed=1)


async def begun(database: databases.Database, identity: UUID) -> stored.Due:
    due = await stored.begin_attempt(database, identity, receiver="r")
    assert due
    return due


async def test_outcome_of_a_delivery_attempt_counts_only_until_a_later_attempt_begins(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database)
    await queued(database, identity)
    former, present = await begun(database, identity), await begun(database, identity)
    await stored.sent(database, identity, former, receiver="r", sent_as={"ts": "former"})
    await stored.keep(database, identity, former, receiver="r", sent_as={"ts": "former"})
    assert await queue.rows(database, ROW) == [("ended", 2, False, True, "")]
    await stored.sent(database, identity, present, receiver="r", sent_as={"ts": "present"})
    await stored.failed(database, identity, former, receiver="r", problem="late", delay=timedelta(hours=1))
    assert await queue.rows(database, ROW) == [("ended", 0, True, None, "")]
    assert await queue.rows(database, "SELECT sent_as ->> 'ts' FROM deliveries") == [("present",)]


async def test_newer_event_does_not_wait_for_a_refused_event_and_has_its_own_retry_day(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database)
    await queued(database, identity, "started", 2)
    refused = await begun(database, identity)
    await stored.failed(database, identity, refused, receiver="r", problem="422", delay=timedelta(hours=1))
    assert (await queue.rows(database, ROW))[0][3] is False
    await queue.execute(database, "UPDATE deliveries SET since = since - interval '25 hours'")
    await queued(database, identity, "ended", 3)
    assert (await queue.rows(database, ROW))[0][3] is True
    assert await stored.give_up(database, receiver="r", limit=10) == []
    in_flight = await begun(database, identity)
    await queued(database, identity, "resolved", 4)
    await stored.failed(database, identity, in_flight, receiver="r", problem="422", delay=timedelta(hours=1))
    assert (await queue.rows(database, ROW))[0][3] is True, "the refusal was of the former one"


async def test_update_is_a_separate_message_after_the_milestone_and_waits_for_its_delay(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database)

    async def changed(event: Any, revision: int, told_of: str, *, is_silent: bool = False) -> None:
        wanted = stored.Wanted(
            investigation=identity, receiver="r", event=event, revision=revision, told_of=told_of, is_silent=is_silent
        )
        await stored.queue(database, [wanted], changed=1)

    async def sent() -> str:
        due = await begun(database, identity)
        await stored.sent(database, identity, due, receiver="r", sent_as={})
        return due.event

    async def pass_time() -> None:
        assert await stored.begin_attempt(database, identity, receiver="r") is None, "not yet"
        await queue.execute(database, "UPDATE deliveries SET next_at = next_at - interval '10 s'")

    await changed("started", 2, "0/1")
    assert await sent() == "started"
    await changed("started", 3, "0/1")
    assert (await queue.rows(database, ROW))[0][2], "nothing new"
    await changed("started", 4, "1/1")
    await pass_time()
    assert await sent() == "updated"
    await changed("started", 5, "2/1")
    await changed("ended", 6, "3/1")
    assert await sent() == "ended", "at once, and with the stages before it"
    await changed("ended", 7, "3/2")
    await pass_time()
    in_flight = await begun(database, identity)
    await changed("ended", 8, "3/3")
    await stored.sent(database, identity, in_flight, receiver="r", sent_as={})
    await pass_time()
    assert await sent() == "updated"
    assert (await queue.rows(database, ROW))[0][2]


async def test_message_that_was_given_up_is_in_the_summary_until_a_later_message_is_sent(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database)
    await queued(database, identity)
    attempt = await begun(database, identity)
    await stored.failed(database, identity, attempt, receiver="r", problem="422", delay=timedelta())
    revision = (await queue.summary(database, identity)).revision
    await queue.execute(database, "UPDATE deliveries SET since = since - interval '25 hours'")
    assert await stored.give_up(database, receiver="other", limit=10) == []
    assert await stored.give_up(database, receiver="r", limit=10) == [
        stored.GivenUp(investigation=identity, problem="422")
    ]
    assert await stored.give_up(database, receiver="r", limit=10) == []
    given_up = await queue.summary(database, identity)
    assert [(delivery.receiver, delivery.problem) for delivery in given_up.undelivered] == [("r", "422")]
    assert (given_up.revision, given_up.stale) == (revision + 1, True)
    await queued(database, identity, "resolved", 9)
    await stored.sent(database, identity, await begun(database, identity), receiver="r", sent_as={})
    sent = await queue.summary(database, identity)
    assert (sent.undelivered, sent.revision) == ((), revision + 2)
    await queue.execute(database, "DELETE FROM investigations")
    assert await queue.rows(database, "SELECT 1 FROM deliveries") == []


async def test_message_that_was_never_tried_is_given_up_after_two_days(database: databases.Database) -> None:
    tried, waiting = await queue.admit(database), await queue.admit(database, queue.subject("other"))
    for identity in (tried, waiting):
        await queued(database, identity)
    await stored.failed(database, tried, await begun(database, tried), receiver="r", problem="503", delay=timedelta(0))
    in_flight = await begun(database, tried)
    given_up = []
    for _ in range(2):
        await queue.execute(database, "UPDATE deliveries SET since = since - interval '25 hours'")
        given_up.append([delivery.investigation for delivery in await stored.give_up(database, receiver="r", limit=10)])
    assert given_up == [[tried], [waiting]]
    await stored.failed(database, tried, in_flight, receiver="r", problem="422", delay=timedelta(hours=1))
    assert await queue.rows(database, "SELECT count(next_at), count(gave_up_at) FROM deliveries") == [(0, 2)]


async def test_late_alert_resolution_is_sent_to_a_receiver_that_got_earlier_messages(
    database: databases.Database,
) -> None:
    position = await stored.begin(database)
    informed, untold = await queue.admit(database), await queue.admit(database, queue.subject("other"))
    for _ in range(2):
        writing = await queue.opened(database, await queue.claimed(database))
        await writing.commit(stories.run_ended(final_analysis="done"))
    news = (await stored.changes(database, changed=position, limit=10)).news
    assert {change.id: (change.is_recent, change.told) for change in news} == dict.fromkeys(
        (informed, untold), (True, frozenset())
    )
    await queued(database, informed)
    await queue.execute(database, "UPDATE investigations SET ended_at = ended_at - interval '3 days'")
    (change,) = (await stored.changes(database, changed=position, limit=10)).news
    assert (change.ended_stages, change.alerts) == (0, 0)
    assert (change.id, change.is_recent, change.told) == (informed, False, frozenset({"r"}))


async def test_receiver_that_takes_no_messages_is_named_with_all_that_wait_for_it(database: databases.Database) -> None:
    first, second = await queue.admit(database, queue.subject("a")), await queue.admit(database, queue.subject("b"))
    await queued(database, first)
    await queued(database, second)
    assert await stored.failing(database, ["r"]) == []
    due = await begun(database, first)
    await stored.failed(database, first, due, receiver="r", problem="it answers 403", delay=timedelta(hours=1))
    (failing,) = await stored.failing(database, ["r", "other"])
    assert (failing.receiver, failing.waiting, failing.problem) == ("r", 2, "it answers 403")
    assert await stored.failing(database, ["other"]) == [], "one that has left the platform file"
    (warning,) = system_warnings.receiver_warnings([failing])
    assert (warning.kind, warning.name, warning.since) == ("receiver", "r", failing.since)
    assert warning.message == "2 messages wait for it: it answers 403"
    await queue.execute(database, "UPDATE deliveries SET next_at = now()")
    await stored.sent(database, first, await begun(database, first), receiver="r", sent_as={})
    assert await stored.failing(database, ["r"]) == []
