"""Backlogs of subscribers that do not read: so much for each, and so much for all."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from support import watching
from tarsy.live import backlogs

HALF = b"x" * (backlogs.BACKLOG_MAX // 2)


async def test_client_more_than_a_megabyte_behind_is_dropped() -> None:
    box = watching.box()
    box.put(HALF, HALF, HALF, HALF)
    assert not box.dropped.is_set(), "what is told at once may be more"
    assert await box.next() == HALF
    box.put(b"small")
    assert not box.dropped.is_set()
    box.put(b"one", b"more")
    assert box.dropped.is_set()
    assert not box._queue, "nothing is kept for it"
    box.put(b"late")
    assert not box._queue


async def test_one_event_larger_than_backlog_limit_can_wait() -> None:
    box = watching.box()
    box.put(HALF * 3)
    box.put(b"behind it")
    box.put(b"and behind that")
    assert [await box.next() for _ in range(3)] == [HALF * 3, b"behind it", b"and behind that"]


async def test_shared_event_is_counted_once_until_its_last_reader_has_it() -> None:
    held = backlogs.Memory()
    boxes = [watching.box(held) for _ in range(50)]
    shared = "\N{COLLISION SYMBOL} é".encode()
    for box in boxes:
        box.put(shared, shared)
    assert held.size == len(shared) == 7
    own = b"of one alone"
    boxes[0].put(own)
    assert held.size == 7 + len(own)
    for box in boxes[:-1]:
        for _ in range(len(box._queue)):
            await box.next()
    assert held.size == 7 + len(own), "what was taken last may be on its way"
    for box in boxes[:-1]:
        box.close()
        box.close()
    assert held.size == 7
    boxes[-1].drop()
    assert held.size == 0
    assert not held._users


async def test_full_memory_drops_slow_clients_and_keeps_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlogs, "MEMORY_MAX", 300_000)
    held = backlogs.Memory()
    reads, hoards, behind = (watching.box(held) for _ in range(3))
    behind.put(b"b" * 50_000)
    behind.put(b"B" * 50_000)
    hoards.put(b"h" * 250_000)
    for _ in range(20):
        reads.put(b"r" * 50_000)
        await reads.next()
    assert not reads.dropped.is_set()
    assert held.size == 400_000
    behind.put(b"b")
    assert behind.dropped.is_set()
    assert held.size == 300_000


async def test_waiting_catch_up_is_counted_and_adds_each_event_when_the_backlog_is_low() -> None:
    held = backlogs.Memory()
    box = watching.box(held)
    events = [bytes([number]) * 100_000 for number in range(10)]
    box.hold(events)
    waiting = asyncio.create_task(box.put_as_read(deque(events)))
    await asyncio.sleep(0)
    assert (held.size, box._size) == (1_000_000, 100_000)
    for number in range(5):
        assert await box.next() == events[number]
        await asyncio.sleep(0)
    assert (held.size, box._size) == (600_000, 100_000), "the fifth is on its way, the sixth is next"
    waiting.cancel()
    await asyncio.wait([waiting])
    box.close()
    assert (held.size, held._users) == (0, {})


@pytest.mark.leaps
async def test_catch_up_waits_while_memory_is_full_and_fails_after_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlogs, "MEMORY_MAX", 10)
    monkeypatch.setattr(backlogs, "MEMORY_WAIT_SECONDS", 0.2)
    held = backlogs.Memory()
    first, second = [b"x" * 8], [b"y" * 8]
    await held.wait_while_full()
    for _ in range(3):
        held.hold(first)
        held.hold(second)
        waiting = [asyncio.create_task(held.wait_while_full()) for _ in range(2)]
        await asyncio.sleep(0.1)  # less than what it waits
        held.release(first)
        await asyncio.gather(*waiting)
        held.release(second)
    held.hold([*first, *second])
    with pytest.raises(backlogs.FullError, match="too many live events wait"):
        await held.wait_while_full()
    with pytest.raises(backlogs.FullError):  # at once
        await asyncio.wait_for(held.wait_while_full(), 0.1)
