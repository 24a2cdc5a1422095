"""Named crash points for fault tests, dead unless the environment names them.

`TARSY_FAILPOINTS="journal.commit.after=exit@3;tool.call.before=stop"` makes the third `hit("journal.commit.after")` of
this process end it at once, as `kill -9` would, and the first `hit("tool.call.before")` stop it until SIGCONT.
A crash that is asked for by name, before and after each commit, reaches states that random kills hardly ever do.

Actions: `exit` (the process ends at once, exit code 137), `stop` (SIGSTOP to the process itself) and `raise`
(`TriggeredError`, for tests inside one process). `@n` names the hit that acts; without it the first one does.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Literal, cast, get_args

VARIABLE = "TARSY_FAILPOINTS"

Action = Literal["exit", "stop", "raise"]


class TriggeredError(Exception):
    """A failpoint was told to raise."""


@dataclass(frozen=True)
class Failpoint:
    """The action at a hit of a failpoint (`at`, counted from 1)."""

    action: Action
    at: int


def parse(text: str) -> dict[str, Failpoint]:
    """Read `name=action[@hit];...`; a ValueError names the part that is wrong."""
    points: dict[str, Failpoint] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, rest = part.partition("=")
        action, _, at = rest.partition("@")
        if action not in get_args(Action) or not (at or "1").isdecimal():
            raise ValueError(f"{VARIABLE}: {part!r} is not name=({'|'.join(get_args(Action))})[@hit]")
        points[name] = Failpoint(cast("Action", action), int(at or 1))
    return points


_points = parse(os.environ.get(VARIABLE, ""))
_hits: Counter[str] = Counter()


def hit(name: str) -> None:
    """Pass the crash point `name`: does nothing unless the environment asked for it."""
    if not _points or (point := _points.get(name)) is None:
        return
    _hits[name] += 1
    if _hits[name] != point.at:
        return
    match point.action:
        case "exit":
            os._exit(137)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise TriggeredError(name)
