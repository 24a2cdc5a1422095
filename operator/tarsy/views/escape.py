"""Outside text within a Markdown document: it cannot end its block, change the document around it or load anything.

Documents are also read in terminals, so control characters are always escaped (`control_characters`).

Text is shown literally, in a code block (`code_block`) or within a line (`span`), whose marks are longer than any run
of backticks in it. Or it is shown as the Markdown that models write (`markdown`): HTML, images and definitions of links
become text, and headings move below the heading of the place. That needs no parser: ambiguous markup is written in a
form that all parsers read alike, at worst as text.

Source: CommonMark 0.31, and GitHub's tables and bare links.
"""

from __future__ import annotations

import html
import re
import string

from tarsy.transcript import control_characters

_BACKTICKS = re.compile("`+")
_CODE_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`]*)")
_CONTAINERS = r"((?:[ \t]|>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t]))*)"
"""The prefix of a line in lists and quotes."""
_HEADING = re.compile(rf"{_CONTAINERS}(#{{1,6}})(?=[ \t]|$)")
_RULE = re.compile(r"([ \t>]*)(?:-[ \t]*){3,}")
_UNDERLINE = re.compile(rf"{_CONTAINERS}(=+|-+)[ \t]*")
_TILDES = re.compile("~{3,}")
_LABEL = re.compile(rf"{_CONTAINERS}\[(?![^\]\\]*\](?!:))")
"""The possible beginning of a link definition: a label that may continue, or that a colon follows."""
_MARKS = re.compile(r"\\[\\`<!\[\]]|`+|<|!(?=\[)|\]\(")
"""The possible beginnings of an escape, a code span, HTML, an image, the target of a link."""
_LINKED = re.compile(r"\]\([^\s()<>`\"'\\]+\)")
_ALONE = re.compile(r"(?:^|\s)[(*_\"']{0,3}$")
"""The end of a text after which no bare link continues."""
_RISKY = re.compile(r"<|!\[")
_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")
_CELL_MAX = 300
"""Characters of a text in a table cell."""


def code_block(text: str, *, language: str = "text") -> str:
    """Return `text` literally, as a code block of its own."""
    text = control_characters.escape(text)
    marks = "`" * max(3, _longest(text) + 1)
    return f"{marks}{language}\n{text}\n{marks}\n\n"


def span(text: str) -> str:
    """Return `text` literally, within a line; line ends become spaces."""
    line = control_characters.escape(" ".join(text.split())) or "(nothing)"
    marks = "`" * (_longest(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{marks}{padding}{line}{padding}{marks}"


def table_cell(text: str) -> str:
    """Return `text` as a table cell, in which even a code span ends at a |; a long text is cut, with a note."""
    line = control_characters.escape(" ".join(text.split()))
    if len(line) > _CELL_MAX:
        line = f"{line[:_CELL_MAX]}… ({len(line):,} characters)"
    if "|" not in line:
        return span(line)
    return "".join(_entity(character) if character in string.punctuation else character for character in line)


def details(title: str, block: str) -> str:
    """Return a `block` of Markdown that is folded under its `title`, which is text."""
    text = html.escape(control_characters.escape(" ".join(title.split())))
    return f"<details><summary>{text}</summary>\n\n{block}</details>\n\n"


def markdown(text: str, *, below: int) -> str:
    """Return `text`, which is Markdown, for a place below a heading of level `below`.

    Its headings get lower levels, and its code blocks start at the margin. Images become links, links keep a target of
    one word, and HTML, titles and definitions of links become text.
    """
    lines: list[str] = []
    code: list[str] | None = None
    indent, opened, language = 0, "", ""
    dedent = 0
    """The indentation that is removed from text after a code block in a list, which moves to the margin with it."""
    for written in control_characters.escape(text).split("\n"):
        line = written.expandtabs(4)
        if code is not None:
            marks = line.strip()
            if len(marks) >= len(opened) and not marks.strip(opened[0]) and _indent(line) <= indent + 3:
                lines.append(_block(code, language))
                code = None
            else:
                code.append(written[min(indent, _indent(written)) :])
        elif opening := _CODE_FENCE.fullmatch(line):
            code, opened, indent = [], opening[2], _indent(line)
            match = _LANGUAGE.match(opening[3])
            language, dedent = match[0] if match else "", indent
        else:
            if line.strip() and _indent(line) < dedent:
                dedent = 0
            lines.append(_line(line[min(dedent, _indent(line)) :], below=below))
    if code is not None:
        lines.append(_block(code, language))
    return "\n".join(lines).strip("\n") + "\n\n"


def _block(code: list[str], language: str) -> str:
    return code_block("\n".join(code), language=language).rstrip("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _line(line: str, *, below: int) -> str:
    """Return a line outside code blocks, without refused markup at its beginning."""
    if rule := _RULE.fullmatch(line):
        return f"{rule[1]}***"
    if underline := _UNDERLINE.fullmatch(line):
        return f"{underline[1]}{_entity(underline[2][0])}{underline[2][1:]}"
    begin = ""
    if heading := _HEADING.match(line):
        begin = heading[1] + "#" * min(6, len(heading[2]) + below)
        line = line[heading.end() :]
    elif label := _LABEL.match(line):
        begin = label[1] + _entity("[")
        line = line[label.end() :]
    line = _TILDES.sub(lambda match: _entity("~") + match[0][1:], line)
    return begin + (_inline(line, holds_code=True) or _inline(line, holds_code=False) or "")


def _inline(line: str, *, holds_code: bool) -> str | None:
    """Return a line without refused markup; None if a parser may not read its code spans as such.

    With `holds_code`, text between backticks is a code span; otherwise backticks are text.
    """
    parts: list[str] = []
    position = 0
    spans: list[str] = []
    while mark_match := _MARKS.search(line, position):
        parts.append(line[position : mark_match.start()])
        mark, position = mark_match[0], mark_match.end()
        if mark.startswith("\\"):
            parts.append(mark)
        elif mark.startswith("`"):
            ends = (match.end() for match in _BACKTICKS.finditer(line, position) if match[0] == mark)
            end = next(ends, None) if holds_code else None
            if end is None:
                parts.append(_entity("`") * len(mark))
                continue
            spans.append(line[mark_match.start() : end])
            if _RISKY.search(spans[-1]) and not _ALONE.search(line, max(0, mark_match.start() - 4), mark_match.start()):
                return None
            parts.append(spans[-1])
            position = end
        elif mark == "](" and (link := _LINKED.match(line, mark_match.start())):
            parts.append(link[0])
            position = link.end()
        else:
            parts.append(f"{mark[:-1]}{_entity(mark[-1])}")
    if any(map(_RISKY.search, spans)) and any("|" in span for span in spans):
        return None  # a table's line is split at each |
    return "".join([*parts, line[position:]])


def _entity(character: str) -> str:
    return "&lt;" if character == "<" else f"&#{ord(character)};"


def _longest(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)
