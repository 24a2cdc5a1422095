"""YAML files with line numbers: strict reading of handwritten files, with the file and the line of each problem.

PyYAML silently takes the last of two equal keys, and expands aliases without limit, so that a file of a hundred bytes
may become gigabytes. Here both are problems. Messages never quote the file's values, which may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

SIZE_MAX = 1 << 20
"""The maximum size of a file, in bytes: the limit of a ConfigMap."""
VALUES_MAX = 100_000
"""The maximum number of values in a document with its aliases expanded."""
DEPTH_MAX = 100
"""The maximum nesting; handwritten files stay far below."""
_INTEGER_BITS = 63
"""The largest whole number in bits, without its sign."""
_MERGE = "tag:yaml.org,2002:merge"
_OTHER_KEYS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "timestamp")}
_QUOTED = re.compile(r"""(['"](?:.|<[a-z -]+>)['"])|['"].*""", re.DOTALL)
"""Group 1: a character or a kind of token in quotes. Without it: any other quote, and all that follows."""
_INVALID_VALUES = {
    "tag:yaml.org,2002:timestamp": "not a valid date",
    "tag:yaml.org,2002:int": "not a valid number",
    "tag:yaml.org,2002:float": "not a valid number",
}
"""The problem of a value that does not fit its tag."""
_VARIABLE_KEY = re.compile(r"\s*\.[A-Za-z_][A-Za-z0-9_]*\s*")

KeyPath: TypeAlias = Sequence[int | str]
"""The path of a value in a document: keys of mappings, and indices of lists."""


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """A problem in a file."""

    file: str
    line: int
    """From 1; 0 if the problem has no line."""
    message: str

    def __str__(self) -> str:
        """Return `FILE:LINE: MESSAGE`, as compilers print it."""
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def path_text(path: KeyPath) -> str:
    """Return a path as messages print it: `agents.A.mcp_servers.0`."""
    dotted = ".".join(map(str, path)) or "the file"
    return "".join(char if char.isprintable() else " " for char in dotted)


class FileError(Exception):
    """Files cannot be used; the message has one problem per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a file."""

    file: str
    value: Any = field(repr=False)
    """The content, as Python objects; None if the document is empty."""
    node: yaml.Node | None = field(repr=False)

    def line(self, path: KeyPath = ()) -> int:
        """Return the line of the value at `path` (of a member of a mapping: its key), or of the nearest parent."""
        node, line = self.node, _line(self.node)
        for step in path:
            child = _key_and_value(node, step)
            if child is None:
                break
            line, node = _line(child[0]), child[1]
        return line

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return the problem at the line of `path`."""
        return Problem(file=self.file, line=self.line(path), message=message)


def read(path: Path) -> list[Document]:
    """Return the documents of the file at `path`, at least one; raises FileError if it is invalid."""
    return parse_bytes(contents(path), file=str(path))


def contents(path: Path) -> bytes:
    """Return the bytes of the file at `path`; raises FileError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            read = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise _file_error(str(path), error.strerror or "cannot be read") from error
    except ValueError as error:  # NUL, which no name can have
        raise _file_error(str(path), "not a valid file name") from error
    if len(read) > SIZE_MAX:
        raise _file_error(str(path), f"more than {SIZE_MAX} bytes, which is the limit of a ConfigMap")
    return read


def parse_bytes(read: bytes, *, file: str) -> list[Document]:
    """Return the documents in the bytes of `file`; raises FileError if they are invalid."""
    try:
        text = read.decode()
    except UnicodeDecodeError as error:
        raise _file_error(file, "not UTF-8 text", _line_breaks(read[: error.start].decode()) + 1) from error
    if invalid := yaml.reader.Reader.NON_PRINTABLE.search(text):
        raise _file_error(file, "not YAML: a character that is not allowed", _line_breaks(text[: invalid.start()]) + 1)
    return parse(text, file=file)


def parse(text: str, *, file: str) -> list[Document]:
    """Return the documents in the text of `file`; raises FileError if it is invalid."""
    nodes: list[yaml.Node | None] = []
    loader = _Loader(text)
    try:
        while loader.check_node():
            nodes.append(loader.get_node())
        if problems := [
            Problem(file=file, line=_line(node), message=message)
            for root in nodes
            for node, message in _problems_pyyaml_accepts(root)
        ]:
            raise FileError(sorted(problems))
        values = [None if node is None else loader.construct_document(node) for node in nodes]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        column = f"column {mark.column + 1}: " if mark else ""
        line = mark.line + 1 if mark else 0
        message = f"not YAML: {column}{_problem_text(error)}{_hint(text, line)}"
        raise FileError([Problem(file=file, line=line, message=message)]) from error
    except RecursionError as error:
        raise FileError([Problem(file=file, line=_deepest_line(text), message="nested too deep")]) from error
    finally:
        loader.dispose()
    documents = [Document(file=file, value=value, node=node) for value, node in zip(values, nodes, strict=True)]
    return documents or [Document(file=file, value=None, node=None)]


def to_yaml(value: Any) -> str:
    """Return `value` as YAML in a handwritten style: keys in their order, multi-line texts as blocks, no aliases."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, value: Any) -> bool:  # noqa: ARG002 - PyYAML's
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _file_error(file: str, message: str, line: int = 0) -> FileError:
    return FileError([Problem(file=file, line=line, message=message)])


def _line_breaks(text: str) -> int:
    """Return the number of line breaks by YAML's rules."""
    return len(re.findall("\r\n|[\n\r\x85\u2028\u2029]", text))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader. It also gives errors of PyYAML's constructors a line, and accepts `{{.VAR}}` unquoted."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's
        if isinstance(node, yaml.MappingNode) and (variable := _unquoted_variable(node)):
            return variable
        try:
            return _writable(super().construct_object(node, deep=deep))
        except yaml.YAMLError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # An invalid date or number, or a tag that does not fit its value.
            problem = _INVALID_VALUES.get(node.tag, "a value that does not fit its tag")
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)
# A plain `=`, which PyYAML resolves to a tag that it cannot construct; in Kubernetes it is a text.


def _writable(value: Any) -> Any:
    """Return `value`; raises ValueError for an integer that is too large to be written as YAML again."""
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise ValueError
    return value


def _unquoted_variable(node: yaml.MappingNode) -> str | None:
    """Return the text of an unquoted `{{.VAR}}`, which YAML reads as a mapping; None if `node` is none."""
    inner = node.value[0][0] if len(node.value) == 1 else None
    if not isinstance(inner, yaml.MappingNode) or len(inner.value) != 1 or _has_value(node.value[0][1]):
        return None
    name, nothing = inner.value[0]
    text = name.value if isinstance(name, yaml.ScalarNode) else ""
    return f"{{{{{text.strip()}}}}}" if _VARIABLE_KEY.fullmatch(text) and not _has_value(nothing) else None


def _has_value(node: yaml.Node) -> bool:
    return not isinstance(node, yaml.ScalarNode) or bool(node.value)


def _problems_pyyaml_accepts(root: yaml.Node | None) -> Iterator[tuple[yaml.Node, str]]:
    """Yield the problems that PyYAML accepts silently: duplicate keys, and aliases that expand without limit."""
    if root is None:
        return
    if problem := _expansion_problem(root):
        yield problem
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
                    yield key, "YAML reads this key as a number, a date or the like: write it in quotes"
                elif isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    before = first.setdefault(key.value, key)
                    if before is not key:
                        yield key, f"not YAML: a key appears twice, first on line {_line(before)}"
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _expansion_problem(root: yaml.Node) -> tuple[yaml.Node, str] | None:
    """Return a node whose expansion exceeds a limit or contains itself, and the problem; None if there is none."""
    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    ancestors: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, are_children_done = waiting.pop()
        children = [] if isinstance(node, yaml.ScalarNode) else list(_children(node))
        if are_children_done:
            ancestors.discard(id(node))
            sizes[id(node)] = size = 1 + sum(sizes[id(child)] for child in children)
            if size > VALUES_MAX:
                return node, f"more than {VALUES_MAX} values with its aliases expanded"
            depths[id(node)] = depth = 1 + max((depths[id(child)] for child in children), default=0)
            if depth > DEPTH_MAX:
                return node, f"nested deeper than {DEPTH_MAX} levels with its aliases expanded"
        elif id(node) not in sizes:
            ancestors.add(id(node))
            waiting.append((node, True))
            for child in children:
                if id(child) in ancestors:
                    return child, "an alias that contains itself"
                waiting.append((child, False))
    return None


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for child in node.value:
        if isinstance(child, tuple):
            yield from child
        else:
            yield child


def _key_and_value(node: yaml.Node | None, step: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key node and the value node of a member of `node`; for a list both are the member."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return node.value[step], node.value[step]
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):  # merged members come first, and own ones replace them
            if isinstance(key, yaml.ScalarNode) and key.value == str(step):
                return key, value
    return None


def _line(node: yaml.Node | None) -> int:
    return node.start_mark.line + 1 if node is not None and node.start_mark else 1


def _problem_text(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's message up to its first quote of more than a character or a kind of token."""
    if error.problem and r"'\t'" in error.problem:
        return "a tab: YAML is indented with spaces"
    return _QUOTED.sub(lambda match: match[1] or "...", error.problem or "cannot be read")


def _hint(text: str, line: int) -> str:
    is_variable = (
        re.search(r"[:[,-]\s*\{\{", text.splitlines()[line - 1]) if 0 < line <= len(text.splitlines()) else None
    )
    return "; a value that begins with {{.VAR}} needs quotes" if is_variable else ""


def _deepest_line(text: str) -> int:
    """Return the line of the deepest nesting in a text that is nested too deep, as far as it can be read."""
    depth = deepest = line = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > deepest and event.start_mark:
                    deepest, line = depth, event.start_mark.line + 1
                if depth == DEPTH_MAX:  # PyYAML takes quadratic time for deeper brackets
                    return line
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, RecursionError):
        return line
    return line
