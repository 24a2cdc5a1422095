"""Headlines: one short line of a text that a model wrote, because the columns of kubectl cannot cut.

Markdown is taken off, as far as it is in the way of a reader of one line. Source: CommonMark 0.31.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tarsy.resources import investigations

LONGEST = investigations.HEADLINE_MAX
_READ, _LINE = 16 * 1024, 2 * 1024
"""Characters of a text, and of one of its lines, that are looked at."""

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"^ {0,3}#{1,6}(?:\s+|$)")
_PREFIX = re.compile(r"^\s*(?:>\s*|[-*+]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|#{1,6}\s+)+")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[@-~]")
"""A control sequence of terminals (ECMA-48), such as a colour."""
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]]{0,500})\]\([^()\s]{0,2000}(?:\s+\"[^\"]{0,500}\")?\)")
_TAG = re.compile(
    r"</?(?:a|b|blockquote|br|code|del|details|div|em|font|h[1-6]|hr|i|img|kbd|li|mark|ol|p|pre|s|small|span|strong"
    r"|sub|summary|sup|table|tbody|td|th|thead|tr|tt|u|ul)(?:\s[^<>]{0,200})?/?>",
    re.IGNORECASE,
)
"""A tag of HTML, by its name: `<none>` and `<pod>` are words of kubectl's."""
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,3}(?=\S)|(?<=\S)\*{1,3}(?![\w*])|(?<!\w)_{1,3}(?=\w)|(?<=[\w.!?])_{1,3}(?!\w)")
_CODE = re.compile(r"`+")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_SENTENCE = re.compile(r".+?[.!?。](?:[\"')\]]*)(?=\s+[^\sa-z]|\s*$)")
_ACCOUNT = ("Chain Execution Summary:", "Stage Results:")
"""How the paragraphs begin that tell how the stages went, before an analysis."""


def headline(text: str) -> str:
    """Return the first sentence of `text` that says something, 120 characters at most; "" if there is none.

    Headings, and lines that only announce the next one (`Root cause:`), are passed over, unless there is nothing else.
    A sentence that is longer is cut behind a word, and ends with an ellipsis.
    """
    lines = [(line, is_heading) for line, is_heading in _lines(text[:_READ]) if any(map(str.isalnum, line))]
    sentences = [line for line, is_heading in lines if not is_heading and not line.endswith(":")]
    first = next(iter(sentences or [line for line, _ in lines]), "")
    sentence = _SENTENCE.match(first)
    return cut(sentence[0] if sentence else first)


def cut(text: str) -> str:
    """Return `text` on one line, cut behind a word where it is longer than a headline."""
    line = " ".join(
        "".join(character if character.isprintable() else " " for character in _CONTROL.sub("", text)).split()
    )
    if len(line) <= LONGEST:
        return line
    head = line[: LONGEST - 1]
    head_words = head if line[len(head)] == " " else head.rpartition(" ")[0]
    return f"{(head_words if len(head_words) > LONGEST // 2 else head).rstrip(' ,;:-')}…"


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines without Markdown, each with whether it is a heading."""
    fence = ""
    is_account = False
    for line in _COMMENT.sub("", text).splitlines():
        if opened := _FENCE.match(line):
            if not fence:
                fence = opened[1]
            elif line.strip().startswith(fence):
                fence = ""
            continue
        is_account = bool(line.strip()) and (is_account or line.strip() in _ACCOUNT)
        if not fence and not is_account:
            yield _plain(line[:_LINE]), bool(_HEADING.match(line))


def _plain(line: str) -> str:
    """A line without its Markdown."""
    line = _LINK.sub(r"\1", _PREFIX.sub("", line))
    line = _CODE.sub("", _EMPHASIS.sub("", _TAG.sub("", line)))
    return " ".join(_ESCAPE.sub(r"\1", line).strip("| ").split())
