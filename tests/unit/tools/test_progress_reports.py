"""Reports of servers on calls that are under way: which call shows them, and how much of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from mcp import types
from mcp.shared import message
from support import clocks
from tarsy.tools.transports import progress


@pytest.fixture
def clock() -> clocks.Clock:
    return clocks.Clock(1000.0)


@pytest.fixture
def reports(clock: clocks.Clock) -> progress.Reports:
    return progress.Reports(clock=clock)


def plain(text: str) -> str:
    return text


@contextmanager
def under_way(
    reports: progress.Reports, lines: list[str], *, execution: str = "e", mask: Callable[[str], str] = plain
) -> Iterator[str]:
    """A call; its token."""
    with reports.during_call(execution=execution, mask=mask, show=lines.append) as meta:
        assert meta[progress.LOG_LEVEL] == "info"
        token = meta["progress_token"]
        assert isinstance(token, str)
        yield token


def notice(method: str, **params: Any) -> message.SessionMessage:
    return message.SessionMessage(
        types.JSONRPCNotification(jsonrpc="2.0", method=f"notifications/{method}", params=params)
    )


@pytest.mark.parametrize(
    ("method", "params", "line"),
    [
        ("progress", {"progress": 4, "total": 10, "message": "reading"}, "4/10 reading"),
        ("progress", {"progress": 0.5}, "0.5"),
        ("progress", {"progress": float("nan"), "total": float("inf")}, "more/more"),
        ("progress", {"progress": True, "message": "a\r\n\x1b[31mb\u202e"}, "a   [31mb"),
        ("message", {"level": "info", "data": "found it"}, "[info] found it"),
        ("message", {"level": "warning", "logger": "helm", "data": {"a": [1]}}, '[warning] helm: {"a": [1]}'),
        ("message", {"level": 5, "data": "\ud83d"}, "\ufffd"),
    ],
)
async def test_progress_report_of_call_is_one_line(
    reports: progress.Reports, method: str, params: dict[str, Any], line: str
) -> None:
    lines: list[str] = []
    with under_way(reports, lines) as token:
        about = params | ({"progressToken": token} if method == "progress" else {})
        assert reports.takes(notice(method, **about))
    assert lines == [f"{line}\n"]


async def test_each_call_gets_only_its_own_progress(reports: progress.Reports) -> None:
    own: list[str] = []
    other: list[str] = []
    with under_way(reports, own) as first, under_way(reports, other, execution="f") as second:
        assert first != second
        tokens: list[Any] = [first, second, "1", 1, None, [], f"{first}0"]
        for token in tokens:
            assert reports.takes(notice("progress", progressToken=token, progress=1, message=f"of {token}"))
    assert reports.takes(notice("progress", progressToken=first, progress=1)), "it is over"
    assert (own, other) == ([f"1 of {first}\n"], [f"1 of {second}\n"])


async def test_log_message_is_shown_only_if_no_other_execution_called_recently(
    reports: progress.Reports, clock: clocks.Clock
) -> None:
    """It names no call: it may be about a call of another user, in another namespace."""
    own: list[str] = []
    other: list[str] = []
    with under_way(reports, own), under_way(reports, own):
        reports.takes(notice("message", level="info", data="of its own"))
        with under_way(reports, other, execution="f"):
            reports.takes(notice("message", level="info", data="of either"))
        reports.takes(notice("message", level="info", data="late, of the other"))
        clock.now += progress.LATE_SECONDS + 1
        reports.takes(notice("message", level="info", data="of its own again"))
    assert (own, other) == (["[info] of its own\n", "[info] of its own again\n"], [])
    assert reports.takes(notice("message", level="info", data="of nothing"))


@pytest.mark.parametrize(
    "other",
    [
        notice("tools/list_changed"),
        notice("cancelled", requestId=1),
        message.SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=1, result={})),
        ValueError("no message"),
    ],
)
def test_all_else_is_the_clients(reports: progress.Reports, other: message.SessionMessage | Exception) -> None:
    assert not reports.takes(other)


async def test_progress_line_is_masked_before_cutting_and_too_long_line_is_not_shown(
    reports: progress.Reports,
) -> None:
    seen: list[str] = []
    lines: list[str] = []

    def mask(text: str) -> str:
        seen.append(text)
        return text.replace("secret", "[MASKED]")

    across = "x" * (progress.LINE_MAX - 5) + "secret"
    longest = "y" * (progress.READ_MAX - len("1 "))
    with under_way(reports, lines, mask=mask) as token:
        for text in (across, longest, "z" * progress.READ_MAX + "secret"):
            reports.takes(notice("progress", progressToken=token, progress=1, message=text))
    assert seen == [f"1 {across}", f"1 {longest}"]
    assert lines == [
        f"1 {'x' * (progress.LINE_MAX - 5)}[MASKED]"[: progress.LINE_MAX] + "\n",
        f"1 {longest}"[: progress.LINE_MAX] + "\n",
        "[a message that is too long is not shown]\n",
    ]


async def test_a_line_that_cannot_be_masked_is_withheld(reports: progress.Reports) -> None:
    lines: list[str] = []

    def broken(text: str) -> str:
        raise KeyError(text)

    with under_way(reports, lines, mask=broken) as token:
        reports.takes(notice("progress", progressToken=token, progress=1, message="secret"))
    assert lines == ["[withheld: it could not be masked]\n"]


async def test_flood_of_progress_shows_a_burst_then_few_lines_and_the_last(
    reports: progress.Reports, clock: clocks.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[tuple[float, Callable[[], None]]] = []

    class Later:
        def cancel(self) -> None:
            later.clear()

    def call_later(wait: float, call: Callable[[], None]) -> Later:
        later.append((wait, call))
        return Later()

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later, raising=False)
    lines: list[str] = []
    with under_way(reports, lines) as token:
        for number in range(10_000):
            reports.takes(notice("progress", progressToken=token, progress=number))
        assert lines == [f"{number}\n" for number in range(progress.BURST)]
        ((wait, show),) = later
        assert wait <= 1 / progress.LINES_A_SECOND
        clock.now += wait + 0.001
        show()
        assert lines[-1] == "9999\n"
        for _ in range(20_000):
            clock.now += 0.01
            reports.takes(notice("progress", progressToken=token, progress=1))
        seconds = 200 + wait
        assert len(lines) <= progress.BURST + 1 + seconds * progress.LINES_A_SECOND
        later.clear()
        reports.takes(notice("progress", progressToken=token, progress=2))
        reports.takes(notice("progress", progressToken=token, progress=3))
    assert later == [], "what was not shown by its end is not shown"


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.floats() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
)


@hypothesis.given(
    method=strategies.sampled_from(["progress", "message"]),
    params=strategies.dictionaries(
        strategies.sampled_from(["progress", "total", "message", "level", "logger", "data", "_meta", "x"]), JSON
    ),
)
def test_any_progress_is_a_printable_line_or_none(method: str, params: dict[str, Any]) -> None:
    lines: list[str] = []
    reports = progress.Reports(clock=clocks.Clock(1000.0))
    with under_way(reports, lines) as token:
        assert reports.takes(notice(method, **params, progressToken=token))
    assert len(lines) <= 1
    for line in lines:
        assert line.endswith("\n")
        assert line[:-1].isprintable()
        line.encode()
