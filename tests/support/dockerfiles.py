"""The Dockerfile, read as text, and the files of the checkout that a build sees."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from tarsy_dev import tools

DOCKERFILE = tools.ROOT / "Dockerfile"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """The instructions behind one FROM."""

    base: str
    instructions: tuple[tuple[str, str], ...]
    """Each as its word and the rest."""

    def all(self, word: str) -> list[str]:
        """Return the text behind each `word`."""
        return [rest for name, rest in self.instructions if name == word]

    def last(self, word: str, default: str) -> str:
        """Return the text behind the last `word`."""
        return (self.all(word) or [default])[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dockerfile:
    """A Dockerfile, read."""

    arguments: Mapping[str, str]
    """The ARGs before the first FROM, with their defaults."""
    stages: Mapping[str, Stage]
    """By name; the last one, which is the image, is called ''."""


def read(text: str) -> Dockerfile:
    """Read a Dockerfile: instructions, continued lines, comments. Without heredocs and directives."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    pairs = [tuple(line.split(None, 1)) for line in lines.splitlines() if line.strip()]
    starts = [number for number, (word, _) in enumerate(pairs) if word == "FROM"]
    for _, rest in pairs[: starts[0]]:
        name, _, default = rest.partition("=")
        arguments[name] = default
    for start, end in zip(starts, [*starts[1:], len(pairs)], strict=True):
        base, _, name = pairs[start][1].partition(" AS ")
        instructions = tuple((word, " ".join(rest.split())) for word, rest in pairs[start + 1 : end])
        stages[name] = Stage(base=expanded(base, arguments), instructions=instructions)
    return Dockerfile(arguments=arguments, stages=stages)


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Put values where `${NAME}` stands; KeyError where there is none."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


def context() -> list[str]:
    """The files of the checkout that a build sees: what Git has or would take, as far as `.dockerignore` lets it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tools.ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    rules = (tools.ROOT / ".dockerignore").read_text().splitlines()
    return sorted(name for name in listed if (tools.ROOT / name).is_file() and seen(name, rules))


def seen(name: str, rules: Sequence[str]) -> bool:
    """Whether a build sees this file: the last rule that matches it, or a folder of it, decides."""
    path = PurePosixPath(name)
    places = [str(path), *map(str, path.parents[:-1])]
    is_seen = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        patterns = [pattern, pattern.removeprefix("**/"), f"*/{pattern.removeprefix('**/')}"]
        if not pattern.startswith("**/"):
            patterns = [pattern]
        if not rule.startswith("#") and any(fnmatch.fnmatchcase(entry, glob) for entry in places for glob in patterns):
            is_seen = rule.startswith("!")
    return is_seen
