"""Scenarios: an alert, the root cause that is behind it, and what an investigation has to see, to say, and not to say.

A scenario is a directory: `scenario.yaml`, which this module reads, and `world`, the cluster that the tools show
(`worlds`). Nothing in `scenario.yaml` but the alert reaches a model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import AfterValidator, ConfigDict, Field

from tarsy.config.load import validation
from tarsy.config.model import fields
from tarsy.evaluation import causes
from tarsy.resources import files

FILE = "scenario.yaml"
WORLD = "world"
SERVER = "kubernetes-server"
"""The MCP server of a chain that shows the world."""

Tool = Literal[
    "events_list",
    "namespaces_list",
    "nodes_log",
    "nodes_stats_summary",
    "nodes_top",
    "pods_get",
    "pods_list",
    "pods_list_in_namespace",
    "pods_log",
    "pods_top",
    "resources_get",
    "resources_list",
]
"""The tools of kubernetes-mcp-server with the toolset `core` that only read."""
TOOLS: tuple[Tool, ...] = get_args(Tool)
BLANK = "FILL IN"
"""The beginning of a value of a begun scenario that a person has to replace."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_compiles)]
"""A regular expression of Python, looked for anywhere in a text, in any case; `.` matches line breaks, too."""


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Alert(_Part):
    """The alert, as Alertmanager sends it."""

    labels: Annotated[dict[str, str], Field(min_length=1)]
    annotations: dict[str, str] = {}
    firing_for: fields.Duration = timedelta(minutes=5)
    """The time since its start, at the time of the recording."""

    @pydantic.field_validator("labels")
    @classmethod
    def _is_named(cls, labels: dict[str, str]) -> dict[str, str]:
        if not labels.get("alertname"):
            raise ValueError("alertname is missing: it is the name of the alert's rule")
        return labels


class Cause(_Part):
    """The root cause: one entity and one class."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    cause_class: Annotated[causes.CauseClass, Field(alias="class")]
    kind: str = ""
    name: str = ""
    namespace: str = ""
    """"" for an entity without a namespace."""
    also_named: tuple[str, ...] = ()
    """Other names by which an analysis may rightly name the entity; those of the objects that it owns always count."""

    @pydantic.model_validator(mode="after")
    def _has_entity(self) -> Cause:
        if self.cause_class == "nothing":
            if self.kind or self.name or self.namespace or self.also_named:
                raise ValueError("class: nothing has no entity: leave kind, name and namespace out")
        elif not (self.kind and self.name):
            raise ValueError(f"kind: class {self.cause_class} needs the kind and the name of one entity")
        return self


class Evidence(_Part):
    """A piece of evidence, and a tool call whose result shows it."""

    shows: Annotated[str, Field(min_length=1)]
    """The fact that it shows, for reports."""
    tool: Tool
    arguments: dict[str, Any] = {}
    matches: Pattern
    """Matches the result of the call, and of any other call that shows the same."""
    cited: Pattern | None = None
    """Matches an analysis that uses the evidence; by default `matches`."""


class ForbiddenClaim(_Part):
    """A claim that is false in this world."""

    matches: Pattern
    because: Annotated[str, Field(min_length=1)]
    """Why it is false, for reports."""


class Document(_Part):
    """The content of `scenario.yaml`."""

    title: Annotated[str, Field(min_length=1, max_length=200)]
    """One line for reports; no model reads it."""
    tags: tuple[Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")], ...] = ()
    alert: Alert
    cause: Cause
    evidence: Annotated[tuple[Evidence, ...], Field(min_length=1)]
    forbidden_claims: tuple[ForbiddenClaim, ...] = ()
    secrets: tuple[Annotated[str, Field(min_length=4)], ...] = ()
    """Values in the world that no model and no reader of a transcript may see."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario that was read."""

    name: str
    """The name of its directory; no model reads it."""
    folder: Path
    document: Document
    digest: str
    """Of all its files: results of another digest are results of another scenario."""

    @property
    def world(self) -> Path:
        """The directory of its world."""
        return self.folder / WORLD


def load(folder: Path) -> Scenario:
    """Return the scenario in `folder`; raises files.FileError with the file, line, path and remedy of each problem."""
    path = folder / FILE
    if not path.is_file():
        remedy = f"a scenario is a directory with {FILE} and {WORLD}/: name one, such as scenarios/NAME"
        raise files.FileError([files.Problem(file=str(folder), line=0, message=f"no {FILE} here: {remedy}")])
    documents = files.read(path)
    if len(documents) != 1:
        raise files.FileError([documents[1].problem((), "a second document: a scenario has one")])
    document = documents[0]
    if blanks := list(_blanks(document, document.value, ())):
        raise files.FileError(blanks)
    try:
        content = Document.model_validate({} if document.value is None else document.value)
    except pydantic.ValidationError as error:
        faults = validation.problems(error, document, model=Document)
        raise files.FileError(sorted(fault.problem for fault in faults)) from error
    return Scenario(name=folder.resolve().name, folder=folder, document=content, digest=_digest(folder))


def _blanks(document: files.Document, value: Any, path: files.KeyPath) -> Iterator[files.Problem]:
    """Yield a problem for each value that a person has to replace."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _blanks(document, each, (*path, key))
    elif isinstance(value, str) and value.startswith(BLANK):
        yield document.problem(path, f"{files.path_text(path)}: {value}")


def find(paths: Iterable[Path], *, tags: Iterable[str] = ()) -> list[Scenario]:
    """Return the scenarios at `paths` and in the directories there, each once, by name; only those with all `tags`.

    Raises files.FileError with the problems of all of them, also if a path has none.
    """
    wanted = set(tags)
    loaded: dict[str, Scenario] = {}
    problems: list[files.Problem] = []
    folders: list[Path] = []
    for path in paths:
        inner = [] if (path / FILE).exists() or not path.is_dir() else sorted(path.glob(f"*/{FILE}"))
        folders += [file.parent for file in inner] if inner else [path]
    for folder in folders:
        try:
            scenario = load(folder)
        except files.FileError as error:
            problems += error.problems
            continue
        other = loaded.setdefault(scenario.name, scenario)
        if other.folder.resolve() != folder.resolve():
            message = f"another scenario has this name, {other.folder}: rename one of the directories"
            problems.append(files.Problem(file=str(folder), line=0, message=message))
    if problems:
        raise files.FileError(problems)
    return [loaded[name] for name in sorted(loaded) if wanted <= set(loaded[name].document.tags)]


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
