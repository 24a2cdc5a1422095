"""Custom patterns, which a platform file adds to the built-in ones.

RE2 compiles them, so they take linear time on any text; it refuses lookaround and back references. A pattern that
matches its own replacement and changes it again is refused as well: masking twice has to change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tarsy.masking import budgets, edits, markers, rules

PATTERN_MAX = 1024
"""Characters."""
REPLACEMENT_MAX = 256
"""Characters."""
SIZE_MAX = 2000
"""RE2's instructions; each byte of a text may cost as many."""

Field: TypeAlias = Literal["pattern", "replacement"]

_COST = 20
_GROUP = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+)|)")
"""A reference in Go's syntax: `$1`, `${1}`, `${name}`, and `$$` for a dollar."""
_SAMPLES = (b"", b"a", b"7", b" ", b"\n", b"_", b"-", b"a 7\n", b"\xc3\xa9")
_QUOTED_MAX = 8
"""Characters of a pattern that an error quotes: more of it might be a secret."""


class CustomPatternError(ValueError):
    """A pattern or its replacement, which is in `field`, cannot be used; the message says why."""

    def __init__(self, field: Field, why: str) -> None:
        super().__init__(why)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class CustomPattern:
    """A compiled pattern and its replacement."""

    rule: rules.Rule
    pieces: tuple[bytes | int, ...]
    """The replacement: texts, and the numbers of groups whose match is kept."""

    def find(self, doc: bytes, budget: budgets.Budget) -> Iterator[edits.Edit]:
        """Yield the edits of a document; a marker in it is kept whole or replaced whole."""
        for match in budget.metered(self.rule.finditer(doc), cost=_COST):
            start, end = match.span()
            if start < end and (span := edits.around(doc, start, end)) is not None:
                text = self._replacement(match)
                if doc[slice(*span)] != text:
                    yield edits.Edit(*span, text)

    def _replacement(self, match: rules.Match) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else match[piece] if match.start(piece) >= 0 else b""
            for piece in self.pieces
        )

    def replace_once(self, doc: bytes) -> bytes:
        """Return a short `doc` with all matches replaced."""
        return edits.apply(doc, self.find(doc, budgets.unlimited()))


def compile_pattern(*, name: str, pattern: str, replacement: str | None) -> CustomPattern:
    """Return a pattern of this name. Without a replacement, `[MASKED:name]` replaces its matches.

    Raises CustomPatternError if it cannot be used; the message does not quote the pattern.
    """
    if len(pattern) > PATTERN_MAX:
        raise CustomPatternError("pattern", f"longer than {PATTERN_MAX} characters")
    try:
        rule = rules.unicode_rule(pattern.encode())
    except rules.PatternError as error:
        problem, _, quote = str(error).partition(": ")
        if quote and len(quote) <= _QUOTED_MAX and quote != pattern:
            problem += f": {quote}"
        raise CustomPatternError("pattern", f"RE2 refuses it: {problem}") from None
    except UnicodeEncodeError:
        raise CustomPatternError("pattern", "not a text that UTF-8 can encode") from None
    if rules.program_size(rule) > SIZE_MAX:
        raise CustomPatternError(
            "pattern",
            f"too large: RE2 compiles it to {rules.program_size(rule)} instructions, and {SIZE_MAX} are allowed",
        )
    if any(match.start() == match.end() for sample in _SAMPLES for match in rule.finditer(sample)):
        raise CustomPatternError("pattern", "it matches the empty text")
    pieces = (markers.marker(name),) if replacement is None else tuple(_pieces(replacement, rule))
    custom_pattern = CustomPattern(rule=rule, pieces=pieces)
    if not _is_idempotent(custom_pattern):
        raise CustomPatternError("replacement", "the pattern matches and changes it again: masking would never end")
    return custom_pattern


def _pieces(replacement: str, rule: rules.Rule) -> Iterator[bytes | int]:
    if len(replacement) > REPLACEMENT_MAX:
        raise CustomPatternError("replacement", f"longer than {REPLACEMENT_MAX} characters")
    done = 0
    for group in _GROUP.finditer(replacement):
        yield replacement[done : group.start()].encode("utf-8", "replace")
        done = group.end()
        yield b"$" if group[1] else _group_number(group[2] or group[3] or "", rule)
    yield replacement[done:].encode("utf-8", "replace")


def _group_number(reference: str, rule: rules.Rule) -> int:
    """Return the number of the group that a reference names, by number or by name."""
    if not reference:
        raise CustomPatternError("replacement", "a dollar without a group after it: write $$ for a dollar")
    groups = rules.group_numbers(rule)
    number = groups.get(reference, int(reference) if re.fullmatch("[0-9]{1,3}", reference) else -1)
    if number == 0:
        raise CustomPatternError("replacement", "$0 is the whole match: nothing would be masked")
    if not 0 < number <= rule.groups:
        available = ", ".join(f"${{{group}}}" for group in (*range(1, rule.groups + 1), *sorted(groups)))
        raise CustomPatternError("replacement", f"an unknown group of the pattern. Available: {available or 'none'}")
    return number


def _is_idempotent(pattern: CustomPattern) -> bool:
    """Return whether the pattern leaves its replacements unchanged, tested with samples."""
    for filling in (b"", b"0", b"a", b"A1b2"):
        written = b"".join(piece if isinstance(piece, bytes) else filling for piece in pattern.pieces)
        for sample in (written, b" " + written + b" "):
            once = pattern.replace_once(sample)
            if pattern.replace_once(once) != once:
                return False
    return True
