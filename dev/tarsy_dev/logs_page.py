"""The page of the log, whose table of actions is read from the calls of loggers in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tarsy_dev import tools

PAGE = tools.ROOT / "docs" / "logs.md"
SOURCES = tools.ROOT / "operator" / "tarsy"
MARKER = "<!-- `make generate` writes the table from the code. -->"
LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "exception": "ERROR",
    "critical": "CRITICAL",
    "log": "INFO or WARNING",
}


class LogCallError(Exception):
    """A call of a logger that the table cannot show, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the log, as a call in the code writes it."""

    action: str
    level: str
    message: str
    """Values are shown as an ellipsis."""
    fields: tuple[str, ...]
    room: str


def lines(sources: Path = SOURCES) -> list[Line]:
    """Return all lines that the code in `sources` can write. Raises LogCallError."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(sources.rglob("*.py"))}
    helpers = {
        function.name: keys
        for tree in trees.values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and (keys := _returned_keys(function))
    }
    return [
        line
        for path, tree in trees.items()
        for line in _lines_of(tree, helpers, module_path=path.relative_to(sources).with_suffix(""))
    ]


def _lines_of(tree: ast.Module, helpers: Mapping[str, tuple[str, ...]], *, module_path: Path) -> Iterator[Line]:
    loggers = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        variables = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in _own_nodes(function):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and ast.unparse(node.func.value) in loggers
            ):
                yield from _lines_of_call(node, variables, helpers, module_path=module_path)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _lines_of_call(
    call: ast.Call,
    variables: Mapping[str, ast.expr],
    helpers: Mapping[str, tuple[str, ...]],
    *,
    module_path: Path,
) -> Iterator[Line]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    arguments = call.args[1:] if method == "log" else call.args
    keys: list[str] = []
    actions: list[str] = []
    for keyword in call.keywords:
        if keyword.arg == "extra":
            _read_fields(keyword.value, variables, helpers, keys, actions)
    if not actions:
        raise LogCallError(
            f"{module_path}.py:{call.lineno}: write the action of this line as a text in the same function"
        )
    for action in actions:
        yield Line(
            action=action,
            level=LEVELS[method],
            message=_message(arguments),
            fields=tuple(sorted({*keys} - {"action"})),
            room=module_path.parts[0],
        )


def _read_fields(
    part: ast.expr,
    variables: Mapping[str, ast.expr],
    helpers: Mapping[str, tuple[str, ...]],
    keys: list[str],
    actions: list[str],
) -> None:
    """Append the names of the fields in an `extra`, and its actions."""
    match part:
        case ast.Dict():
            for key, value in zip(part.keys, part.values, strict=True):
                if key is None:
                    _read_fields(value, variables, helpers, keys, actions)
                elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                    keys.append(key.value)
                    if key.value == "action":
                        actions += _texts(value)
        case ast.BinOp():
            _read_fields(part.left, variables, helpers, keys, actions)
            _read_fields(part.right, variables, helpers, keys, actions)
        case ast.IfExp():
            _read_fields(part.body, variables, helpers, keys, actions)
            _read_fields(part.orelse, variables, helpers, keys, actions)
        case ast.Name() if part.id in variables:
            _read_fields(variables[part.id], variables, helpers, keys, actions)
        case ast.Call():
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            keys += helpers.get(name, ())
            actions += [text for argument in part.args for text in _texts(argument)]


def _texts(part: ast.expr) -> list[str]:
    match part:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return _texts(part.body) + _texts(part.orelse)
        case _:
            return []


def _returned_keys(function: ast.FunctionDef) -> tuple[str, ...]:
    """Return the keys of the dictionary that a function of log fields returns."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Dict):
        return ()
    return tuple(key.value for key in returned[0].keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _message(arguments: list[ast.expr]) -> str:
    """Return the message with an ellipsis for each value, and all of its forms if it has several."""
    format_text, *values = arguments
    forms = _texts(format_text) or ["…"]
    for value in values:
        choices = _texts(value)
        forms = [
            re.sub(r"%(?:\.\d)?[sdfrg]", choice.replace("\\", r"\\"), form, count=1)
            for form in forms
            for choice in (choices or ["…"])
        ]
    messages = (re.sub(r"(%s|…)+", "…", form.replace("%%", "%")) for form in forms)
    return " / ".join(dict.fromkeys(messages))


def pages() -> dict[Path, str]:
    """Return the page and its text: what is written there by hand, and the table."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    return {PAGE: "\n".join([f"{text}{MARKER}\n", *_table()]) + "\n"}


def _table() -> Iterator[str]:
    yield "| `action` | Level | Line | Its own fields |\n|---|---|---|---|"
    for line in sorted(set(lines()), key=lambda line: (line.action, line.message, line.level)):
        fields = " ".join(f"`{field}`" for field in line.fields)
        yield f"| `{line.action}` | {line.level} | {line.message.replace('|', chr(92) + '|')} | {fields} |"
