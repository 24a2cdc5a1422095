"""The part of kubectl's JSONPath templates that selects fields.

`{.a.b}`, `{.a[0]}`, `{.a[-1]}`, `{.a[*].b}`, `{.a['b']}`, `{..b}`, `{.a[?(@.b=="c")].d}`, `{range .a[*]}...{end}` and
`{"text"}`. A path without a value prints nothing.

Source: Kubernetes documentation, "JSONPath Support".
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_TOKEN = re.compile(
    r"""
    \.\.(?P<deep>\w[\w-]*)
    | \.(?P<field>(?:[^.\[\]{}()'"\s\\]|\\.)+)
    | \[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]
    | \[(?P<index>-?\d+)\]
    | \[(?P<slice>-?\d*:-?\d*)\]
    | (?P<all>\[\*\]|\.\*)
    | \[\?\(@(?P<left>[^=!<>]*?)\s*(?P<operator>==|!=|<=|>=|<|>)\s*(?P<right>.+?)\)\]
    """,
    re.VERBOSE,
)
_PART = re.compile(r"\{((?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^{}\"'])*)\}")


class TemplateError(ValueError):
    """The template cannot be read."""


def render(template: str, document: Any) -> str:
    """Return the text of a template for a document. Raises a TemplateError."""
    parts = _parts(template if "{" in template else "{" + template + "}")
    text, rest = _render(parts, document)
    if rest:
        raise TemplateError("{end} without {range}")
    return text


def _parts(template: str) -> list[tuple[str, str]]:
    """Return texts and expressions in their order."""
    parts: list[tuple[str, str]] = []
    end = 0
    for match in _PART.finditer(template):
        parts += [("text", template[end : match.start()]), ("expression", match[1].strip())]
        end = match.end()
    last = template[end:]
    if any("{" in text or "}" in text for kind, text in [*parts, ("text", last)] if kind == "text"):
        raise TemplateError(f"unclosed {{ or }} in {template!r}")
    return [*parts, ("text", last)]


def _render(parts: Sequence[tuple[str, str]], current: Any) -> tuple[str, Sequence[tuple[str, str]]]:
    """Return the text up to the end or an {end}, and the parts from that {end} on."""
    text = ""
    while parts:
        (kind, value), parts = parts[0], parts[1:]
        if kind == "text":
            text += value
        elif value == "end":
            return text, [("end", ""), *parts]
        elif value.startswith("range "):
            items = list(_find(value.removeprefix("range ").strip(), current))
            rest: Sequence[tuple[str, str]] = ()
            for member in items or [None]:
                rendered, rest = _render(parts, member)
                if not rest:
                    raise TemplateError("{range} without {end}")
                text += rendered if items else ""
            parts = rest[1:]
        elif value[:1] in ("'", '"'):
            text += _literal(value)
        else:
            text += " ".join(
                result
                if isinstance(result, str)
                else ""
                if result is None
                else json.dumps(result, ensure_ascii=False, separators=(",", ":"))
                for result in _find(value, current)
            )
    return text, ()


def _literal(quoted: str) -> str:
    inside = quoted[1:-1] if len(quoted) > 1 and quoted[-1] == quoted[0] else None
    if inside is None:
        raise TemplateError(f"{quoted} does not end")
    return inside.replace("\\n", "\n").replace("\\t", "\t").replace("\\" + quoted[0], quoted[0])


def _find(path: str, current: Any) -> Iterator[Any]:
    """Yield the values at a path. Raises TemplateError if the path cannot be parsed."""
    path = path.removeprefix("$").removeprefix("@")
    path = path if path[:1] in ("", ".", "[") else f".{path}"
    values = [current]
    offset = 0
    while offset < len(path) and path != ".":
        match = _TOKEN.match(path, offset)
        if match is None:
            raise TemplateError(f"cannot read {path[offset:]!r} in {path!r}")
        values = [result for value in values for result in _step(match, value)]
        offset = match.end()
    yield from values


def _step(match: re.Match[str], value: Any) -> Iterator[Any]:
    """Yield the values at one step of a path from `value`."""
    name = match["field"] if match["quoted"] is None else match["quoted"]
    items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if name is not None:
        name = re.sub(r"\\(.)", r"\1", name) if match["quoted"] is None else name
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif match["deep"]:
        yield from _descend(value, match["deep"])
    elif match["index"]:
        if isinstance(value, list) and -len(value) <= int(match["index"]) < len(value):
            yield value[int(match["index"])]
    elif match["slice"]:
        start, _, end = match["slice"].partition(":")
        yield from items[int(start) if start else None : int(end) if end else None]
    elif match["all"]:
        yield from items
    else:
        yield from (member for member in items if _holds(match, member))


def _descend(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        value = list(value.values())
    for member in value if isinstance(value, list) else ():
        yield from _descend(member, name)


def _holds(match: re.Match[str], member: Any) -> bool:
    """Return whether a filter is true for a member of a list."""
    left = next(_find(match["left"].strip() or ".", member), None)
    written = match["right"].strip()
    try:
        right = _literal(written) if written[:1] in ("'", '"') else json.loads(written)
    except ValueError as error:
        raise TemplateError(f"cannot read {written!r} in a filter") from error
    if match["operator"] in ("==", "!="):
        return (left == right) == (match["operator"] == "==")
    compare: Callable[[Any, Any], Any] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[
        match["operator"]
    ]
    both = (left, right)
    is_ordered = all(isinstance(each, str) for each in both) or all(type(each) in (int, float) for each in both)
    return is_ordered and bool(compare(left, right))
