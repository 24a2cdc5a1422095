"""What is told to whoever watches, by the API over a real database; rights are the cluster's tests'."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from support import apis, kubeconfigs, queue, stories, watching
from support.masking import NO_SECRETS
from tarsy.api import app
from tarsy.kube import client
from tarsy.live import backlogs, subscriptions, web_socket_protocol, web_sockets
from tarsy.serve import answers
from tarsy.serve import connections as protocols
from tarsy.store.base import databases, hints, notify
from tarsy.store.live import payloads, text_streams
from tarsy.store.queue import journal
from tarsy.transcript import entries, ports
from tarsy_dev import patience
from websockets import client as client_protocol
from websockets import exceptions, frames, uri


@dataclass
class World:
    """An API that serves this machine, and an investigation that runs."""

    url: str
    parts: app.Parts
    database: databases.Database
    identity: UUID
    journal: journal.PgJournal
    writers: list[int]
    """The backends of those who write."""

    @property
    def path(self) -> str:
        return f"/api/v1/investigations/{self.identity}"

    @property
    def channel(self) -> str:
        return f"investigation:{self.identity}"

    async def commit(self, *commits: tuple[entries.Entry, ...], hinted: bool = True) -> None:
        for commit in commits:
            await self.journal.commit(*commit)
            if hinted:
                self.parts.hub.hint(*payloads.encode([], [self.identity]))

    async def timeline(self, session: Any) -> dict[str, Any]:
        """The events as they are read by REST, by their ids."""
        found: dict[str, Any] = {}
        after = 0
        while True:
            path = f"{self.path}/timeline?after={after}&limit=7"
            async with session.get(self.url + path) as response:
                page = await response.json()
            found |= {event["id"]: event for event in page["events"]}
            after = page["last"]
            if not page["more"]:
                return found


@pytest.fixture
async def world(database: databases.Database, tmp_path: Path) -> AsyncIterator[World]:
    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    own = databases.Database(database.url)
    parts = apis.parts(cluster=cluster, database=own)
    identity = await queue.admit(database)
    opened = await queue.opened(database, await queue.claimed(database))
    writers = await queue.rows(database, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    async with apis.listening(parts, hears=True) as url:
        yield World(
            url=url,
            parts=parts,
            database=database,
            identity=identity,
            journal=opened,
            writers=[pid for (pid,) in writers],
        )
    await own.close()
    await cluster.close()


@contextlib.asynccontextmanager
async def speaker_of(world: World) -> AsyncIterator[text_streams.TextSender]:
    """A process that runs the investigation, and hears that it is watched."""
    speaker = text_streams.TextSender(world.database, secrets=NO_SECRETS)
    listens = asyncio.Event()

    def hint(payload: str) -> bool:
        listens.set()
        return speaker.hint(payload)

    listener = notify.Listener(world.database.url, hints.Channels({text_streams.WATCHED: hint}))
    tasks = [asyncio.create_task(listener.run()), asyncio.create_task(speaker.run())]
    await listens.wait()
    yield speaker
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


ASKED = stories.asks("k8s.pods_log", text="look")
STORY: list[tuple[entries.Entry, ...]] = [
    (stories.stage_started(), stories.started()),
    (ASKED,),
    (stories.ran(ASKED),),
    (stories.answers("it is memory", turn=1),),
    (stories.ended(), stories.stage_ended()),
    (stories.run_ended(final_analysis="it is memory"),),
]


def told(messages: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return [(message["type"], message.get("id")) for message in messages]


async def test_live_events_are_in_order_and_the_last_one_of_an_entry_has_its_number(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        first = await watcher.until_type("investigation.status")
        await eventually(lambda: listening(world) == 1)  # it has caught up
        assert [one["type"] for one in first] == ["subscription.confirmed", "investigation.status"]
        assert (first[1]["phase"], first[1]["investigation"]) == ("Running", str(world.identity))
        assert first[1]["channel"] == world.channel
        rest = []
        for commit, last in zip(STORY, (1, 3, 4, 5, 7, 8), strict=True):
            await world.commit(commit)
            rest += await watcher.until(lambda message, last=last: message.get("id") == last)  # type: ignore[misc]
    # A status is read after the entries beside it, so it may come before those that are committed meanwhile.
    statuses = [message for message in rest if message["type"] == "investigation.status"]
    assert told([message for message in rest if message not in statuses]) == [
        ("stage.started", 1),
        ("timeline_event.created", None),
        ("timeline_event.created", None),
        ("timeline_event.created", 3),
        ("timeline_event.completed", None),
        ("timeline_event.created", 4),
        ("timeline_event.created", 5),
        ("stage.completed", 7),
        ("investigation.completed", 8),
    ], told(rest)
    assert rest[-1]["final_analysis"] == "it is memory"
    assert [(status["phase"], status["progress"]) for status in statuses] == [
        ("Running", "0/1"),
        ("Running", "1/1"),
        ("Completed", "1/1"),
    ]


async def test_later_subscriber_gets_the_same_events_and_a_resumed_one_only_later_ones(world: World) -> None:
    await world.commit(*STORY)
    async with watching.watching(world.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=world.channel)
        whole = await watcher.until_type("investigation.completed")
        seen = watching.Seen()
        for message in whole:
            seen.take(message)
        assert seen.events == await world.timeline(session)
        await watcher.ask(action="catchup", channel=world.channel, last_event_id=5)
        rest = await watcher.until_type("investigation.completed")
        assert told(rest) == [("subscription.confirmed", None), ("investigation.status", None), *told(whole)[-2:]]


async def test_client_that_reconnects_repeatedly_receives_the_whole_timeline(world: World) -> None:
    """By both ways, at any place, while it is written: what it has at the end is what is read at the end."""
    dice = random.Random(5)  # noqa: S311 - where it is cut

    async def write() -> None:
        for commit in stories.commits(seed=5):
            await world.commit(commit, hinted=dice.random() < 0.8)

    async def by_socket() -> watching.Seen:
        seen = watching.Seen()
        while True:
            async with watching.watching(world.url) as watcher:
                await watcher.ask(action="subscribe", channel=world.channel, last_event_id=seen.last)
                for _ in range(dice.randint(8, 40)):
                    seen.take(message := await watcher.next())
                    if message["type"] == "investigation.completed":
                        return seen
                watcher.cut()

    async def by_stream(session: aiohttp.ClientSession) -> watching.Seen:
        seen = watching.Seen()
        while True:
            headers = {"Last-Event-ID": str(seen.last)} if seen.last else {}
            async with session.get(f"{world.url}{world.path}/events", headers=headers) as response:
                reader = watching.Reader(response)
                for _ in range(dice.randint(8, 40)):
                    seen.take(message := await reader.next())
                    if message["type"] == "investigation.completed":
                        return seen

    async with aiohttp.ClientSession() as session, patience.limit():
        _, one, other = await asyncio.gather(write(), by_socket(), by_stream(session))
        whole = await world.timeline(session)
    assert one.events == whole
    assert other.events == whole


async def test_catch_up_ends_after_200_events_at_an_entry_and_returns_the_cursor(world: World) -> None:
    asked = stories.asks(*["k8s.pods_log"] * 80)
    await world.commit(*STORY[:1], (asked,), (stories.ran(asked),), (stories.answers(turn=1),))
    async with watching.watching(world.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=world.channel)
        found = await watcher.until_type("catchup.overflow")
        events = [message for message in found if "event" in message]
        assert (found[-1]["last_event_id"], found[-1]["limit"], len(events)) == (3, 200, 80)
        await world.commit((stories.ended(outcome="Failed", error="no"),))
        more = (await watcher.until(lambda message: "id" in message))[-1]
        assert (more["id"], more["event"]["content"]) == (6, "no"), "from the head on it is told live"
        path = f"{world.url}{world.path}/events?last_event_id=4"
        async with session.get(path) as response:
            reader = watching.Reader(response)
            while reader.last_event_id != "6":
                await reader.next()


async def test_cursor_of_the_future_and_unknown_id_are_refused(world: World) -> None:
    await world.commit(*STORY[:2])
    async with watching.watching(world.url) as watcher, aiohttp.ClientSession() as session:
        error = await watcher.answer(action="subscribe", channel=world.channel, last_event_id=4)
        assert (error["type"], error["status"], error["channel"]) == ("subscription.error", 422, world.channel)
        assert "entry 4 is in the future: the last one is 3" in error["reason"]
        error = await watcher.answer(action="subscribe", channel=f"investigation:{UUID(int=1)}")
        assert (error["type"], error["status"]) == ("subscription.error", 404)
        for headers, query, place in (
            ({"Last-Event-ID": "4"}, "", "last_event_id"),
            ({"Last-Event-ID": "x"}, "", "header.Last-Event-ID"),
            ({"Last-Event-ID": "99999999999999999999"}, "", "header.Last-Event-ID"),
            ({}, "?last_event_id=-1", "query.last_event_id"),
            ({}, "?after=1", "query.after"),
        ):
            async with session.get(f"{world.url}{world.path}/events{query}", headers=headers) as response:
                problem = await response.json()
                assert (response.status, problem["errors"][0]["place"]) == (422, place)


def turn(world: World, number: int) -> ports.StreamedCall:
    return ports.StreamedCall(
        investigation=str(world.identity),
        run=0,
        stage="analysis",
        execution="one",
        number=number,
        kind="agent",
        strategy="native-thinking",
    )


async def test_an_answer_grows_while_it_is_written_and_completes_under_its_id(world: World) -> None:
    await world.commit(*STORY[:1])
    async with (
        watching.watching(world.url) as early,
        watching.watching(world.url) as late,
        speaker_of(world) as speaker,
    ):
        await early.ask(action="subscribe", channel=world.channel)
        await early.until_type("stage.started")
        with speaker.open_stream(turn(world, 0)) as stream:
            stream.text("it is ")
            created = (await early.until_type("timeline_event.created"))[-1]
            event = created["event"]
            assert (event["id"], event["status"], event["content"]) == ("one.0.text", "streaming", "it is ")
            assert ("id" in created, "seq" in event) == (False, False)
            await late.ask(action="subscribe", channel=world.channel)
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
            await world.commit((stories.answers("it is CPU"),))
        speaker.announce_commit(world.identity)
        for watcher in (early, late):
            done = (await watcher.until(lambda message: "id" in message))[-1]
            assert (done["type"], done["id"]) == ("timeline_event.completed", 3)
            assert (done["event"]["id"], done["event"]["status"]) == ("one.0.text", "completed")


async def test_progress_of_a_tool_grows_and_its_result_replaces_it(world: World) -> None:
    await world.commit(*STORY[:2])
    async with watching.watching(world.url) as watcher, speaker_of(world) as speaker:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until(lambda message: message.get("id") == len(STORY[0]) + 1)
        with speaker.open_stream(turn(world, 0)) as stream:
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
            await world.commit(STORY[2])
        speaker.announce_commit(world.identity)
        told = await watcher.until(lambda message: "id" in message)
        result = next(one for one in told if one.get("event", {}).get("id") == "one.0.0.result")
        assert result["type"] == "timeline_event.completed"
        assert (result["event"]["status"], result["event"]["content"]) == ("completed", "r")


async def test_abandoned_answer_is_discarded_also_after_its_worker_died(world: World) -> None:
    await world.commit(*STORY[:1])
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        async with speaker_of(world) as speaker:
            with speaker.open_stream(turn(world, 0)) as stream:
                stream.text("never mind")
                await watcher.until_type("timeline_event.created")
            gone = (await watcher.until_type("timeline_event.completed"))[-1]
            assert (gone["event"]["id"], gone["event"]["status"]) == ("one.0.text", "failed")
            assert (gone["event"]["metadata"], "id" in gone) == ({"discarded": True}, False)
            dying = speaker.open_stream(turn(world, 1))
            dying.__enter__().text("I am")
            await watcher.until_type("timeline_event.created")
        await world.commit((stories.unanswered(turn=1),))
        gone, told = await watcher.until(lambda message: "id" in message)
        assert (gone["event"]["id"], gone["event"]["metadata"]) == ("one.1.text", {"discarded": True})
        assert told["event"]["id"] == "one.1.error"
        dying.__exit__(None, None, None)


@pytest.mark.slow
async def test_protocol_violation_closes_the_connection_with_a_reason(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel="alerts")
        assert (await watcher.next())["reason"].startswith("unknown channel alerts: the channels are investigations, ")
        await watcher.socket.send(b'{"action": "ping"}')
        assert (await watcher.next())["reason"] == "binary frames are not accepted: send text"
        assert (await watcher.answer(action="ping")) == {"type": "pong"}
        for _ in range(web_sockets.ERRORS_MAX - 2):
            assert (await watcher.answer(action="x"))["type"] == "error"
        await watcher.ask(action="x")
        assert await watcher.closed() == (1008, "too many errors")
    async with watching.watching(world.url) as watcher:
        await watcher.socket.send(json.dumps({"action": "ping", "pad": "x" * web_socket_protocol.FRAME_MAX}))
        assert (await watcher.closed())[0] == 1009
    async with watching.watching(world.url) as watcher:
        with contextlib.suppress(exceptions.ConnectionClosed):
            for _ in range(web_socket_protocol.FRAMES_BURST * 2):
                await watcher.ask(action="ping")
        assert await watcher.closed() == (1008, "more than 10 frames a second")


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
    world: World, first: bytes, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    receive_frame = web_socket_protocol._CountingParser.recv_frame
    parsed = 0

    def count_frame(parser: web_socket_protocol._CountingParser, received: frames.Frame) -> None:
        nonlocal parsed
        parsed += 1
        receive_frame(parser, received)

    monkeypatch.setattr(web_socket_protocol._CountingParser, "recv_frame", count_frame)
    with contextlib.closing(await slow_reader(world)) as flooding:
        data = first + frame * (256 * 1024 // len(frame))
        async with patience.limit():
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    await loop.sock_sendall(flooding, data)
                pytest.fail("16 MiB of it were taken")
    assert parsed < 2 * web_socket_protocol.FRAMES_BURST


async def test_quiet_client_has_each_ping_answered_and_may_send_no_message_of_many_frames(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        for _ in range(3):
            await (await watcher.socket.ping())
        await watcher.socket.send(iter(['{"action"', ":", ' "ping"}']))
        assert (await watcher.next())["type"] == "pong"
        with contextlib.suppress(exceptions.ConnectionClosed):
            await watcher.socket.send([" "] * (web_socket_protocol.FRAGMENTS_MAX + 1))
        assert await watcher.closed() == (1008, "a message of more than 16 frames")


async def test_pings_of_a_client_that_does_not_read_get_one_answer_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they would have the transport hold an answer for each."""
    pinged: list[bool] = []
    real = web_socket_protocol.Protocol.handle_ping

    def handle_ping(self: web_socket_protocol.Protocol) -> None:
        pinged.append(self.writable.is_set())
        real(self)

    is_paused = asyncio.Event()
    pause = web_socket_protocol.Protocol.pause_writing

    def pause_writing(self: web_socket_protocol.Protocol) -> None:
        pause(self)
        is_paused.set()

    monkeypatch.setattr(web_socket_protocol.Protocol, "handle_ping", handle_ping)
    monkeypatch.setattr(web_socket_protocol.Protocol, "pause_writing", pause_writing)
    await world.commit(*STORY[:1], large(0))
    loop = asyncio.get_running_loop()
    said = [b"which of them? %d" % number for number in range(5)]
    with contextlib.closing(await slow_reader(world)) as slow:
        await eventually(is_paused.is_set)
        for one in said:
            await loop.sock_sendall(slow, frames.Frame(frames.Opcode.PING, one).serialize(mask=True))
        await eventually(lambda: len(pinged) == 5)
        assert pinged == [False] * 5
        await world.commit((stories.answers("behind it", turn=1),))
        found = b""
        async with patience.limit():
            while b"behind it" not in found or said[-1] not in found:
                found += await loop.sock_recv(slow, 1 << 16)
    assert [one for one in said if one in found] == said[-1:]


@pytest.mark.slow
async def test_websocket_without_subscriptions_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sockets, "UNUSED_SECONDS", 2.0)
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until_type("investigation.status")
        async with watching.watching(world.url) as idle:  # in which longer passes than it might be idle
            assert await idle.closed() == (1008, "nothing was subscribed for 2 s")
        assert (await watcher.answer(action="ping"))["type"] == "pong"
        await watcher.ask(action="unsubscribe", channel=world.channel)
        assert await watcher.closed() == (1008, "nothing was subscribed for 2 s")


async def test_live_connections_leave_connections_for_other_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CONNECTIONS_MAX", 2)
    async with aiohttp.ClientSession() as session:
        events = f"{world.url}{world.path}/events"
        async with watching.watching(world.url), session.get(events) as one:
            assert one.status == 200
            assert (await watching.refused(world.url))[0] == 503
            async with session.get(events) as other:
                assert (other.status, other.headers["Retry-After"]) == (503, "10")
            async with session.get(f"{world.url}/healthz") as response:
                assert response.status == 200

        async def again() -> None:
            while True:
                async with session.get(events) as response:
                    if response.status == 200:
                        return

        async with patience.limit():
            await again()


async def test_an_id_has_one_spelling(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        for given in (world.identity.hex, str(world.identity).upper(), f"{{{world.identity}}}"):
            error = await watcher.answer(action="subscribe", channel=f"session:{given}")
            assert error == {"type": "error", "reason": f"write the id {given} as {world.identity}"}


async def test_connection_has_a_limit_of_subscriptions_and_each_channel_once(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until_type("investigation.status")
        error = await watcher.answer(action="subscribe", channel=world.channel)
        assert error["reason"] == f"{world.channel} is subscribed already: send catchup to resume after an event"
        done = await watcher.answer(action="unsubscribe", channel=world.channel)
        assert done == {"type": "unsubscription.confirmed", "channel": world.channel}
        assert not world.parts.hub._feeds, "nothing is kept of what nobody watches"
        assert "is not subscribed" in (await watcher.answer(action="unsubscribe", channel=world.channel))["reason"]
        assert (
            "is not subscribed"
            in (await watcher.answer(action="catchup", channel=world.channel, last_event_id=0))["reason"]
        )


async def test_events_are_translated_for_earlier_clients(world: World) -> None:
    await world.commit(*STORY)
    async with watching.watching(world.url, path="/ws") as watcher:
        await watcher.ask(action="subscribe", channel=f"session:{world.identity}")
        found = await watcher.until_type("session.completed")
        assert {one["channel"] for one in found[1:]} == {f"session:{world.identity}"}
        assert all("investigation" not in one and one["session_id"] == str(world.identity) for one in found[2:])
        assert (found[-1]["status"], found[-1]["has_errors"], found[-1]["id"]) == ("completed", False, 8)
        steps = [one["current_step"] for one in found if one["type"] == "alert_status"]
        assert steps == [
            "Starting chain execution",
            "Starting analysis",
            "Completed analysis",
            "Chain execution finished",
        ]


async def test_a_page_of_another_site_opens_no_socket(world: World) -> None:
    port = world.url.rpartition(":")[2]
    for origin in (
        "https://elsewhere.example",
        "null",
        "http://127.0.0.1:1",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1.elsewhere.example:{port}",
    ):
        status, problem = await watching.refused(world.url, headers={"Origin": origin})
        assert (status, problem["detail"].partition(":")[0]) == (403, "Origin"), origin
        assert problem["detail"].startswith(f"Origin: {origin} is not allowed"), problem
    for origin in (f"http://127.0.0.1:{port}", f"HTTP://127.0.0.1:{port}"):
        async with watching.watching(world.url, headers={"Origin": origin}) as watcher:
            assert (await watcher.answer(action="ping"))["type"] == "pong"


async def test_websocket_request_is_refused_like_any_other(world: World) -> None:
    port = int(world.url.rpartition(":")[2])
    status, problem = await watching.refused(world.url, path="/api/v1/ws?token=secret")
    assert (status, problem["errors"][0]["place"]) == (422, "query.token")
    assert (await watching.refused(world.url, headers={"Cookie": "x" * 9000}))[0] == 431
    assert (await watching.refused("http://elsewhere.example", host="127.0.0.1", port=port))[0] == 421
    async with aiohttp.ClientSession() as session, session.get(f"{world.url}/ws") as response:
        assert (response.status, response.headers["Upgrade"]) == (426, "websocket")
    async with aiohttp.ClientSession() as session, session.post(f"{world.url}/ws", data=b"{}") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET")


def large(turn: int) -> tuple[entries.Entry, ...]:
    """An answer of half a megabyte."""
    return (stories.answers("x" * 512 * 1024, turn=turn),)


async def slow_reader(world: World, *, holds: int = 4096) -> socket.socket:
    """A client that subscribes, and then reads nothing."""
    host, port = world.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, holds)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    own = client_protocol.ClientProtocol(uri.parse_uri(f"ws://{host}:{port}/ws"))
    own.send_request(own.connect())
    for data in own.data_to_send():
        await loop.sock_sendall(connection, data)
    while not own.events_received():
        own.receive_data(await loop.sock_recv(connection, 4096))
    own.send_text(json.dumps({"action": "subscribe", "channel": world.channel}).encode())
    for data in own.data_to_send():
        await loop.sock_sendall(connection, data)
    return connection


async def slow_stream(world: World, *, holds: int = 4096) -> socket.socket:
    """The same of a stream of events."""
    host, port = world.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, holds)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    await loop.sock_sendall(connection, f"GET {world.path}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return connection


async def is_cut_off(connection: socket.socket) -> bool:
    """Whether the other side ends it within some seconds of being read."""
    loop = asyncio.get_running_loop()
    try:
        async with patience.limit():
            while await loop.sock_recv(connection, 1 << 20):
                pass
    except OSError as error:
        return isinstance(error, ConnectionError)
    return True


def listening(world: World) -> int:
    """How many listen to the investigation."""
    watch = world.parts.hub._feeds.get(world.identity)
    return len(watch.subscribers) if watch else 0


async def eventually(look: Callable[[], bool]) -> None:
    async with patience.limit():
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("connect", [slow_reader, slow_stream])
@pytest.mark.parametrize("limit", ["queued", "seconds"])
async def test_client_that_reads_nothing_is_dropped_and_delays_no_other(
    world: World,
    limit: str,
    connect: Callable[[World], Awaitable[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(protocols, "READ_SECONDS", 2.0)
    monkeypatch.setattr(backlogs, "STALLED_SECONDS", 3.0 if limit == "seconds" else 60.0)
    await world.commit(*STORY[:1])
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until_type("stage.started")
        with contextlib.closing(await connect(world)) as slow:
            await eventually(lambda: listening(world) == 2)
            for turn in range(2 if limit == "seconds" else 6):
                await world.commit(large(turn))
                found = (await watcher.until(lambda message: "id" in message))[-1]
                assert (found["id"], len(found["event"]["content"])) == (turn + 3, 512 * 1024)
            await eventually(lambda: listening(world) == 1)
            assert await is_cut_off(slow), "and its connection is over, although it never read"
            assert not [one for one in caplog.records if one.levelname == "ERROR"]
        assert (await watcher.answer(action="ping"))["type"] == "pong"


@pytest.mark.slow
@pytest.mark.parametrize("connect", [slow_reader, slow_stream])
async def test_client_that_reads_slowly_receives_everything(
    world: World, connect: Callable[..., Awaitable[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several times what a piece may take."""
    monkeypatch.setattr(backlogs, "STALLED_SECONDS", 4.0)
    monkeypatch.setattr(web_socket_protocol, "PING_SECONDS", 0.5)
    await world.commit(*STORY[:1], (stories.answers("x" * 3 * 512 * 1024, turn=0),))
    loop = asyncio.get_running_loop()
    began = loop.time()
    tail = b""
    got = 0
    with contextlib.closing(await connect(world, holds=64 * 1024)) as slow:
        async with patience.limit():
            while got < 3 * 512 * 1024:
                data = await loop.sock_recv(slow, 32 * 1024)
                assert data, f"cut off after {got} bytes"
                tail, got = (tail + data)[-1000:], got + len(data)
                await asyncio.sleep(0.2)  # as slow as it reads
    assert loop.time() - began > 2 * backlogs.STALLED_SECONDS


@pytest.mark.slow
async def test_slow_reader_receives_the_last_event_of_a_stream(world: World) -> None:
    await world.commit(*STORY[:1], large(0))
    loop = asyncio.get_running_loop()
    with contextlib.closing(await slow_stream(world)) as slow:
        await eventually(lambda: listening(world) == 1)
        await world.commit(large(1))
        world.parts.hub._feeds[world.identity].end("it is over")
        found = b""
        async with patience.limit():
            while data := await loop.sock_recv(slow, 1 << 16):
                found += data
    assert b'"reason":"it is over"' in found[-1000:]


async def test_stop_closes_websockets_with_service_restart_and_ends_streams(world: World) -> None:
    async with (
        watching.watching(world.url) as watcher,
        aiohttp.ClientSession() as session,
        session.get(f"{world.url}{world.path}/events") as response,
    ):
        reader = watching.Reader(response)
        await reader.until_type("investigation.status")
        world.parts.hub.closing.set()
        with pytest.raises(EOFError):
            await reader.next()
        assert await watcher.closed() == (1012, "the operator stops")


@pytest.mark.slow
async def test_a_lost_database_connection_leaves_no_gap(world: World) -> None:
    async with watching.watching(world.url) as watcher, aiohttp.ClientSession() as session:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until_type("investigation.status")
        for commit in STORY:
            await world.commit(commit, hinted=False)
            await queue.execute(
                world.database,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> ALL(:writers)",
                writers=world.writers,
            )
        seen = watching.Seen()
        for message in [*watcher.told, *await watcher.until_type("investigation.completed")]:
            seen.take(message)
        assert seen.events == await world.timeline(session)


@pytest.mark.slow
async def test_transcript_routes_answer_503_with_retry_after_when_too_much_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "HELD_MAX", 1)
    monkeypatch.setattr(protocols, "READ_SECONDS", 600.0)  # what is held is held for as long as a busy machine needs
    await world.commit(*STORY[:2], (stories.ran(ASKED),), (stories.answers("x" * 7 * 1024 * 1024, turn=1),))
    paths = [
        *(f"{world.path}{rest}" for rest in ("", "/timeline", "/messages", "/export")),
        *(f"{world.path}{rest}" for rest in ("/trace", "/trace/llm/1", "/trace/tool/1")),
        *(f"/api/v1/sessions/{world.identity}", f"/api/v1/history/sessions/{world.identity}"),
    ]
    host, port = world.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(world.url) as session:

        async def statuses() -> dict[str, tuple[int, str | None]]:
            found = {}
            for path in paths:
                async with session.get(path) as response:
                    found[path] = (response.status, response.headers.get("Retry-After"))
                    await response.read()
            return found

        assert set((await statuses()).values()) == {(200, None)}
        with contextlib.closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(
                slow, f"GET {world.path}/messages?after=4 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            )
            assert await loop.sock_recv(slow, 12) == b"HTTP/1.1 200"
            assert await statuses() == dict.fromkeys(paths, (503, "1"))
        async with patience.limit():
            while (await statuses())[paths[2]] != (200, None):
                pass


@pytest.mark.slow
async def test_hundred_clients_that_read_nothing_of_seven_megabytes_stay_within_the_memory_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "READ_SECONDS", 600.0)  # those that are dropped make room for others
    await world.commit(*STORY[:1], (stories.answers("x" * 7 * 1024 * 1024, turn=0),))
    host, port = world.url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    asked = f"GET {world.path}/messages?after=2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(100):
            slow = stack.enter_context(contextlib.closing(socket.socket()))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, (host, int(port)))
            await loop.sock_sendall(slow, asked)
            connections.append(slow)
        async with patience.limit():
            said = [await loop.sock_recv(slow, 12) for slow in connections]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{said.count(b'HTTP/1.1 200')} were answered, with {grown} MiB more")
    assert set(said) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert said.count(b"HTTP/1.1 200") <= answers.HELD_MAX // (7 * 1024 * 1024)
    assert grown < 500, "those that are held, and what eight are made of"


@pytest.fixture
def patient_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than two pings to connect five hundred clients that answer none."""
    monkeypatch.setattr(web_socket_protocol, "PING_SECONDS", 600.0)


@pytest.mark.slow
@pytest.mark.usefixtures("patient_pings")
async def test_five_hundred_clients_that_read_nothing_delay_no_other(world: World) -> None:
    """All of them are dropped, while a client that reads receives each event."""
    protocols.allow_files()
    await world.commit(*STORY[:1])
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        await watcher.until_type("stage.started")
        with contextlib.ExitStack() as stack:
            for _ in range(500):
                stack.enter_context(contextlib.closing(await slow_reader(world)))
            await eventually(lambda: listening(world) == 501)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for turn in range(8):
                await world.commit(large(turn))
                await watcher.until(lambda message: "id" in message)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            await eventually(lambda: listening(world) == 1)
        assert grown < 150
