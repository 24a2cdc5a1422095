from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tarsy import errors
from tarsy.controller import workqueue


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "FIRST_DELAY", 0.0)


@asynccontextmanager
async def running(
    handle: Callable[[str], Awaitable[None]], *, workers: int = 4
) -> AsyncIterator[workqueue.WorkQueue[str]]:
    """A queue at work; its end before the test's fails the test."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        queue = workqueue.WorkQueue(handle, workers=workers)
        task = group.create_task(queue.run())
        yield queue
        task.cancel()


class Gate:
    """Handles a key when it is let to; remembers who came, and how many were inside at once."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.most_inside: dict[str, int] = {}
        self._inside: list[str] = []
        self._entered = asyncio.Semaphore(0)
        self._leave = asyncio.Semaphore(0)

    async def handle(self, key: str) -> None:
        self.came.append(key)
        self._inside.append(key)
        self.most_inside[key] = max(self._inside.count(key), self.most_inside.get(key, 0))
        self._entered.release()
        await self._leave.acquire()
        self._inside.remove(key)

    async def entered(self, times: int = 1) -> None:
        for _ in range(times):
            await self._entered.acquire()

    def let(self, times: int = 1) -> None:
        for _ in range(times):
            self._leave.release()


async def test_a_key_waits_in_the_queue_only_once() -> None:
    gate = Gate()
    async with running(gate.handle, workers=1) as queue:
        for key in "aababb":
            queue.add(key)
        gate.let(2)
        await gate.entered(2)
        queue.add("c")
        await gate.entered()
        assert gate.came == ["a", "b", "c"]


async def test_key_that_is_added_while_it_is_handled_is_handled_once_more_and_never_twice_at_once() -> None:
    gate = Gate()
    async with running(gate.handle) as queue:
        queue.add("a")
        await gate.entered()
        for _ in range(3):
            queue.add("a")
        queue.add("b")
        await gate.entered()
        assert gate.came == ["a", "b"], "other keys go on, and this one waits"
        gate.let(4)
        await gate.entered()
        queue.add("end")
        await gate.entered()
        assert gate.came == ["a", "b", "a", "end"]
        assert gate.most_inside == {"a": 1, "b": 1, "end": 1}


@pytest.mark.leaps
async def test_retry_delays_double_up_to_maximum_and_reset_after_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The key is added again at once, so that the test need not wait for the delays that the log tells of."""
    monkeypatch.setattr(workqueue, "FIRST_DELAY", 8.0)
    fails = iter([True, True, True, True, False, True])
    done = asyncio.Event()

    async def handle(key: str) -> None:
        fail = next(fails, None)
        if fail is None:
            done.set()
            return
        queue.add(key)
        if fail:
            raise RuntimeError("broken")

    async with running(handle) as queue:
        queue.add("k")
        await done.wait()
    delays = [record.getMessage().rpartition("again in ")[2] for record in caplog.records]
    assert delays == ["8.0 s", "16.0 s", "30.0 s", "30.0 s", "8.0 s"]


async def test_a_key_that_fails_for_hours_does_not_end_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the longest delay 1,100 failures are nine hours of an outage."""
    monkeypatch.setattr(workqueue, "LONGEST_DELAY", 0.0)
    failures = 0
    done = asyncio.Event()

    async def handle(_: str) -> None:
        nonlocal failures
        failures += 1
        if failures <= 1100:
            raise RuntimeError("the store is down")
        done.set()

    async with running(handle) as queue:
        queue.add("k")
        await done.wait()


@pytest.mark.parametrize(
    ("error", "level"), [(TypeError("broken"), "ERROR"), (errors.TemporaryError("away"), "WARNING")]
)
async def test_a_defect_is_logged_with_its_traceback_and_what_is_away_in_a_line(
    caplog: pytest.LogCaptureFixture, error: Exception, level: str
) -> None:
    tried = 0
    done = asyncio.Event()

    async def handle(_: str) -> None:
        nonlocal tried
        tried += 1
        if tried == 2:
            done.set()
        else:
            raise error

    async with running(handle) as queue:
        queue.add("k")
        await done.wait()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, f"k: {error}; again in 0.0 s")
    assert (level == "ERROR") == ("in handle" in caplog.text)


async def test_key_that_waits_for_its_time_is_not_hurried_by_being_made_sure_of() -> None:
    handled: list[str] = []
    once = asyncio.Event()

    async def handle(key: str) -> None:
        handled.append(key)
        once.set()
        raise workqueue.LaterError(3600)

    async with running(handle) as queue:
        queue.ensure("k")
        await once.wait()
        await asyncio.sleep(0)
        once.clear()
        queue.ensure("k")
        queue.ensure("other")
        await once.wait()
        assert handled == ["k", "other"]
        once.clear()
        queue.add("k")
        await once.wait()
        assert handled == ["k", "other", "k"]
