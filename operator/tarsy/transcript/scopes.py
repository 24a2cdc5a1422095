"""The order in which runs, stages and executions begin and end: each within the one that it lies in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Scope: TypeAlias = tuple[str, ...]
"""A scope that begins, ends, and lies in another: a run, a stage of it, an execution of that."""


class OutOfOrderError(Exception):
    """An entry that cannot follow what there is: a defect of ours, or a journal that was tampered with."""


def run(number: int) -> Scope:
    """The scope of a run."""
    return ("run", str(number))


def runbook(number: int) -> Scope:
    """The scope of a run's runbook, which is read once."""
    return ("the runbook of run", str(number))


def stage(number: int, name: str) -> Scope:
    """The scope of a stage in a run."""
    return ("stage", str(number), name)


def execution(identity: str) -> Scope:
    """The scope of an execution."""
    return ("execution", identity)


@dataclass(kw_only=True)
class Scopes:
    """Which scopes have begun, and what is open in those that have not ended."""

    begun: set[Scope] = field(default_factory=set)
    open: dict[Scope, int] = field(default_factory=dict)
    """To the number of open scopes in it."""
    within: dict[Scope, Scope] = field(default_factory=dict)

    def begin(self, scope: Scope, *, within: Scope | None = None) -> None:
        """Open a scope; an OutOfOrderError says that it has started before, or that `within` is not open."""
        if scope in self.begun:
            raise OutOfOrderError(f"{_words(scope)} has started already")
        if within is not None:
            self.require(within)
            self.open[within] += 1
            self.within[scope] = within
        self.begun.add(scope)
        self.open[scope] = 0

    def require(self, scope: Scope) -> None:
        """Raise an OutOfOrderError unless the scope is open."""
        if scope not in self.open:
            raise OutOfOrderError(f"{_words(scope)} has {'ended' if scope in self.begun else 'not started'}")

    def end(self, scope: Scope) -> None:
        """Close a scope; an OutOfOrderError says that it is not open, or which scopes in it are."""
        self.require(scope)
        if self.open[scope]:
            inside = [_words(scope_open) for scope_open in self.open if self.within.get(scope_open) == scope]
            raise OutOfOrderError(f"{_words(scope)} cannot end before {', '.join(inside)}")
        del self.open[scope]
        if scope in self.within:
            self.open[self.within[scope]] -= 1

    def copied(self) -> Scopes:
        """Return a copy that can be changed on its own."""
        return Scopes(begun=set(self.begun), open=dict(self.open), within=dict(self.within))


def _words(scope: Scope) -> str:
    return f"{scope[0]} {scope[-1]!r}"
