"""YAML files with line numbers: what people write, read with care, each problem with its file and line.

PyYAML takes the last of two keys without a word, and follows aliases wherever they lead: a file of a hundred bytes may
stand for gigabytes. Problems are told without what the file says: it may be a key in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

LARGEST = 1 << 20
"""Bytes of a file: what a ConfigMap may hold."""
MOST_VALUES = 100_000
"""Values of a document, each alias counted as all that it stands for."""
DEEP = 100
"""The deepest nesting that is read; handwritten files stay far below."""
_INTEGER_BITS = 63
"""The largest whole number in bits, without its sign."""
_MERGE = "tag:yaml.org,2002:merge"
_OTHER_KEYS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "timestamp")}
_QUOTED = re.compile(r"""(['"](?:.|<[a-z -]+>)['"])|['"].*""", re.DOTALL)
"""A character or a kind of token in quotes; or else a quote, and all that follows."""
_KINDS = {
    "tag:yaml.org,2002:timestamp": "a date that is none",
    "tag:yaml.org,2002:int": "a number that is none",
    "tag:yaml.org,2002:float": "a number that is none",
}
"""The problem of a value that does not fit its tag."""
_VARIABLE_KEY = re.compile(r"\s*\.[A-Za-z_][A-Za-z0-9_]*\s*")

Place: TypeAlias = Sequence[int | str]
"""Where something stands in a document: keys of mappings, positions in lists."""


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """Something that is wrong in a file."""

    file: str
    line: int
    """From 1; 0 where it is the file itself."""
    message: str

    def __str__(self) -> str:
        """`FILE:LINE: MESSAGE`, as compilers say it."""
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def path_text(path: Place) -> str:
    """A place as messages say it: `agents.A.mcp_servers.0`."""
    dotted = ".".join(map(str, path)) or "the file"
    return "".join(char if char.isprintable() else " " for char in dotted)


class FileError(Exception):
    """Files that cannot be used; the message is what is wrong, one problem a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a file."""

    file: str
    data: Any = field(repr=False)
    """None where nothing stands there."""
    node: yaml.Node | None = field(repr=False)

    def line(self, path: Place = ()) -> int:
        """The line of what stands at `path`, or of the last on the way there that is there; of a key, its own."""
        node, line = self.node, _line(self.node)
        for step in path:
            child = _below(node, step)
            if child is None:
                break
            line, node = _line(child[0]), child[1]
        return line

    def problem(self, path: Place, message: str) -> Problem:
        """Return the problem at `path`; the message names its own place if need be."""
        return Problem(file=self.file, line=self.line(path), message=message)


def read(path: Path) -> list[Document]:
    """The documents of the file at `path`, one at least; a FileError says what is wrong with it."""
    return of_bytes(contents(path), file=str(path))


def contents(path: Path) -> bytes:
    """Return the content of the file at `path`; raises FileError if it cannot be read or is too long."""
    try:
        with path.open("rb") as file:
            read = file.read(LARGEST + 1)
    except OSError as error:
        raise _wrong(str(path), error.strerror or "cannot be read") from error
    except ValueError as error:  # NUL, which no name can have
        raise _wrong(str(path), "this is no name of a file") from error
    if len(read) > LARGEST:
        raise _wrong(str(path), f"more than {LARGEST} bytes: no configuration is that large, and no ConfigMap holds it")
    return read


def of_bytes(read: bytes, *, file: str) -> list[Document]:
    """The documents of what stands in `file`; a FileError says what is wrong with it."""
    try:
        text = read.decode()
    except UnicodeDecodeError as error:
        raise _wrong(file, "not UTF-8 text", _ends(read[: error.start].decode()) + 1) from error
    if unfit := yaml.reader.Reader.NON_PRINTABLE.search(text):
        raise _wrong(file, "not YAML: a character that is not allowed", _ends(text[: unfit.start()]) + 1)
    return parse(text, file=file)


def parse(text: str, *, file: str) -> list[Document]:
    """The documents of a text that stands in `file`; a FileError says what is wrong with it."""
    nodes: list[yaml.Node | None] = []
    loader = _Loader(text)
    try:
        while loader.check_node():
            nodes.append(loader.get_node())
        if problems := [
            Problem(file=file, line=_line(node), message=what) for root in nodes for node, what in _unfit(root)
        ]:
            raise FileError(sorted(problems))
        values = [None if node is None else loader.construct_document(node) for node in nodes]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        column = f"column {mark.column + 1}: " if mark else ""
        line = mark.line + 1 if mark else 0
        message = f"not YAML: {column}{_what(error)}{_hint(text, line)}"
        raise FileError([Problem(file=file, line=line, message=message)]) from error
    except RecursionError as error:
        raise FileError([Problem(file=file, line=_deepest(text), message="nested too deep")]) from error
    finally:
        loader.dispose()
    documents = [Document(file=file, data=value, node=node) for value, node in zip(values, nodes, strict=True)]
    return documents or [Document(file=file, data=None, node=None)]


def written(value: Any) -> str:
    """YAML of `value` as people write it: keys in their order, texts of several lines as blocks, no aliases."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, value: Any) -> bool:  # noqa: ARG002 - PyYAML's
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def _wrong(file: str, message: str, line: int = 0) -> FileError:
    return FileError([Problem(file=file, line=line, message=message)])


def _ends(text: str) -> int:
    """Line breaks, as YAML counts them."""
    return len(re.findall("\r\n|[\n\r\x85\u2028\u2029]", text))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with marks on what its own constructors stumble over."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's
        if isinstance(node, yaml.MappingNode) and (variable := _bare_variable(node)):
            return variable
        try:
            return _not_endless(super().construct_object(node, deep=deep))
        except yaml.YAMLError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A date that is none, a tag on what it does not fit.
            kind = _KINDS.get(node.tag, "a value that does not fit its tag")
            raise yaml.constructor.ConstructorError(None, None, kind, node.start_mark) from error


def _not_endless(value: Any) -> Any:
    """Return `value`; raises ValueError for a whole number that is too large to be written again."""
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise ValueError
    return value


def _bare_variable(node: yaml.MappingNode) -> str | None:
    """`{{.VAR}}` without quotes, which is a mapping to YAML, as the text that is meant."""
    inner = node.value[0][0] if len(node.value) == 1 else None
    if not isinstance(inner, yaml.MappingNode) or len(inner.value) != 1 or _says(node.value[0][1]):
        return None
    name, nothing = inner.value[0]
    text = name.value if isinstance(name, yaml.ScalarNode) else ""
    return f"{{{{{text.strip()}}}}}" if _VARIABLE_KEY.fullmatch(text) and not _says(nothing) else None


def _says(node: yaml.Node) -> bool:
    return not isinstance(node, yaml.ScalarNode) or bool(node.value)


def _unfit(root: yaml.Node | None) -> Iterator[tuple[yaml.Node, str]]:
    """Yield what PyYAML would silently accept: duplicate keys, aliases that explode or refer to themselves."""
    if root is None:
        return
    if loop := _sizes(root):
        yield loop
        return
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            first: dict[str, yaml.Node] = {}
            for key, value in node.value:
                waiting += [key, value]
                if isinstance(key, yaml.ScalarNode) and key.tag in _OTHER_KEYS:
                    yield key, "a key that is a number, a date or the like to YAML: write it in quotes"
                elif isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    before = first.setdefault(key.value, key)
                    if before is not key:
                        yield key, f"not YAML: a key appears twice, first on line {_line(before)}"
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _sizes(root: yaml.Node) -> tuple[yaml.Node, str] | None:
    """Return the node that expands to more than is read, or to itself."""
    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    open_now: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, is_counted = waiting.pop()
        below = [] if isinstance(node, yaml.ScalarNode) else list(_children(node))
        if is_counted:
            open_now.discard(id(node))
            sizes[id(node)] = size = 1 + sum(sizes[id(child)] for child in below)
            if size > MOST_VALUES:
                return node, f"more than {MOST_VALUES} values, with all that aliases stand for"
            depths[id(node)] = depth = 1 + max((depths[id(child)] for child in below), default=0)
            if depth > DEEP:
                return node, f"nested deeper than {DEEP}, with all that aliases stand for"
        elif id(node) not in sizes:
            open_now.add(id(node))
            waiting.append((node, True))
            for child in below:
                if id(child) in open_now:
                    return child, "an alias that stands for itself"
                waiting.append((child, False))
    return None


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value:
        if isinstance(child, tuple):
            yield from child
        else:
            yield child


def _below(node: yaml.Node | None, step: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key node of the step below `node`, and its value node."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return node.value[step], node.value[step]
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # in front is what was merged
            if isinstance(key, yaml.ScalarNode) and key.value == str(step):
                return key, value
    return None


def _line(node: yaml.Node | None) -> int:
    return node.start_mark.line + 1 if node is not None and node.start_mark else 1


def _what(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's words, without the line it quotes and from where they quote more than a character or a kind of token."""
    if error.problem and r"'\t'" in error.problem:
        return "a tab: YAML is indented with spaces"
    return _QUOTED.sub(lambda match: match[1] or "...", error.problem or "cannot be read")


def _hint(text: str, line: int) -> str:
    is_variable = (
        re.search(r"[:[,-]\s*\{\{", text.splitlines()[line - 1]) if 0 < line <= len(text.splitlines()) else None
    )
    return "; what begins with {{.VAR}} stands in quotes" if is_variable else ""


def _deepest(text: str) -> int:
    """The line where a text that is nested too deep is at its deepest, as far as that can be told."""
    depth = deepest = line = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > deepest and event.start_mark:
                    deepest, line = depth, event.start_mark.line + 1
                if depth == DEEP:  # of nested brackets PyYAML looks at all that are open for each that comes
                    return line
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, RecursionError):  # it ends in the middle
        return line
    return line
