"""Dockerfile against the files that it names; `tests/node/test_image.py` runs the result."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from support import dockerfiles
from tarsy_dev import tools

TEXT = dockerfiles.DOCKERFILE.read_text()
_PINNED = re.compile(r"(?P<name>[a-z]+):\d+\.\d+\.\d+-[a-z-]+(@sha256:[0-9a-f]{64})?")
_FROM_OUTSIDE = re.compile(r"\b(apt-get|apt|apk|curl|wget|git|uv)\b")


def project() -> dict[str, Any]:
    return tomllib.loads((tools.ROOT / "pyproject.toml").read_text())


def findings(text: str) -> list[str]:
    """Return the problems of a Dockerfile of ours."""
    dockerfile = dockerfiles.read(text)
    names = dockerfiles.context()
    problems = [
        f"{name}={base} is no exact version"
        for name, base in dockerfile.arguments.items()
        if not _PINNED.fullmatch(base)
    ]
    for stage in dockerfile.stages.values():
        if stage.base not in dockerfile.arguments.values():
            problems.append(f"FROM {stage.base} cannot be given a digest from outside")
        problems += [f"ADD {rest}" for rest in stage.all("ADD")]
        problems += [wrong for rest in stage.all("COPY") for wrong in _copied(rest, dockerfile, names)]
        problems += [wrong for rest in stage.all("RUN") for wrong in _installed(rest)]
    last = dockerfile.stages[""]
    if last.all("RUN"):
        problems.append("the last stage runs something, so that each architecture needs an emulator for it")
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.last("USER", "0:0")):
        problems.append("the user is root, or a name, which runAsNonRoot cannot look up")
    if not last.last("ENTRYPOINT", "").startswith("["):
        problems.append("the entrypoint is a shell's, which takes SIGTERM for itself")
    return problems


def _copied(rest: str, dockerfile: dockerfiles.Dockerfile, names: list[str]) -> Iterator[str]:
    *sources, _ = rest.split()
    if sources[0].startswith("--from="):
        if sources[0].removeprefix("--from=") not in dockerfile.stages:
            yield f"COPY {rest}: there is no such stage"
        return
    for source in sources:
        if not any(name == source or name.startswith(f"{source}/") for name in names):
            yield f"COPY {source}: the build's context has no such file"


def _installed(rest: str) -> Iterator[str]:
    words = shlex.split(rest)
    if _FROM_OUTSIDE.search(rest):
        yield f"RUN {rest}: what comes from outside is not locked"
    if "npm" in words and words[:2] != ["npm", "ci"]:
        yield f"RUN {rest}: only `npm ci` keeps to the lock"
    if "install" in words and "npm" not in words and "--no-index" not in words:
        for flag in ("--require-hashes", "--no-deps", "--only-binary=:all:"):
            if flag not in words:
                yield f"RUN {rest}: without {flag}"


def test_image_has_no_unpinned_and_no_missing_part() -> None:
    assert findings(TEXT) == []


def test_build_context_holds_only_what_the_dockerfile_copies() -> None:
    names = dockerfiles.context()
    copied = [
        source
        for stage in dockerfiles.read(TEXT).stages.values()
        for rest in stage.all("COPY")
        if not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    folders = {"requirements", *copied}
    assert [name for name in names if name not in folders and name.split("/")[0] not in folders] == []
    rules = (tools.ROOT / ".dockerignore").read_text().splitlines()
    expected_seen = {
        "operator/tarsy/agent/templates/react.md": True,
        "dev/node/package-lock.json": True,
        "operator/tarsy/__pycache__/errors.cpython-311.pyc": False,
        "dev/node/node_modules/x/package.json": False,
        "dev/tarsy_dev/world.py": False,
        "tests/support/dockerfiles.py": False,
        ".git/config": False,
        ".venv/bin/python": False,
        ".dev/env": False,
    }
    assert {name: dockerfiles.seen(name, rules) for name in expected_seen} == expected_seen


def test_the_image_runs_the_projects_program_and_has_its_version() -> None:
    last = dockerfiles.read(TEXT).stages[""]
    (program,) = json.loads(last.last("ENTRYPOINT", "[]"))
    assert program in project()["project"]["scripts"]
    version = dict(argument.split("=") for argument in last.all("ARG") if "=" in argument)["VERSION"]
    assert version == project()["project"]["version"]
    assert last.last("STOPSIGNAL", "") == "SIGTERM"


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_lock_of_npm_has_the_program_that_is_copied(architecture: str) -> None:
    (copied,) = (rest for rest in dockerfiles.read(TEXT).stages[""].all("COPY") if rest.startswith("--from=mcp"))
    path = dockerfiles.expanded(copied, {"TARGETARCH": architecture}).split()[1]
    package = re.fullmatch(r"/mcp/(node_modules/([a-z0-9-]+))/bin/\2", path)
    assert package is not None, path
    locked = json.loads((tools.NODE / "package-lock.json").read_text())["packages"][package[1]]
    assert locked["integrity"].startswith("sha512-")
    assert (locked["os"], locked["cpu"]) == (["linux"], [{"amd64": "x64"}.get(architecture, architecture)])


def test_the_wheel_is_built_by_what_the_tests_have() -> None:
    """The same versions with the same hashes."""
    locked = {name: re.split(r"\n(?=\S)", (tools.ROOT / "requirements" / name).read_text().strip()) for name in
              ("build.txt", "test.txt")}  # fmt: skip
    assert set(locked["build.txt"]) <= set(locked["test.txt"])
    assert project()["build-system"]["requires"] == project()["dependency-groups"]["build"]
