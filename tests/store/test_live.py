"""Text that a model is writing, from one process to another: two of them, here two databases' worth of connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from support.live_texts import ID, OTHER, connected, running, turn, watcher, worker
from tarsy.store.base import hints, notify
from tarsy.store.live import payloads, text_streams
from tarsy.transcript import messages
from tarsy_dev import patience


async def test_subscriber_in_another_process_receives_the_text_so_far_and_additions(migrated_url: str) -> None:
    async with worker(migrated_url) as speaker, watcher(migrated_url) as watching:
        with speaker.open_stream(turn()) as stream:
            stream.thinking("hm")
            stream.text("It is ")
            watching.audience.watch(ID)
            await watching.sees(thinking="hm", text="It is ")
            stream.text("memory")
            await watching.sees(thinking="hm", text="It is memory")
            assert watching.over == []
        speaker.announce_commit(ID)
        await watching.until(lambda: watching.moved == [ID])
        assert watching.over == ["e0.0.thinking", "e0.0.text"]
        assert {piece.event: piece.type for piece in watching.pieces} == {
            "e0.0.thinking": "llm_thinking",
            "e0.0.text": "llm_response",
        }
        assert [piece.at for piece in watching.pieces if piece.event == "e0.0.text"] == [0, 6, 12]


@contextlib.asynccontextmanager
async def overheard(url: str, channel: str) -> AsyncIterator[Callable[[], Any]]:
    """Yield a function that returns the payloads sent on a channel until its call."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def so_far() -> list[str]:
        await notify.post(database, (channel, "until now"))
        async with patience.limit():
            received = [await heard.get()]
            while received[-1] != "until now":
                received.append(await heard.get())
        return received[:-1]

    async with (
        connected(url) as database,
        running(notify.Listener(url, hints.Channels({channel: heard.put_nowait})).run),
    ):
        assert await heard.get() == ""
        yield so_far


async def test_no_text_is_sent_without_subscribers(migrated_url: str) -> None:
    async with worker(migrated_url) as speaker, overheard(migrated_url, text_streams.TEXTS) as sent:
        with speaker.open_stream(turn()) as stream:
            stream.text("It is memory")
            speaker.announce_commit(ID)
        async with watcher(migrated_url) as watching:
            watching.audience.watch(OTHER)
            with speaker.open_stream(turn(OTHER)) as stream:
                stream.text("It is CPU")
                await watching.sees(text="It is CPU")
        assert {payloads.decode(payload)[0][0].investigation for payload in await sent()} == {OTHER}


async def test_worker_that_missed_a_request_answers_the_next_announcement(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_streams, "WATCHED_EVERY", 0.05)
    async with watcher(migrated_url) as watching, overheard(migrated_url, text_streams.WATCHED) as says:
        watching.audience.watch(ID)
        while not await says():
            pass
        async with worker(migrated_url) as speaker:
            with speaker.open_stream(turn()) as stream:
                stream.text("It is ")
                await watching.sees(text="It is ")


async def test_new_subscribing_process_gets_the_text_so_far_and_others_nothing_twice(migrated_url: str) -> None:
    async with worker(migrated_url) as speaker, watcher(migrated_url) as first, watcher(migrated_url) as second:
        with speaker.open_stream(turn()) as stream:
            first.audience.watch(ID)
            stream.text("It is ")
            await first.sees(text="It is ")
            second.audience.watch(ID)
            await second.sees(text="It is ")
            stream.text("memory")
            await first.sees(text="It is memory")
            await second.sees(text="It is memory")
        assert [piece.at for piece in first.pieces] == [0, 6]


async def test_repeated_model_call_begins_its_text_again(migrated_url: str) -> None:
    async with worker(migrated_url) as speaker, watcher(migrated_url) as watching:
        watching.audience.watch(ID)
        with speaker.open_stream(turn()) as stream:
            stream.thinking("hm")
            stream.text("It is CPU")
            await watching.sees(thinking="hm", text="It is CPU")
            stream.again()
            await watching.sees(thinking="", text="")
            stream.text("It is memory")
            await watching.sees(thinking="", text="It is memory")


async def test_text_of_a_model_call_begins_again_after_a_takeover(migrated_url: str) -> None:
    async with worker(migrated_url) as first, worker(migrated_url) as second, watcher(migrated_url) as watching:
        watching.audience.watch(ID)
        with first.open_stream(turn()) as cut_off:  # its process is killed before it can say more
            cut_off.text("It is CPU")
            await watching.sees(text="It is CPU")
            with second.open_stream(turn()) as stream:
                stream.text("It is memory")
                await watching.sees(text="It is memory")


async def test_subscriber_that_joins_during_a_model_call_receives_its_complete_text(migrated_url: str) -> None:
    odd = 'a "quoted"\\ word\n\t\x01\x7f\u2028\x00\ud83d'
    text = odd * 200 + "\U0001f4a5" * 20_000 + odd
    async with worker(migrated_url) as speaker, watcher(migrated_url) as watching:
        with speaker.open_stream(turn()) as stream:
            stream.text(text)
            async with overheard(migrated_url, text_streams.TEXTS) as sent:
                watching.audience.watch(ID)
                await watching.sees(text=messages.storable(text))
                assert len(await sent()) > 10
            stream.text("\udca5.")
            await watching.sees(text=messages.storable(text + "\udca5."))


async def test_any_number_of_investigations_can_be_watched(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_streams, "WATCHED_EVERY", 3600.0)  # a busy machine would announce them again meanwhile
    many = [UUID(int=number) for number in range(1200)]
    async with worker(migrated_url) as speaker, watcher(migrated_url) as watching:
        async with overheard(migrated_url, text_streams.WATCHED) as says:
            with contextlib.ExitStack() as stack:
                for investigation in many:
                    watching.audience.watch(investigation)
                    stack.enter_context(speaker.open_stream(turn(investigation))).text("It is memory")
                await watching.until(lambda: len({piece.investigation for piece in watching.pieces}) == len(many))
            announced = await says()
        assert len(announced) == 6
        assert all(len(payload) <= payloads.PAYLOAD_MAX for payload in announced)
