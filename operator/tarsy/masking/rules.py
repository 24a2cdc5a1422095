"""The one door to RE2: patterns that take linear time on any text.

`re` backtracks, and holds the interpreter's lock while it does: one hostile log line would stop the event loop and
then the heartbeat of the lease. Where a text is taken apart token by token `re` is used all the same, because a match
of RE2's binding costs five times as much: with possessive quantifiers only, which cannot backtrack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import re2  # type: ignore[import-untyped]  # the binding has no annotations; the protocols below are what we use of it


class Match(Protocol):
    """One place where a rule holds."""

    def start(self, group: int = 0) -> int:
        """Where a group begins; -1 if it took no part."""

    def end(self, group: int = 0) -> int:
        """Where a group ends; -1 if it took no part."""

    def span(self, group: int = 0) -> tuple[int, int]:
        """Both."""

    def __getitem__(self, group: int) -> bytes: ...


class Rule(Protocol):
    """A compiled pattern over bytes."""

    @property
    def pattern(self) -> bytes:
        """The source of the pattern."""

    @property
    def groups(self) -> int:
        """How many groups it has."""

    @property
    def groupindex(self) -> Mapping[bytes | str, int]:
        """The numbers of those that have names."""

    @property
    def programsize(self) -> int:
        """How many instructions it is to RE2."""

    def finditer(self, text: bytes, pos: int | None = None, endpos: int | None = None) -> Iterator[Match]:
        """All places, from left to right, that do not overlap."""

    def search(self, text: bytes, pos: int | None = None, endpos: int | None = None) -> Match | None:
        """The first place."""

    def match(self, text: bytes, pos: int | None = None, endpos: int | None = None) -> Match | None:
        """The place that begins at `pos`."""

    def fullmatch(self, text: bytes) -> Match | None:
        """All of `text`, or nothing."""


STRANGE_MEMORY = 64 * 1024
"""Bytes of a strange pattern: so few that RE2 gives up early on what has more states than it can keep."""


class PatternError(ValueError):
    """RE2 cannot read a pattern; the message is RE2's."""


def rule(pattern: bytes) -> Rule:
    """Compile a pattern; bytes are Latin-1 to it, so that `[^x]` is any other byte, also of broken UTF-8."""
    return _compiled(pattern, re2.Options.Encoding.LATIN1)


def unicode_rule(pattern: bytes, *, is_strange: bool = False) -> Rule:
    """Compile a pattern in UTF-8, whose letters are whole letters; raises PatternError with the problem.

    `is_strange`: a user wrote it, and it is only to say whether a text matches. Then it has no groups and little
    memory: its costs are in proportion to its program and to the text.
    """
    try:
        return _compiled(pattern, re2.Options.Encoding.UTF8, is_strange=is_strange)
    except re2.error as error:
        reason = error.args[0]
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error


def _compiled(pattern: bytes, encoding: object, *, is_strange: bool = False) -> Rule:
    options = re2.Options()
    options.encoding = encoding
    options.log_errors = False
    if is_strange:
        options.never_capture = True
        options.max_mem = STRANGE_MEMORY
    compiled: Rule = re2.compile(pattern, options)
    return compiled
