"""The oracle of the fault tests: what reached a loopback server, when, and how it ended.

It lives outside the program under test. A record is in memory, and on disk if a file was given, before its answer
starts, so that a kill of either side loses none; what is learned later is appended as a line of its own and never
rewritten. `read` puts the lines of one or several servers' lives together again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from tarsy_dev import changes, patience

End = Literal["completed", "client closed", "cut by us", "failed"]
"""`client closed` is also a cancelled call; `failed` is a defect of the script or the server, not of the client."""

T = TypeVar("T")


@dataclass(kw_only=True)
class Entry:
    """One request or call. Times are seconds since the epoch (`time.time`)."""

    late: ClassVar[tuple[str, ...]] = ("ended", "end")
    """The fields that are not known on arrival."""

    arrived: float = dataclasses.field(default_factory=time.time)
    number: int = 0
    ended: float | None = None
    end: End | None = None


E = TypeVar("E", bound=Entry)


class Log(Generic[E]):
    """The entries of one server, in order of arrival."""

    def __init__(self, *, path: Path | None = None, keep: int | None = None) -> None:
        """Append to `path` as JSON lines, if given; keep the last `keep` entries in memory (None: all)."""
        self._entries: deque[E] = deque(maxlen=keep)
        self._changes = changes.Changes()
        self._server = uuid.uuid4().hex
        self._count = 0
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def entries(self) -> list[E]:
        """A copy of the list; the entries in it are the live ones."""
        return list(self._entries)

    def add(self, entry: E) -> E:
        """Number and record an arrival."""
        entry.number = self._count
        self._count += 1
        self._entries.append(entry)
        self._write(dataclasses.asdict(entry))
        self._changes.happened()
        return entry

    def update(self, entry: E) -> None:
        """Record what has become known of an entry since it arrived."""
        self._write({"number": entry.number} | {name: getattr(entry, name) for name in entry.late})
        self._changes.happened()

    def changed(self) -> None:
        """Let those that wait look again: something is known of an entry that is not worth a line of the file."""
        self._changes.happened()

    def finish(self, entry: E, end: End) -> None:
        """Record how an entry ended."""
        entry.ended, entry.end = time.time(), end
        self.update(entry)

    async def wait_for(self, condition: Callable[[Sequence[E]], T | None], *, timeout: float = patience.PATIENCE) -> T:
        """Wait for a condition on the entries, looked at after every change; TooLong says what there was."""
        return await self._changes.until(lambda: condition(self.entries), timeout=timeout, state=self._state)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, fields: dict[str, Any]) -> None:
        if self._file is not None:
            line = json.dumps({"server": self._server} | fields, ensure_ascii=False)
            os.write(self._file, f"{line}\n".encode())  # one write: lines of several processes do not mix

    def _state(self) -> str:
        return f"{self._count} entries; the last: {list(self._entries)[-3:]}"


def read(path: Path) -> list[dict[str, Any]]:
    """Read a log file: one mapping an entry, in order of arrival, with what was last known of it.

    A last line without its end was being written when its server was killed; it is left out.
    """
    merged: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            merged.setdefault((fields["server"], fields["number"]), {}).update(fields)
    return list(merged.values())
