"""Named crash points for fault tests, without effect unless the environment names them.

`TARSY_FAILPOINTS="journal.commit.after=exit@3;tool.call.before=stop"` makes the third `hit("journal.commit.after")` of
this process end it at once, as `kill -9` would, and the first `hit("tool.call.before")` stop it until SIGCONT.
Crashes right before and right after each commit reach states that random kills almost never reach.

Actions: `exit` (the process ends at once, exit code 137), `stop` (SIGSTOP to the process itself) and `raise`
(`TriggeredError`, for tests inside one process). `@n` selects the n-th hit; without it the first hit acts.
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
    """Parse `name=action[@hit];...`; raises ValueError with the invalid part."""
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
    """Run the action of the crash point `name`, if the environment sets one for this hit."""
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
