"""The order in which runs, stages and executions begin and end: each within the one that it lies in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Level: TypeAlias = tuple[str, ...]
"""A level that begins, ends, and lies in another: a run, a stage of it, an execution of that."""


class OutOfOrderError(Exception):
    """An entry that cannot follow what there is: a defect of ours, or a journal that was tampered with."""


def run(number: int) -> Level:
    """The level of a run."""
    return ("run", str(number))


def runbook(number: int) -> Level:
    """The level of a run's runbook, which is read once."""
    return ("the runbook of run", str(number))


def stage(number: int, name: str) -> Level:
    """The level of a stage in a run."""
    return ("stage", str(number), name)


def execution(identity: str) -> Level:
    """The level of an execution."""
    return ("execution", identity)


@dataclass(kw_only=True)
class Nesting:
    """Which levels have begun, and what is open in those that have not ended."""

    begun: set[Level] = field(default_factory=set)
    open: dict[Level, int] = field(default_factory=dict)
    """To the number of open levels in it."""
    within: dict[Level, Level] = field(default_factory=dict)

    def begin(self, level: Level, *, within: Level | None = None) -> None:
        """Open a level; an OutOfOrderError says that it has started before, or that `within` is not open."""
        if level in self.begun:
            raise OutOfOrderError(f"{_words(level)} has started already")
        if within is not None:
            self.require(within)
            self.open[within] += 1
            self.within[level] = within
        self.begun.add(level)
        self.open[level] = 0

    def require(self, level: Level) -> None:
        """Raise an OutOfOrderError unless the level is open."""
        if level not in self.open:
            raise OutOfOrderError(f"{_words(level)} has {'ended' if level in self.begun else 'not started'}")

    def end(self, level: Level) -> None:
        """Close a level; an OutOfOrderError says that it is not open, or which levels in it are."""
        self.require(level)
        if self.open[level]:
            inside = [_words(level) for level in self.open if self.within.get(level) == level]
            raise OutOfOrderError(f"{_words(level)} cannot end before {', '.join(inside)}")
        del self.open[level]
        if level in self.within:
            self.open[self.within[level]] -= 1

    def copied(self) -> Nesting:
        """Return a copy that can be changed on its own."""
        return Nesting(begun=set(self.begun), open=dict(self.open), within=dict(self.within))


def _words(level: Level) -> str:
    return f"{level[0]} {level[-1]!r}"
