"""A model's Markdown as plain text: its first sentence on one line, for the columns of kubectl, and a few lines of it.

Only Markdown that is hard to read on one line is removed. Source: CommonMark 0.31.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from tarsy.resources import investigations
from tarsy.store.reads import summaries

LENGTH_MAX = investigations.HEADLINE_MAX
_TEXT_MAX, _LINE_MAX = 16 * 1024, 2 * 1024
"""The maximal characters that are read of a text, and of a line."""

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
"""An HTML tag, by its name: `<none>` and `<pod>` are kubectl's and are kept."""
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,3}(?=\S)|(?<=\S)\*{1,3}(?![\w*])|(?<!\w)_{1,3}(?=\w)|(?<=[\w.!?])_{1,3}(?!\w)")
_CODE = re.compile(r"`+")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_REFERENCE = re.compile(r" ?\[tools?\b(?:[\s,;&.#\d]|tools?|calls?|results?|and){1,100}+\]", re.IGNORECASE)
"""A reference to tool calls, which leads nowhere without the transcript."""
_SENTENCE = re.compile(r".+?[.!?。](?:[\"')\]]*)(?=\s+[^\sa-z]|\s*$)")
_STAGE_REPORT = ("Chain Execution Summary:", "Stage Results:")
"""The first lines of the paragraphs before an analysis that report on the stages."""


def headline(summary: summaries.Summary, *, mask: Callable[[str], str]) -> str:
    """Return the result in one short line, or the message without a result. An earlier result is marked as such."""
    sentences = (first_sentence(mask(text)) for text in _results(summary))
    line = next(filter(None, sentences), "") or one_line(mask(summary.shown_message))
    return one_line(f"Unchanged: {line}") if summary.reason == "Unchanged" else line


def brief(summary: summaries.Summary, *, mask: Callable[[str], str], limit: int) -> str:
    """Return the result in a few lines of plain text, `limit` characters at most, or the message without a result."""
    texts = (plain_text(mask(text), limit=limit) for text in _results(summary))
    return next(filter(None, texts), "") or plain_text(mask(summary.shown_message), limit=limit)


def _results(summary: summaries.Summary) -> Sequence[str]:
    return (summary.summary, summary.final_analysis) if summary.ending in ("Completed", "CompletedWithErrors") else ()


def plain_text(text: str, *, limit: int) -> str:
    """Return the text, `limit` characters at most, without headings, code blocks and references to tool calls.

    Lines that only announce the next one are left out, too. A longer text ends with a whole sentence, if there is one
    in its second half, else with a word and an ellipsis.
    """
    lines = [
        line
        for line, is_heading in _lines(text[:_TEXT_MAX])
        if not is_heading and not line.endswith(":") and any(map(str.isalnum, line))
    ]
    plain = "\n".join(_REFERENCE.sub("", line) for line in lines)
    if len(plain) <= limit:
        return plain
    head = plain[:limit]
    sentence_end = max(head.rfind(mark) for mark in (". ", ".\n", "! ", "? ", "。"))
    if sentence_end >= limit // 2:
        return head[: sentence_end + 1]
    return f"{head[: limit - 1].rpartition(' ')[0] or head[: limit - 1]}…"


def first_sentence(text: str) -> str:
    """Return the first sentence of `text`, LENGTH_MAX characters at most; "" if there is none.

    Headings and lines that only announce the next one (`Root cause:`) are skipped, unless there is nothing else. A
    longer sentence is truncated after a word, and ends with an ellipsis.
    """
    lines = [(line, is_heading) for line, is_heading in _lines(text[:_TEXT_MAX]) if any(map(str.isalnum, line))]
    sentences = [line for line, is_heading in lines if not is_heading and not line.endswith(":")]
    first = next(iter(sentences or [line for line, _ in lines]), "")
    sentence = _SENTENCE.match(first)
    return one_line(sentence[0] if sentence else first)


def one_line(text: str) -> str:
    """Return `text` on one line, truncated after a word if it is longer than LENGTH_MAX."""
    line = " ".join(
        "".join(character if character.isprintable() else " " for character in _CONTROL.sub("", text)).split()
    )
    if len(line) <= LENGTH_MAX:
        return line
    head = line[: LENGTH_MAX - 1]
    head_words = head if line[len(head)] == " " else head.rpartition(" ")[0]
    return f"{(head_words if len(head_words) > LENGTH_MAX // 2 else head).rstrip(' ,;:-')}…"


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line without Markdown, and whether it is a heading."""
    fence = ""
    in_report = False
    for line in _COMMENT.sub("", text).splitlines():
        if opened := _FENCE.match(line):
            if not fence:
                fence = opened[1]
            elif line.strip().startswith(fence):
                fence = ""
            continue
        in_report = bool(line.strip()) and (in_report or line.strip() in _STAGE_REPORT)
        if not fence and not in_report:
            yield _plain(line[:_LINE_MAX]), bool(_HEADING.match(line))


def _plain(line: str) -> str:
    """Return a line without its Markdown."""
    line = _LINK.sub(r"\1", _PREFIX.sub("", line))
    line = _CODE.sub("", _EMPHASIS.sub("", _TAG.sub("", line)))
    return " ".join(_ESCAPE.sub(r"\1", line).strip("| ").split())
