"""Text from outside within a Markdown document: whatever it says, it stays where it stands.

Documents are read in terminals, too, so `control_characters` are escaped everywhere.

It stands there in one of three ways. As it is: in a fence that is longer than any run of backticks in it, and within a
line in a span of code of the same kind. Or as the Markdown that models write (`markdown`), without what could change
the document around it or load anything: HTML, images, definitions of links, headings above its own place. That needs
no parser: what could be read in two ways is written in one that all read alike, at worst as text.

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
"""The possible beginning of a link definition: a label that does not end in its line as in a text."""
_MARKS = re.compile(r"\\[\\`<!\[\]]|`+|<|!(?=\[)|\]\(")
"""The possible beginnings of an escape, a code span, HTML, an image, the target of a link."""
_LINKED = re.compile(r"\]\([^\s()<>`\"'\\]+\)")
_ALONE = re.compile(r"(?:^|\s)[(*_\"']{0,3}$")
"""The end of what stands before something that is no part of a bare link."""
_RISKY = re.compile(r"<|!\[")
_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")
_CELL_MAX = 300
"""Characters of a text in a table."""


def code_block(text: str, *, language: str = "text") -> str:
    """`text` as a block of its own, as it is but for control characters."""
    text = control_characters.escape(text)
    marks = "`" * max(3, _longest(text) + 1)
    return f"{marks}{language}\n{text}\n{marks}\n\n"


def span(text: str) -> str:
    """`text` within a line, as it is but for line ends and control characters."""
    line = control_characters.escape(" ".join(text.split())) or "(nothing)"
    marks = "`" * (_longest(line) + 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{marks}{room}{line}{room}{marks}"


def table_cell(text: str) -> str:
    """`text` in a table, where not even a span of code holds a |; a long one is cut, and says so."""
    line = control_characters.escape(" ".join(text.split()))
    if len(line) > _CELL_MAX:
        line = f"{line[:_CELL_MAX]}… ({len(line):,} characters)"
    if "|" not in line:
        return span(line)
    return "".join(_entity(character) if character in string.punctuation else character for character in line)


def details(title: str, block: str) -> str:
    """A `block` of Markdown that is opened by a click on its `title`, which is text."""
    text = html.escape(control_characters.escape(" ".join(title.split())))
    return f"<details><summary>{text}</summary>\n\n{block}</details>\n\n"


def markdown(text: str, *, below: int) -> str:
    """`text`, which is Markdown, below a heading of that level.

    Its headings are below that one, its blocks of code stand at the margin. Images are links, links have one word as
    their target, and titles and definitions of links are text, as HTML is.
    """
    lines: list[str] = []
    code: list[str] | None = None
    indent, opened, language = 0, "", ""
    dedent = 0
    """Text after a code block in a list goes to the margin together with it."""
    for written in control_characters.escape(text).split("\n"):
        line = written.expandtabs(4)
        if code is not None:
            if _closes(line, opened, indent):
                lines.append(_block(code, language))
                code = None
            else:
                code.append(written[min(indent, _indent(written)) :])
        elif begins := _CODE_FENCE.fullmatch(line):
            code, opened, indent = [], begins[2], _indent(line)
            match = _LANGUAGE.match(begins[3])
            language, dedent = match[0] if match else "", indent
        else:
            if line.strip() and _indent(line) < dedent:
                dedent = 0
            lines.append(_line(line[min(dedent, _indent(line)) :], below=below))
    if code is not None:
        lines.append(_block(code, language))
    return "\n".join(lines).strip("\n") + "\n\n"


def _closes(line: str, opened: str, indent: int) -> bool:
    marks = line.strip()
    is_one = len(marks) >= len(opened) and not marks.strip(opened[0])
    return is_one and _indent(line) <= indent + 3


def _block(code: list[str], language: str) -> str:
    return code_block("\n".join(code), language=language).rstrip("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _line(line: str, *, below: int) -> str:
    """A line that is in no block of code of its own."""
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
    """Return a line without refused markup; None if its code spans may be read as none.

    `holds_code`: text between backticks is a code span, else backticks are text.
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
            end = _end_of_span(line, position, mark) if holds_code else None
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
        return None  # as a line of a table it is cut at each |
    return "".join([*parts, line[position:]])


def _end_of_span(line: str, position: int, marks: str) -> int | None:
    """Return the end of the code span that begins with `marks` before `position`, or None if its line has no end."""
    ends = (match.end() for match in _BACKTICKS.finditer(line, position) if match[0] == marks)
    return next(ends, None)


def _entity(character: str) -> str:
    return "&lt;" if character == "<" else f"&#{ord(character)};"


def _longest(text: str) -> int:
    return max(map(len, _BACKTICKS.findall(text)), default=0)
