r"""Normalisation of letters that look like ASCII, invisible characters and terminal colors.

`pass\u200bword: x` and full-width letters look like a password's name to people and to models, and match no rule here:
rules are ASCII. So such a text is masked a second time, normalised. That also removes the colors that loggers put
between a name and its value, raw or as JSON and shells escape them (ECMA-48, section 5.4).
"""

from __future__ import annotations

import re
import unicodedata

from tarsy.masking import budgets

_ALIKE = {
    ord(look): plain
    for first, last in ((0xFF01, 0xFF5E), (0x1D400, 0x1D7FF), (0x24B6, 0x24E9), (0xFE50, 0xFE6B))
    for look in map(chr, range(first, last + 1))
    if (plain := unicodedata.normalize("NFKC", look)).isascii() and len(plain) == 1 and plain.isprintable()
}
"""Full-width, mathematical, circled and small forms. Source: Unicode, compatibility decompositions."""
_INVISIBLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x180B, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E)),
    *((0x2060, 0x206F), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xE0000, 0xE01EF)),
)
"""Source: Unicode, Default_Ignorable_Code_Point, without fillers that are as wide as a letter."""
_CONTROLS = (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0))
"""All control characters but the tab and line ends."""
_SPACES = (0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_TABLE: dict[int, str | None] = {
    **_ALIKE,
    **{code: None for first, last in _INVISIBLE for code in range(first, last + 1)},
    **dict.fromkeys(_CONTROLS),
    **dict.fromkeys(_SPACES, " "),
}
_SUSPECTS = frozenset(map(chr, _TABLE))
_COLOR = r"\[[0-9:;?]{0,32}[A-Za-z]"
_SEQUENCE = re.compile(f"[\x1b\x9b]{_COLOR}|\x9b[0-9:;?]{{0,32}}[A-Za-z]")
_ESCAPED = re.compile(
    rf"\\{{1,16}}(?:(?:u001[bB]|x1[bB]|033){_COLOR}|u(?:200[b-fB-F]|2060|[fF][eE][fF][fF]|00[aA][dD]))"
)
_PASSES = 4


def normalize(text: str) -> str:
    """Return `text` with plain letters for their lookalikes, and without invisible characters and colors.

    Normalising twice changes nothing. Raises a `budgets.BudgetExceededError` if escapes are nested deeper than any
    program writes them.
    """
    if not _SUSPECTS.isdisjoint(text):  # a class of them in a pattern takes a hundred times as long
        text = _SEQUENCE.sub("", text).translate(_TABLE)
    if "\\" not in text:
        return text
    for _ in range(_PASSES):
        text, count = _ESCAPED.subn("", text)
        if not count:
            return text
    raise budgets.BudgetExceededError
