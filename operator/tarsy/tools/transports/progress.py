"""Progress reports and log messages of a server during calls, for viewers, line by line.

They are taken off the connection before the SDK, which would start two tasks for each, so that a hundred thousand of
them cost only their parsing. Each line is masked whole before it is cut. Lines beyond the limit are dropped, except the
last one.

A progress report names its call by a random token. A log message names no call, so over a shared connection it is shown
only if no other execution has used the connection for a while: it might be about another call.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp import types
from mcp.shared import message

from tarsy.masking import masker
from tarsy.tools.transports import token_bucket
from tarsy.transcript import messages

LINE_MAX = 1024
"""Characters of a line that are shown."""
READ_MAX = 4 * LINE_MAX
"""Characters of the longest line that is shown; a longer one would have to be cut before it is masked."""
LINES_MAX = 500
"""Lines of one call."""
BURST = 20
"""Lines of one call that are shown at once."""
LINES_A_SECOND = 2.0
"""Lines that are shown of a long call."""
MASKING_SECONDS = 0.05
"""Processor seconds for masking at once the messages of one connection."""
MASKING_SHARE = 0.05
"""The share of the processor for masking, as long as messages continue."""
LATE_SECONDS = 120.0
"""The time after a call in which the server may still send messages about it."""

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
"""The key of a request that asks for log messages (MCP 2026-07-28, "Logging")."""
_NUMBER_MAX = 2**53
"""The largest number of steps that is shown."""
_TOO_LONG = "[a message that is too long is not shown]"


class Reports:
    """The reports of one connection about its current calls."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._masking = token_bucket.TokenBucket(MASKING_SECONDS, MASKING_SHARE, clock=clock)
        self._calls: dict[str, _Call] = {}
        self._executions: dict[str, float] = {}
        """The time at which the last call of each execution ended."""

    @contextmanager
    def during_call(
        self, *, execution: str, mask: Callable[[str], str], show: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """Pass the lines about one call to `show` while the context is entered; yield the `_meta` of its request."""
        token = secrets.token_hex(16)
        call = self._calls[token] = _Call(self, execution, mask=mask, show=show)
        try:
            yield {"progress_token": token, LOG_LEVEL: "info"}
        finally:
            del self._calls[token]
            call.close()
            self._recent_executions()
            self._executions[execution] = self.clock()

    def takes(self, received: message.SessionMessage | Exception) -> bool:
        """Take a report and return True; return False for any other message, which the SDK needs."""
        notification = received.message if isinstance(received, message.SessionMessage) else None
        if not isinstance(notification, types.JSONRPCNotification):
            return False
        params = notification.params or {}
        match notification.method:
            case "notifications/progress":
                token = params.get("progressToken")
                if isinstance(token, str) and token in self._calls:
                    self._calls[token].add(functools.partial(_progress_line, params))
            case "notifications/message":
                if call := self._only_call():
                    call.add(functools.partial(_log_line, params))
            case _:
                return False
        return True

    def spend(self, seconds: float = 0.0) -> float:
        """Count processor seconds of masking; return the seconds until more may be masked."""
        self._masking.refill()
        self._masking.tokens -= seconds
        return -self._masking.tokens / MASKING_SHARE

    def _only_call(self) -> _Call | None:
        """The newest call, if only one execution has called recently."""
        if not self._calls:
            return None
        executions = {call.execution for call in self._calls.values()} | self._recent_executions()
        return next(reversed(self._calls.values())) if len(executions) == 1 else None

    def _recent_executions(self) -> set[str]:
        now = self.clock()
        self._executions = {name: ended for name, ended in self._executions.items() if ended + LATE_SECONDS > now}
        return set(self._executions)


class _Call:
    """A current call."""

    def __init__(
        self, reports: Reports, execution: str, *, mask: Callable[[str], str], show: Callable[[str], None]
    ) -> None:
        self.execution = execution
        self._reports = reports
        self._mask = mask
        self._show = show
        self._lines = token_bucket.TokenBucket(BURST, LINES_A_SECOND, clock=reports.clock)
        self._left = LINES_MAX
        self._last: Callable[[], str] | None = None
        """The function that builds the last line that is not shown yet."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, build_line: Callable[[], str]) -> None:
        """Show a line now, or later unless another line follows."""
        wait = self._wait()
        if wait <= 0:
            self._show_line(build_line())
            return
        self._last = build_line
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._show_last)

    def close(self) -> None:
        """Show no further line."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> float:
        """The seconds until another line may be shown."""
        return max((1.0 - self._lines.refill()) / LINES_A_SECOND, self._reports.spend())

    def _show_last(self) -> None:
        self._timer = None
        last, self._last = self._last, None
        if last is None:
            return
        if (wait := self._wait()) > 0:  # lines of other calls were masked meanwhile
            self._last, self._timer = last, asyncio.get_running_loop().call_later(wait, self._show_last)
        else:
            self._show_line(last())

    def _show_line(self, line: str) -> None:
        self._last = None
        if not self._left:
            return
        self._left -= 1
        self._lines.tokens -= 1.0
        began = time.thread_time()
        masked = _TOO_LONG if len(line) > READ_MAX else masker.or_withheld(self._mask, line)
        self._reports.spend(time.thread_time() - began)
        printable = "".join(char if char.isprintable() else " " for char in messages.storable(masked))
        if excerpt := printable.strip()[:LINE_MAX]:
            self._show(f"{excerpt}\n")


def _progress_line(params: Mapping[str, Any]) -> str:
    """The line for a progress notification: `4/10 reading the log`."""
    done, total, text = params.get("progress"), params.get("total"), params.get("message")
    numbers = [
        f"{number:g}" if abs(number) < _NUMBER_MAX else "more"  # JSON has integers that no float holds
        for number in (done, total)
        if isinstance(number, int | float) and not isinstance(number, bool)
    ]
    return " ".join(filter(None, ("/".join(numbers), _beginning(text) if isinstance(text, str) else "")))


def _log_line(params: Mapping[str, Any]) -> str:
    """The line for a log message: `[warning] helm: no such release`."""
    level, logger, payload = params.get("level"), params.get("logger"), params.get("data")
    head = [f"[{level}]"] if isinstance(level, str) else []
    if isinstance(logger, str) and logger:
        head.append(f"{logger}:")
    if not isinstance(payload, str):  # only the beginning of JSON, which may have megabytes
        payload = "".join(itertools.islice(json.JSONEncoder(ensure_ascii=False).iterencode(payload), READ_MAX))
    return " ".join([*map(_beginning, head), _beginning(payload)])


def _beginning(text: str) -> str:
    """The beginning of a text, one character longer than allowed if the text is too long."""
    return text[: READ_MAX + 1]
