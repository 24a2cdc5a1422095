"""The one door to RE2: patterns that take linear time on any text.

`re` backtracks, and holds the interpreter's lock while it does: one hostile log line would stop the event loop and
then the heartbeat of the lease. Where a text is taken apart token by token `re` is used all the same, because a match
of RE2's binding costs five times as much: with possessive quantifiers only, which cannot backtrack.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias, cast

import re2  # type: ignore[import-untyped]  # the binding has no annotations

Match: TypeAlias = re.Match[bytes]
Rule: TypeAlias = re.Pattern[bytes]
"""RE2's objects have the interface of `re`; other parts of it are not used."""

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
    return cast("Rule", re2.compile(pattern, options))


def program_size(rule: Rule) -> int:
    """Return the number of RE2's instructions; each byte of a text may cost as many."""
    return int(cast("Any", rule).programsize)


def group_numbers(rule: Rule) -> dict[str, int]:
    """Return the numbers of the named groups."""
    return {name.decode(): number for name, number in cast("Any", rule).groupindex.items()}
