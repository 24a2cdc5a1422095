"""Progress reports and log messages of a server during calls, for viewers, line by line.

They are taken off the connection before the SDK sees them, which would make two tasks of each: a server that sends a
hundred thousand of them costs only their parsing. Each line is masked whole before it is cut; lines beyond the limit
are dropped, but for the last.

A progress report belongs to its call by a token that no other call knows. A log message names no call, so over a shared
connection it is shown only if no other caller has used it for a while: it might be about another request.
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
from typing import Any, cast

from mcp import types
from mcp.shared import message

from tarsy.masking import masker
from tarsy.transcript import messages

LINE_MAX = 1024
"""Characters of a line that are shown."""
READ_MAX = 4 * LINE_MAX
"""Characters of a line; a longer one would have to be cut before it is masked, so it is not shown."""
LINES_MAX = 500
"""Lines of one call."""
BURST = 20
"""Lines of one call that are shown at once."""
LINES_A_SECOND = 2.0
"""Lines that are shown of a call that goes on and on."""
MASKING_SECONDS = 0.05
"""Processor seconds for masking at once the messages of one connection."""
MASKING_SHARE = 0.05
"""The share of the processor for masking, as long as messages go on."""
LATE_SECONDS = 120.0
"""How long a server may still speak of a call that has ended."""

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
"""The key of a request that asks for log messages (MCP 2026-07-28, "Logging")."""
_LARGEST = 2**53
"""From there on numbers of steps say nothing."""
_TOO_LONG = "[a message that is too long is not shown]"


class Reports:
    """The reports of one connection on the calls under way over it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._spare = MASKING_SECONDS
        """For masking."""
        self._counted = clock()
        self._calls: dict[str, _Call] = {}
        self._callers: dict[str, float] = {}
        """To each execution that has called when its last call ended."""

    @contextmanager
    def under_way(
        self, *, execution: str, mask: Callable[[str], str], say: Callable[[str], None]
    ) -> Iterator[types.RequestParamsMeta]:
        """A call of an execution, while it is entered; what is said of it goes to `say`.

        Gives the `_meta` of its request.
        """
        token = secrets.token_hex(16)
        call = self._calls[token] = _Call(self, execution, mask=mask, say=say)
        try:
            yield cast("types.RequestParamsMeta", {"progress_token": token, LOG_LEVEL: "info"})
        finally:
            del self._calls[token]
            call.close()
            self._called_lately()
            self._callers[execution] = self.clock()

    def takes(self, received: message.SessionMessage | Exception) -> bool:
        """Return whether this is a report on a call; then it goes no further."""
        notification = received.message if isinstance(received, message.SessionMessage) else None
        if not isinstance(notification, types.JSONRPCNotification):
            return False
        about = notification.params or {}
        match notification.method:
            case "notifications/progress":
                token = about.get("progressToken")
                if isinstance(token, str) and token in self._calls:
                    self._calls[token].hear(functools.partial(_progress, about))
            case "notifications/message":
                if call := self._only_one():
                    call.hear(functools.partial(_logged, about))
            case _:
                return False
        return True

    def spend(self, seconds: float = 0.0) -> float:
        """Count what masking took of the processor; how long nothing more is to be masked, in seconds."""
        now = self.clock()
        self._spare = min(MASKING_SECONDS, self._spare + (now - self._counted) * MASKING_SHARE) - seconds
        self._counted = now
        return -self._spare / MASKING_SHARE

    def _only_one(self) -> _Call | None:
        """The newest call, where only one execution has called lately."""
        if not self._calls:
            return None
        callers = {call.execution for call in self._calls.values()} | self._called_lately()
        return next(reversed(self._calls.values())) if len(callers) == 1 else None

    def _called_lately(self) -> set[str]:
        now = self.clock()
        self._callers = {name: at for name, at in self._callers.items() if at + LATE_SECONDS > now}
        return set(self._callers)


class _Call:
    """A call that is under way."""

    def __init__(
        self, reports: Reports, execution: str, *, mask: Callable[[str], str], say: Callable[[str], None]
    ) -> None:
        self.execution = execution
        self._reports = reports
        self._mask = mask
        self._say = say
        self._allowed = float(BURST)
        self._counted = reports.clock()
        self._left = LINES_MAX
        self._last: Callable[[], str] | None = None
        """The text of the last report that is not shown yet."""
        self._later: asyncio.TimerHandle | None = None

    def hear(self, describe: Callable[[], str]) -> None:
        """Show a line, or later, if nothing comes behind it meanwhile."""
        wait = self._wait()
        if wait <= 0:
            self._show(describe())
            return
        self._last = describe
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait, self._show_last)

    def close(self) -> None:
        """Show nothing more."""
        if self._later is not None:
            self._later.cancel()

    def _wait(self) -> float:
        """Seconds until another line may be shown."""
        now = self._reports.clock()
        self._allowed = min(float(BURST), self._allowed + (now - self._counted) * LINES_A_SECOND)
        self._counted = now
        return max((1.0 - self._allowed) / LINES_A_SECOND, self._reports.spend())

    def _show_last(self) -> None:
        self._later = None
        last, self._last = self._last, None
        if last is None:
            return
        if (wait := self._wait()) > 0:  # others were masked meanwhile
            self._last, self._later = last, asyncio.get_running_loop().call_later(wait, self._show_last)
        else:
            self._show(last())

    def _show(self, line: str) -> None:
        self._last = None
        if not self._left:
            return
        self._left -= 1
        self._allowed -= 1.0
        began = time.thread_time()
        masked = _TOO_LONG if len(line) > READ_MAX else masker.or_withheld(self._mask, line)
        self._reports.spend(time.thread_time() - began)
        printable = "".join(char if char.isprintable() else " " for char in messages.storable(masked))
        if line_shown := printable.strip()[:LINE_MAX]:
            self._say(f"{line_shown}\n")


def _progress(about: Mapping[str, Any]) -> str:
    """Return the text of a progress notification: `4/10 reading the log`."""
    done, total, text = about.get("progress"), about.get("total"), about.get("message")
    numbers = [
        _number(number) for number in (done, total) if isinstance(number, int | float) and not isinstance(number, bool)
    ]
    return " ".join(filter(None, ("/".join(numbers), _line(text) if isinstance(text, str) else "")))


def _number(number: float) -> str:
    """A number in few digits; JSON has integers that no float holds."""
    return f"{number:g}" if abs(number) < _LARGEST else "more"


def _logged(about: Mapping[str, Any]) -> str:
    """A log message: `[warning] helm: no such release`."""
    level, logger, payload = about.get("level"), about.get("logger"), about.get("data")
    head = [f"[{level}]"] if isinstance(level, str) else []
    if isinstance(logger, str) and logger:
        head.append(f"{logger}:")
    return " ".join([*map(_line, head), _line(payload if isinstance(payload, str) else _json(payload))])


def _line(text: str) -> str:
    """So much of a text that it is known whether it is too long."""
    return text[: READ_MAX + 1]


def _json(value: Any) -> str:
    """The beginning of JSON, which may have megabytes."""
    pieces = itertools.islice(json.JSONEncoder(ensure_ascii=False).iterencode(value), READ_MAX)
    return "".join(pieces)
