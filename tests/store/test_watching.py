"""Messages to subscribers, by the API over a real database; rights are the cluster's tests'."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import live_texts, queue, stories, watching
from support.watched_api import ASKED, STORY, World, eventually, listening, slow_reader
from tarsy.live import subscriptions, web_socket_protocol
from tarsy.serve import answers
from tarsy.serve import connections as protocols
from tarsy.transcript import ports
from tarsy_dev import patience
from websockets import frames


def turn(watched: World, number: int = 0) -> ports.StreamedCall:
    return live_texts.turn(watched.identity, stage="analysis", execution="one", number=number)


def types(messages: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return [(message["type"], message.get("id")) for message in messages]


async def test_live_events_are_in_order_and_the_last_event_of_an_entry_has_its_number(watched: World) -> None:
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel=watched.channel)
        first = await watcher.until_type("investigation.status")
        await eventually(lambda: listening(watched) == 1)  # it has caught up
        assert [event["type"] for event in first] == ["subscription.confirmed", "investigation.status"]
        assert (first[1]["phase"], first[1]["investigation"]) == ("Running", str(watched.identity))
        assert first[1]["channel"] == watched.channel
        rest = []
        for commit, last in zip(STORY, (1, 3, 4, 5, 7, 8), strict=True):
            await watched.commit(commit)
            rest += await watcher.until(lambda message, last=last: message.get("id") == last)  # type: ignore[misc]
    # A status is read after the entries beside it, so it may come before those that are committed meanwhile.
    statuses = [message for message in rest if message["type"] == "investigation.status"]
    assert types([message for message in rest if message not in statuses]) == [
        ("stage.started", 1),
        ("timeline_event.created", None),
        ("timeline_event.created", None),
        ("timeline_event.created", 3),
        ("timeline_event.completed", None),
        ("timeline_event.created", 4),
        ("timeline_event.created", 5),
        ("stage.completed", 7),
        ("investigation.completed", 8),
    ], types(rest)
    assert rest[-1]["final_analysis"] == "it is memory"
    assert [(status["phase"], status["progress"]) for status in statuses] == [
        ("Running", "0/1"),
        ("Running", "1/1"),
        ("Completed", "1/1"),
    ]


async def test_later_subscriber_gets_the_same_events_and_resuming_gets_only_newer_events(watched: World) -> None:
    await watched.commit(*STORY)
    async with watching.watching(watched.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=watched.channel)
        events = await watcher.until_type("investigation.completed")
        seen = watching.Seen()
        for message in events:
            seen.take(message)
        assert seen.events == await watched.timeline(session)
        await watcher.ask(action="catchup", channel=watched.channel, last_event_id=5)
        rest = await watcher.until_type("investigation.completed")
        assert types(rest) == [("subscription.confirmed", None), ("investigation.status", None), *types(events)[-2:]]


async def test_client_that_reconnects_repeatedly_receives_the_complete_timeline(watched: World) -> None:
    """By both ways, at any place, while it is written: what it has at the end is what is read at the end."""
    dice = random.Random(5)  # noqa: S311 - where it is cut

    async def write() -> None:
        for commit in stories.commits(seed=5):
            await watched.commit(commit, hinted=dice.random() < 0.8)

    async def by_socket() -> watching.Seen:
        seen = watching.Seen()
        while True:
            async with watching.watching(watched.url) as watcher:
                await watcher.ask(action="subscribe", channel=watched.channel, last_event_id=seen.last)
                for _ in range(dice.randint(8, 40)):
                    seen.take(message := await watcher.next())
                    if message["type"] == "investigation.completed":
                        return seen
                watcher.cut()

    async def by_stream(session: aiohttp.ClientSession) -> watching.Seen:
        seen = watching.Seen()
        while True:
            headers = {"Last-Event-ID": str(seen.last)} if seen.last else {}
            async with session.get(f"{watched.url}{watched.path}/events", headers=headers) as response:
                reader = watching.Reader(response)
                for _ in range(dice.randint(8, 40)):
                    seen.take(message := await reader.next())
                    if message["type"] == "investigation.completed":
                        return seen

    async with aiohttp.ClientSession() as session, patience.limit():
        _, first, other = await asyncio.gather(write(), by_socket(), by_stream(session))
        timeline = await watched.timeline(session)
    assert first.events == timeline
    assert other.events == timeline


async def test_catch_up_ends_after_200_events_at_an_entry_and_returns_the_cursor(watched: World) -> None:
    asked = stories.asks(*["k8s.pods_log"] * 80)
    await watched.commit(*STORY[:1], (asked,), (stories.ran(asked),), (stories.answers(call_number=1),))
    async with watching.watching(watched.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=watched.channel)
        sent = await watcher.until_type("catchup.overflow")
        events = [message for message in sent if "event" in message]
        assert (sent[-1]["last_event_id"], sent[-1]["limit"], len(events)) == (3, 200, 80)
        await watched.commit((stories.ended(outcome="Failed", error="no"),))
        more = (await watcher.until(lambda message: "id" in message))[-1]
        assert (more["id"], more["event"]["content"]) == (6, "no"), "from the head on it is told live"
        path = f"{watched.url}{watched.path}/events?last_event_id=4"
        async with session.get(path) as response:
            reader = watching.Reader(response)
            while reader.last_event_id != "6":
                await reader.next()


async def test_cursor_of_the_future_and_unknown_id_are_refused(watched: World) -> None:
    await watched.commit(*STORY[:2])
    async with watching.watching(watched.url) as watcher, aiohttp.ClientSession() as session:
        error = await watcher.answer(action="subscribe", channel=watched.channel, last_event_id=4)
        assert (error["type"], error["status"], error["channel"]) == ("subscription.error", 422, watched.channel)
        assert "entry 4 is in the future: the last one is 3" in error["reason"]
        error = await watcher.answer(action="subscribe", channel=f"investigation:{UUID(int=1)}")
        assert (error["type"], error["status"]) == ("subscription.error", 404)
        for headers, query, location in (
            ({"Last-Event-ID": "4"}, "", "last_event_id"),
            ({"Last-Event-ID": "x"}, "", "header.Last-Event-ID"),
            ({"Last-Event-ID": "99999999999999999999"}, "", "header.Last-Event-ID"),
            ({}, "?last_event_id=-1", "query.last_event_id"),
            ({}, "?after=1", "query.after"),
        ):
            async with session.get(f"{watched.url}{watched.path}/events{query}", headers=headers) as response:
                problem = await response.json()
                assert (response.status, problem["errors"][0]["place"]) == (422, location)


async def test_an_answer_grows_while_it_is_written_and_completes_under_its_id(watched: World) -> None:
    await watched.commit(*STORY[:1])
    async with (
        watching.watching(watched.url) as early,
        watching.watching(watched.url) as late,
        live_texts.worker(watched.database.url) as speaker,
    ):
        await early.ask(action="subscribe", channel=watched.channel)
        await early.until_type("stage.started")
        with speaker.open_stream(turn(watched)) as stream:
            stream.text("it is ")
            created = (await early.until_type("timeline_event.created"))[-1]
            event = created["event"]
            assert (event["id"], event["status"], event["content"]) == ("one.0.text", "streaming", "it is ")
            assert ("id" in created, "seq" in event) == (False, False)
            await late.ask(action="subscribe", channel=watched.channel)
            begun = (await late.until_type("timeline_event.created"))[-1]
            assert begun["event"]["content"] == "it is ", "who comes in the middle is given what there is"
            stream.text("memory")
            for watcher in (early, late):
                chunk = (await watcher.until_type("stream.chunk"))[-1]
                assert {key: chunk[key] for key in ("event_id", "offset", "delta")} == {
                    "event_id": "one.0.text",
                    "offset": 6,
                    "delta": "memory",
                }
            stream.again()
            stream.text("it is CPU")
            for watcher in (early, late):
                seen = watching.Seen()
                seen.take(begun | {"event": begun["event"] | {"content": "it is memory"}})
                while seen.events["one.0.text"]["content"] != "it is CPU":
                    seen.take(await watcher.next())
            await watched.commit((stories.answers("it is CPU"),))
        speaker.announce_commit(watched.identity)
        for watcher in (early, late):
            done = (await watcher.until(lambda message: "id" in message))[-1]
            assert (done["type"], done["id"]) == ("timeline_event.completed", 3)
            assert (done["event"]["id"], done["event"]["status"]) == ("one.0.text", "completed")


async def test_progress_of_a_tool_grows_and_its_result_replaces_it(watched: World) -> None:
    await watched.commit(*STORY[:2])
    async with watching.watching(watched.url) as watcher, live_texts.worker(watched.database.url) as speaker:
        await watcher.ask(action="subscribe", channel=watched.channel)
        await watcher.until(lambda message: message.get("id") == len(STORY[0]) + 1)
        with speaker.open_stream(turn(watched)) as stream:
            stream.tool("0.0", "1/2 reading\n")
            created = (await watcher.until_type("timeline_event.created"))[-1]["event"]
            assert {key: created[key] for key in ("id", "type", "status", "content")} == {
                "id": "one.0.0.result",
                "type": "tool_result",
                "status": "streaming",
                "content": "1/2 reading\n",
            }
            stream.tool("0.0", "2/2 reading\n")
            chunk = (await watcher.until_type("stream.chunk"))[-1]
            assert (chunk["event_id"], chunk["offset"], chunk["delta"]) == ("one.0.0.result", 12, "2/2 reading\n")
            await watched.commit(STORY[2])
        speaker.announce_commit(watched.identity)
        updates = await watcher.until(lambda message: "id" in message)
        result = next(update for update in updates if update.get("event", {}).get("id") == "one.0.0.result")
        assert result["type"] == "timeline_event.completed"
        assert (result["event"]["status"], result["event"]["content"]) == ("completed", "r")


async def test_abandoned_answer_is_discarded_also_after_its_worker_died(watched: World) -> None:
    await watched.commit(*STORY[:1])
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel=watched.channel)
        async with live_texts.worker(watched.database.url) as speaker:
            with speaker.open_stream(turn(watched)) as stream:
                stream.text("never mind")
                await watcher.until_type("timeline_event.created")
            gone = (await watcher.until_type("timeline_event.completed"))[-1]
            assert (gone["event"]["id"], gone["event"]["status"]) == ("one.0.text", "failed")
            assert (gone["event"]["metadata"], "id" in gone) == ({"discarded": True}, False)
            dying = speaker.open_stream(turn(watched, 1))
            dying.__enter__().text("I am")
            await watcher.until_type("timeline_event.created")
        await watched.commit((stories.unanswered(call_number=1),))
        gone, failed = await watcher.until(lambda message: "id" in message)
        assert (gone["event"]["id"], gone["event"]["metadata"]) == ("one.1.text", {"discarded": True})
        assert failed["event"]["id"] == "one.1.error"
        dying.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("first", "frame"),
    [
        (b"", b"\x89\x80" + b"mask"),
        (b"", b"\x89\xfd" + b"\0\0\0\0" + b"x" * 125),
        (b"", b"\x8a\x80" + b"mask"),
        (b"\x01\x80mask", b"\x00\x80" + b"mask"),
    ],
    ids=["empty pings", "pings", "pongs", "empty continuations"],
)
async def test_frames_of_every_kind_are_counted_and_none_is_parsed_beyond_the_limit(
    watched: World, first: bytes, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    receive_frame = web_socket_protocol._CountingParser.recv_frame
    parsed = 0

    def count_frame(parser: web_socket_protocol._CountingParser, received: frames.Frame) -> None:
        nonlocal parsed
        parsed += 1
        receive_frame(parser, received)

    monkeypatch.setattr(web_socket_protocol._CountingParser, "recv_frame", count_frame)
    with contextlib.closing(await slow_reader(watched)) as flooding:
        flood = first + frame * (256 * 1024 // len(frame))
        async with patience.limit():
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    await loop.sock_sendall(flooding, flood)
                pytest.fail("16 MiB of it were taken")
    assert parsed < 2 * web_socket_protocol.FRAMES_BURST


async def test_live_connections_leave_connections_for_other_requests(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CONNECTIONS_MAX", 2)
    async with aiohttp.ClientSession() as session:
        events = f"{watched.url}{watched.path}/events"
        async with watching.watching(watched.url), session.get(events) as first:
            assert first.status == 200
            assert (await watching.refused(watched.url))[0] == 503
            async with session.get(events) as other:
                assert (other.status, other.headers["Retry-After"]) == (503, "10")
            async with session.get(f"{watched.url}/healthz") as response:
                assert response.status == 200

        async def again() -> None:
            while True:
                async with session.get(events) as response:
                    if response.status == 200:
                        return

        async with patience.limit():
            await again()


async def test_connection_has_a_limit_of_subscriptions_and_each_channel_once(watched: World) -> None:
    async with watching.watching(watched.url) as watcher:
        await watcher.ask(action="subscribe", channel=watched.channel)
        await watcher.until_type("investigation.status")
        error = await watcher.answer(action="subscribe", channel=watched.channel)
        assert error["reason"] == f"{watched.channel} is subscribed already: send catchup to resume after an event"
        done = await watcher.answer(action="unsubscribe", channel=watched.channel)
        assert done == {"type": "unsubscription.confirmed", "channel": watched.channel}
        assert not watched.parts.hub._feeds, "nothing is kept of what nobody watches"
        assert "is not subscribed" in (await watcher.answer(action="unsubscribe", channel=watched.channel))["reason"]
        assert (
            "is not subscribed"
            in (await watcher.answer(action="catchup", channel=watched.channel, last_event_id=0))["reason"]
        )


async def test_events_are_translated_for_earlier_clients(watched: World) -> None:
    await watched.commit(*STORY)
    async with watching.watching(watched.url, path="/ws") as watcher:
        await watcher.ask(action="subscribe", channel=f"session:{watched.identity}")
        sent = await watcher.until_type("session.completed")
        assert {event["channel"] for event in sent[1:]} == {f"session:{watched.identity}"}
        assert all("investigation" not in event and event["session_id"] == str(watched.identity) for event in sent[2:])
        assert (sent[-1]["status"], sent[-1]["has_errors"], sent[-1]["id"]) == ("completed", False, 8)
        steps = [event["current_step"] for event in sent if event["type"] == "alert_status"]
        assert steps == [
            "Starting chain execution",
            "Starting analysis",
            "Completed analysis",
            "Chain execution finished",
        ]


async def test_a_page_of_another_site_opens_no_socket(watched: World) -> None:
    port = watched.url.rpartition(":")[2]
    for origin in (
        "https://elsewhere.example",
        "null",
        "http://127.0.0.1:1",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1.elsewhere.example:{port}",
    ):
        status, problem = await watching.refused(watched.url, headers={"Origin": origin})
        assert (status, problem["detail"].partition(":")[0]) == (403, "Origin"), origin
        assert problem["detail"].startswith(f"Origin: {origin} is not allowed"), problem
    for origin in (f"http://127.0.0.1:{port}", f"HTTP://127.0.0.1:{port}"):
        async with watching.watching(watched.url, headers={"Origin": origin}) as watcher:
            assert (await watcher.answer(action="ping"))["type"] == "pong"


async def test_websocket_request_is_refused_like_any_other(watched: World) -> None:
    port = int(watched.url.rpartition(":")[2])
    status, problem = await watching.refused(watched.url, path="/api/v1/ws?token=secret")
    assert (status, problem["errors"][0]["place"]) == (422, "query.token")
    assert (await watching.refused(watched.url, headers={"Cookie": "x" * 9000}))[0] == 431
    assert (await watching.refused("http://elsewhere.example", host="127.0.0.1", port=port))[0] == 421
    async with aiohttp.ClientSession() as session, session.get(f"{watched.url}/ws") as response:
        assert (response.status, response.headers["Upgrade"]) == (426, "websocket")
    async with aiohttp.ClientSession() as session, session.post(f"{watched.url}/ws", data=b"{}") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET")


async def test_stop_closes_websockets_with_service_restart_and_ends_streams(watched: World) -> None:
    async with (
        watching.watching(watched.url) as watcher,
        aiohttp.ClientSession() as session,
        session.get(f"{watched.url}{watched.path}/events") as response,
    ):
        reader = watching.Reader(response)
        await reader.until_type("investigation.status")
        watched.parts.hub.closing.set()
        with pytest.raises(EOFError):
            await reader.next()
        assert await watcher.closed() == (1012, "the operator stops")


async def test_a_lost_database_connection_leaves_no_gap(watched: World) -> None:
    async with watching.watching(watched.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=watched.channel)
        await watcher.until_type("investigation.status")
        for commit in STORY:
            await watched.commit(commit, hinted=False)
            await queue.execute(
                watched.database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> ALL(:writers)",
                writers=watched.writers,
            )
        seen = watching.Seen()
        for message in [*watcher.messages, *await watcher.until_type("investigation.completed")]:
            seen.take(message)
        assert seen.events == await watched.timeline(session)


async def test_transcript_routes_answer_503_with_retry_after_when_the_memory_limit_is_used(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "HELD_MAX", 1)
    monkeypatch.setattr(protocols, "READ_SECONDS", 600.0)  # what is held is held for as long as a busy machine needs
    await watched.commit(*STORY[:2], (stories.ran(ASKED),), (stories.answers("x" * 7 * 1024 * 1024, call_number=1),))
    paths = [
        *(f"{watched.path}{rest}" for rest in ("", "/timeline", "/messages", "/export")),
        *(f"{watched.path}{rest}" for rest in ("/trace", "/trace/llm/1", "/trace/tool/1")),
        *(f"/api/v1/sessions/{watched.identity}", f"/api/v1/history/sessions/{watched.identity}"),
    ]
    host, port = watched.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(watched.url) as session:

        async def statuses() -> dict[str, tuple[int, str | None]]:
            by_path = {}
            for path in paths:
                async with session.get(path) as response:
                    by_path[path] = (response.status, response.headers.get("Retry-After"))
                    await response.read()
            return by_path

        assert set((await statuses()).values()) == {(200, None)}
        with contextlib.closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(
                slow, f"GET {watched.path}/messages?after=4 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            )
            assert await loop.sock_recv(slow, 12) == b"HTTP/1.1 200"
            assert await statuses() == dict.fromkeys(paths, (503, "1"))
        async with patience.limit():
            while (await statuses())[paths[2]] != (200, None):
                pass
