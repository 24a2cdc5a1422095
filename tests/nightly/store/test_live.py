"""Text that a model is writing, from one process to another: two of them, here two databases' worth of connections."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from support.live_texts import ID, turn, watcher, worker
from tarsy.store.base import notify
from tarsy.store.live import text_streams
from tarsy_dev import patience
from tarsy_dev import postgres as launcher


async def test_texts_during_an_outage_are_lost_with_one_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", 0.1)
    monkeypatch.setattr(text_streams, "RETRY_SECONDS", 0.02)
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        url = server.url()
        async with worker(url) as speaker, watcher(url) as watching:
            watching.audience.watch(ID)
            with speaker.open_stream(turn()) as stream:
                stream.text("It is ")
                await watching.sees(text="It is ")
                await asyncio.to_thread(server.stop)
                async with patience.limit():
                    for number in itertools.count():
                        stream.text("not ")
                        await asyncio.sleep(0.02)
                        if number >= 20 and "texts of model calls" in caplog.text:
                            break
                stream.again()
                stream.text("It is memory")
                await asyncio.to_thread(server.start)
                await watching.sees(text="It is memory")
                stream.text(".")
                await watching.sees(text="It is memory.")
            await watching.until(lambda: watching.over)
            assert None in watching.moved, "logs are to be looked at"
    lines = [
        log_record.getMessage() for log_record in caplog.records if getattr(log_record, "action", "") == "live_lost"
    ]
    assert 1 <= len([line for line in lines if line.startswith("texts of model calls")]) <= 2, lines
    assert len(lines) <= 3, lines
