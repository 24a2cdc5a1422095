"""The nesting of runs, stages and executions: each begins after its parent and ends before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Level: TypeAlias = tuple[str, ...]
"""A run, a stage in it, or an execution in one of them: its kind, then its identity."""


class OutOfOrderError(Exception):
    """An entry cannot follow the log: a defect of this program, or a journal that was tampered with."""


def run(number: int) -> Level:
    """Return the level of a run."""
    return ("run", str(number))


def runbook(number: int) -> Level:
    """Return the level of a run's runbook, which is read once."""
    return ("the runbook of run", str(number))


def recheck(number: int) -> Level:
    """Return the level of a run's recheck, which is made once."""
    return ("the recheck of run", str(number))


def stage(number: int, name: str) -> Level:
    """Return the level of a stage in a run."""
    return ("stage", str(number), name)


def execution(identity: str) -> Level:
    """Return the level of an execution."""
    return ("execution", identity)


@dataclass(kw_only=True)
class Nesting:
    """The levels that have begun, and the open ones."""

    begun: set[Level] = field(default_factory=set)
    open: dict[Level, int] = field(default_factory=dict)
    """The open levels, each with the number of open levels in it."""
    within: dict[Level, Level] = field(default_factory=dict)

    def begin(self, level: Level, *, within: Level | None = None) -> None:
        """Open a level; raises OutOfOrderError if it has begun before, or if `within` is not open."""
        if level in self.begun:
            raise OutOfOrderError(f"{_words(level)} has started already")
        if within is not None:
            self.require(within)
            self.open[within] += 1
            self.within[level] = within
        self.begun.add(level)
        self.open[level] = 0

    def require(self, level: Level) -> None:
        """Raise OutOfOrderError unless the level is open."""
        if level not in self.open:
            raise OutOfOrderError(f"{_words(level)} has {'ended' if level in self.begun else 'not started'}")

    def end(self, level: Level) -> None:
        """Close a level; raises OutOfOrderError if it is not open, or if levels in it are."""
        self.require(level)
        if self.open[level]:
            inside = [_words(level) for level in self.open if self.within.get(level) == level]
            raise OutOfOrderError(f"{_words(level)} cannot end before {', '.join(inside)}")
        del self.open[level]
        if level in self.within:
            self.open[self.within[level]] -= 1

    def copied(self) -> Nesting:
        """Return an independent copy."""
        return Nesting(begun=set(self.begun), open=dict(self.open), within=dict(self.within))


def _words(level: Level) -> str:
    return f"{level[0]} {level[-1]!r}"
