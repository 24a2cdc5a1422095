from __future__ import annotations

import asyncio

import pytest
from tarsy.process import supervision


class Part:
    """A part that tells of its start and its end; it ends by itself when `ends` is set."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.ends = asyncio.Event()
        self.started = asyncio.Event()
        self._name = name
        self._story = story

    async def run(self) -> None:
        self.started.set()
        try:
            await self.ends.wait()
        finally:
            self._story.append(self._name)


@pytest.mark.parametrize("ending", ["ground", "role"])
async def test_a_part_that_returns_ends_the_process(ending: str) -> None:
    story: list[str] = []
    parts = {name: Part(name, story) for name in ("ground", "role")}
    running = asyncio.create_task(supervision.supervise(ground=[parts["ground"].run], roles=[parts["role"].run]))
    async with asyncio.timeout(60):
        await parts["role"].started.wait()
        parts[ending].ends.set()
        with pytest.raises(ExceptionGroup) as error:
            await running
    assert error.group_contains(supervision.PartEndedError, match=r"^Part\.run ended by itself$")
    assert sorted(story) == ["ground", "role"]


async def test_the_ground_stops_after_the_roles() -> None:
    story: list[str] = []
    ground, role = Part("ground", story), Part("role", story)
    running = asyncio.create_task(supervision.supervise(ground=[ground.run], roles=[role.run]))
    async with asyncio.timeout(60):
        await role.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert story == ["role", "ground"]
