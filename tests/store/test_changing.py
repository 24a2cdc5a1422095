"""The lists that are watched, over a real database."""

from __future__ import annotations

from typing import Any

import pytest
from support import queue, stories, watching
from tarsy.api.compat import live_updates
from tarsy.live import backlogs, list_feed, live_events
from tarsy.store.base import databases
from tarsy.store.reads import changes

pytestmark = pytest.mark.usefixtures("own_postgres")

TARSY = {"tarsy": "uid-of-tarsy"}
CHANNEL = live_events.Channel(None)
SESSIONS = live_updates.SessionTranslation()


def listener(channel: live_events.Channel = CHANNEL) -> backlogs.Subscriber:
    return backlogs.Subscriber(watching.box(), channel)


async def received(listens: backlogs.Subscriber) -> list[dict[str, Any]]:
    """The messages that wait for a listener."""
    return [watching.event(await listens.backlog.next()) for _ in range(len(listens.backlog._queue))]


async def test_list_subscription_gets_no_events_of_a_recreated_namespace(database: databases.Database) -> None:
    lists = list_feed.ListFeed(database, backlogs.Memory())
    before, since, beside = listener(), listener(), listener()
    async with (
        lists.subscribe({"tarsy": "uid of an earlier one"}, before, after=None),
        lists.subscribe({"other": "uid of the other"}, beside, after=None),
        lists.subscribe({"tarsy": "uid-of-tarsy"}, since, after=None),
    ):
        assert before.ended.done()
        assert before.ended.result() == "namespace tarsy was deleted and created again: subscribe again"
        await queue.admit(database)
        await lists.poll()
        assert len(since.backlog._queue) == 1
        assert not before.backlog._queue
        assert not beside.ended.done()
        assert not since.ended.done()


async def test_list_subscription_gets_the_events_of_its_namespaces_in_their_order(database: databases.Database) -> None:
    lists = list_feed.ListFeed(database, backlogs.Memory())
    of_a, of_both, of_all = listener(), listener(), listener()
    a, b, c = ({name: f"uid-of-{name}"} for name in "abc")
    begin = await changes.now(database)
    async with (
        lists.subscribe(a, of_a, after=None),
        lists.subscribe(c | a, of_both, after=None),
        lists.subscribe(a | b | c, of_all, after=None),
    ):
        for number, namespace in enumerate("abcbaac"):
            await queue.admit(database, queue.subject(f"{namespace}-{number}"))
            values = {"number": f"%-{number}", "namespace": namespace}
            await queue.execute(
                database, "UPDATE investigations SET namespace = :namespace WHERE name LIKE :number", **values
            )
        await lists.poll()
        horizon = await changes.now(database)
        async with lists.subscribe(c | a, caught_up := listener(), after=begin):
            pass
        for subscriber, names in (
            (of_a, ["a-0", "a-4", "a-5"]),
            (of_both, ["a-0", "c-2", "a-4", "a-5", "c-6"]),
            (caught_up, ["a-0", "c-2", "a-4", "a-5", "c-6"]),
            (of_all, ["a-0", "b-1", "c-2", "b-3", "a-4", "a-5", "c-6"]),
        ):
            events = await received(subscriber)
            assert [event["name"] for event in events] == names
            assert [event.get("id") for event in events] == [*[None] * (len(names) - 1), horizon], "resumed after all"


def steps(messages: list[dict[str, Any]]) -> list[str]:
    return [message["current_step"] for message in messages if message["type"] == "alert_status"]


async def test_earlier_clients_are_sent_each_update_of_a_stage_on_the_channel_of_all_sessions(
    database: databases.Database,
) -> None:
    lists = list_feed.ListFeed(database, backlogs.Memory(), SESSIONS)
    sessions, ours = listener(live_events.Channel(None, SESSIONS)), listener()
    begin = await changes.now(database)
    async with lists.subscribe(TARSY, sessions, after=None), lists.subscribe(TARSY, ours, after=None):
        identity = await queue.admit(database)
        await lists.poll()
        journal = await queue.opened(database, await queue.claimed(database))
        await journal.commit(stories.stage_started())
        await lists.poll()
        sent = await received(sessions)
        assert steps(sent) == ["Starting chain execution", "Starting analysis"]
        await journal.commit(stories.stage_ended("analysis", "TimedOut", "too late"))
        await journal.commit(stories.run_ended("CompletedWithErrors", final_analysis="root cause"))
        await lists.poll()
        sent += await received(sessions)
        await lists.poll()
        assert not sessions.backlog._queue, "each is sent once"
        assert steps(await received(ours)) == []
    assert steps(sent)[2:] == ["Completed analysis", "Chain execution finished"]
    assert {(message["channel"], message["session_id"]) for message in sent} == {("sessions", str(identity))}
    updates = [message for message in sent if message["type"] == "alert_status"]
    assert {update["alert_id"] for update in updates} == {str(identity)}
    assert [update["stage_progress"][0]["agent"] for update in updates] == ["KubernetesAgent"] * 4
    assert (updates[-1]["status"], updates[-1]["result"], "id" in updates[-1]) == ("completed", "root cause", False)
    assert (sent[-1]["type"], sent[-1]["id"]) == ("session.completed", sent[-1]["id"])
    late = listener(live_events.Channel(None, SESSIONS))
    async with lists.subscribe(TARSY, late, after=begin):
        assert steps(await received(late)) == ["Chain execution finished"], "a catch-up tells where each one stands now"


"""Bytes of each one's."""


async def test_catch_up_of_a_list_ends_near_200_investigations_and_returns_the_cursor(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_feed, "CATCH_UP_MAX", 20)
    begin = await changes.now(database)
    identities = [await queue.admit(database) for _ in range(30)]
    lists = list_feed.ListFeed(database, backlogs.Memory())
    events: list[dict[str, Any]] = []
    for _ in range(2):
        listens = listener()
        async with lists.subscribe(TARSY, listens, after=begin):
            events += [watching.event(encoded) for encoded in listens.backlog._queue]
        begin = events[-1].get("last_event_id", 0)
    assert (events[20]["type"], events[20]["limit"]) == ("catchup.overflow", 20)
    assert [event["investigation"] for event in events if "investigation" in event] == [str(uid) for uid in identities]


async def test_subscriptions_end_after_a_restore_to_an_older_list(database: databases.Database) -> None:
    """It was restored: nothing would be told until it had come as far again."""
    lists, listens = list_feed.ListFeed(database, backlogs.Memory()), listener()
    ahead = await changes.now(database) + 1000
    with pytest.raises(live_events.FutureError, match="is in the future of this database: read the list again"):
        await lists.check_cursor(TARSY, after=ahead)
    with pytest.raises(live_events.FutureError):
        async with lists.subscribe(TARSY, listens, after=ahead):
            pass
    async with lists.subscribe(TARSY, listens, after=None):
        lists._changed = ahead
        await lists.poll()
        assert listens.ended.result() == "the database was restored from a backup: read the list again"
