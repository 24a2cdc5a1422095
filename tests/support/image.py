"""The image without an engine: what the Dockerfile says is done here, and what it makes is run as a cluster runs it.

The machine's own system stands for the base image: its `/usr`, `/etc` and the like, with the Python of this run as
`/usr/local`, which is where that image has its own. All else, `/opt` above all, is made by the very instructions of the
Dockerfile, in a mount namespace that shows nothing of this checkout. A container is such a namespace again, read-only,
without a `/tmp` to write to, as the Dockerfile's user, without a right and without a way to get one.

What takes long, the locked packages, is cached (`tarsy_dev.cache`): a minute, once for each lock.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tarsy_dev import cache, children, tools

DOCKERFILE = tools.ROOT / "Dockerfile"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the base image's
_SYSTEM = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
_ETC = ("alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "resolv.conf", "ssl")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod has the token of its account."""
_OURS = "operator"
"""The folder whose COPY ends what is cached."""

# $1 the tree, $2 how it may be written (ro, rw), $3 the folder of Python, $4 mounts, a line "folder ro|rw path" each.
_ENTER = """
tree=$1 how=$2 python=$3 mounts=$4
shift 4
mount --make-rprivate /
mount --bind "$tree" "$tree"
for name in bin lib lib32 lib64 sbin usr; do
    if [ -d "/$name" ] && [ ! -L "/$name" ]; then mount --bind -o ro "/$name" "$tree/$name"; fi
done
for place in "$tree/usr/local" "$tree$python"; do mount --bind -o ro "$python" "$place"; done
mount --rbind /proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=1777 shm "$tree/dev/shm"
if [ "$how" = rw ]; then mount -t tmpfs -o mode=1777 tmp "$tree/tmp"; fi
printf '%s' "$mounts" | while read -r folder mode place; do mount --bind -o "$mode" "$folder" "$tree$place"; done
mount -o "remount,bind,$how" "$tree"
exec chroot "$tree" "$@"
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What stands behind one FROM."""

    base: str
    instructions: tuple[tuple[str, str], ...]
    """Each as its word and the rest."""

    def all(self, word: str) -> list[str]:
        """What stands behind each `word`."""
        return [rest for name, rest in self.instructions if name == word]

    def last(self, word: str, default: str) -> str:
        """What stands behind the last `word`."""
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
    found = [tuple(line.split(None, 1)) for line in lines.splitlines() if line.strip()]
    starts = [number for number, (word, _) in enumerate(found) if word == "FROM"]
    for _, rest in found[: starts[0]]:
        name, _, default = rest.partition("=")
        arguments[name] = default
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        base, _, name = found[start][1].partition(" AS ")
        instructions = tuple((word, " ".join(rest.split())) for word, rest in found[start + 1 : end])
        stages[name] = Stage(base=expanded(base, arguments), instructions=instructions)
    return Dockerfile(arguments=arguments, stages=stages)


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Put values where `${NAME}` stands; KeyError where there is none."""
    return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)


def environment(stage: Stage) -> dict[str, str]:
    """The variables that a stage sets, on those of the base image."""
    values = {"PATH": _PATH}
    for rest in stage.all("ENV"):
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            values[name] = expanded(value, values)
    return values


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
    shown = True
    for rule in rules:
        pattern = rule.removeprefix("!")
        patterns = [pattern, pattern.removeprefix("**/"), f"*/{pattern.removeprefix('**/')}"]
        if not pattern.startswith("**/"):
            patterns = [pattern]
        if not rule.startswith("#") and any(fnmatch.fnmatchcase(place, one) for place in places for one in patterns):
            shown = rule.startswith("!")
    return shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Container:
    """What a pod says of a container, as far as it is done here."""

    arguments: Sequence[str] = ()
    program: Sequence[str] | None = None
    """In the entrypoint's place."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Files and folders that it sees, by their paths in it."""
    writable: Collection[str] = ()
    """Which of these it may write to."""

    def changed(self, *, arguments: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> Container:
        """The same with other arguments, or with more variables."""
        args = self.arguments if arguments is None else arguments
        return dataclasses.replace(self, arguments=args, env={**self.env, **(env or {})})


def certificate(kubeconfig: Mapping[str, Any]) -> str:
    """Whom a kubeconfig's cluster is known by, as `ca.crt` has it."""
    return base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]).decode()


def container(pod: Mapping[str, Any], *, volumes: Mapping[str, Path], account: Path, name: str = "") -> Container:
    """What a pod's spec says of its container of that name, by default the first one.

    `volumes` are folders with what the volumes of those names hold; `account` is one with token, ca.crt and namespace,
    seen where the pod wants it. An emptyDir is a folder of `volumes` too, which its user has to be able to write to.
    """
    containers = pod["containers"] + pod.get("initContainers", [])
    found = next(one for one in containers if name in ("", one["name"]))
    empty = {one["name"] for one in pod.get("volumes", []) if "emptyDir" in one}
    mounts = {one["mountPath"]: (one["name"], volumes[one["name"]]) for one in found.get("volumeMounts", [])}
    seen_at = {place: folder for place, (_, folder) in mounts.items()}
    if pod.get("automountServiceAccountToken", True):
        seen_at[ACCOUNT] = account
    return Container(
        arguments=found.get("args", []),
        program=found.get("command"),
        env={one["name"]: one["value"] for one in found.get("env", [])},
        mounts=seen_at,
        writable=[place for place, (volume, _) in mounts.items() if volume in empty],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image:
    """The image, as a tree of files and what the Dockerfile says of how it runs."""

    tree: Path
    stage: Stage

    @property
    def entrypoint(self) -> list[str]:
        """The program that it runs, in front of a container's arguments."""
        command: list[str] = json.loads(self.stage.last("ENTRYPOINT", "[]"))
        return command

    def run(self, container: Container) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        command, env = self._command(container), self._environment(container)
        return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def start(self, container: Container, *, log: Path, name: str) -> children.Child:
        """Start a container, which ends with the test run."""
        command, env = self._command(container), self._environment(container)
        return children.start(command, name=name, log=log, cwd=Path("/"), env=env)

    def _command(self, container: Container) -> list[str]:
        user, _, group = self.stage.last("USER", "0:0").partition(":")
        lines = ""
        for place, source in container.mounts.items():
            _mount_point(self.tree, place, folder=source.is_dir())
            lines += f"{source} {'rw' if place in container.writable else 'ro'} {place}\n"
        # The signal that ends it with the test is asked for anew: a change of user takes it away.
        become = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs", "--inh-caps=-all"]
        become += ["--bounding-set=-all", "--pdeathsig", "KILL", "env", "--chdir", self.stage.last("WORKDIR", "/")]
        program = self.entrypoint if container.program is None else container.program
        return [*_entered(self.tree, "ro", lines), *become, *program, *container.arguments]

    def _environment(self, container: Container) -> dict[str, str]:
        return {"HOME": "/", **environment(self.stage), **container.env}  # HOME as runtimes set it for an unknown user


def _entered(tree: Path, how: str, mounts: str = "") -> list[str]:
    """The start of a command that runs in `tree`."""
    return ["unshare", "--mount", "/bin/sh", "-euc", _ENTER, "enter", str(tree), how, sys.base_prefix, mounts]


def _mount_point(tree: Path, place: str, *, folder: bool) -> None:
    target = tree / place.lstrip("/").replace("var/run/", "run/", 1)
    if folder:
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def build(tree: Path) -> Image:
    """Make the image below `tree`, an empty folder."""
    dockerfile = read(DOCKERFILE.read_text())
    made = dockerfile.stages["build"]
    start = next(at for at, (word, rest) in enumerate(made.instructions) if word == "COPY" and _OURS in rest.split())
    before, after = (dataclasses.replace(made, instructions=part) for part in _parts(made, start))
    folder = cache.made(
        cache.folder() / f"image-{_digest(before)}",
        lambda draft: _perform(before, draft, {}),
        notice="installing the locked packages as the Dockerfile does, once for each lock: a minute",
    )
    work, image = tree / "build", tree / "image"
    _link(folder, work)
    _perform(after, work, environment(before))
    final = dockerfile.stages[""]
    _base(image)
    values = {"TARGETARCH": ARCHITECTURE}
    program = tools.kubernetes_mcp_server()  # by `npm ci` from the same two files
    others = {"build": work, "mcp": _npm(dockerfile.stages["mcp"], program, tree / "mcp")}
    for rest in final.all("COPY"):
        origin, source, target = expanded(rest, values).split()
        _link(others[origin.removeprefix("--from=")] / source.lstrip("/"), image / target.lstrip("/"))
    return Image(tree=image, stage=final)


def _parts(stage: Stage, start: int) -> tuple[tuple[tuple[str, str], ...], ...]:
    fixed = tuple(each for each in stage.instructions[start:] if each[0] in {"ENV", "WORKDIR"})
    assert not fixed, "the cached half of the stage has to say how the other half runs"
    kept = tuple(each for each in stage.instructions[:start] if each[0] in {"ENV", "WORKDIR"})
    return stage.instructions[:start], kept + stage.instructions[start:]


def _digest(stage: Stage) -> str:
    """What tells one cached tree from another: the instructions, what they copy, the Python, and how it is entered."""
    content = hashlib.sha256(f"{stage} {sys.version} {sys.base_prefix} {_ENTER}".encode())
    for rest in stage.all("COPY"):
        for name in rest.split()[:-1]:
            content.update((tools.ROOT / name).read_bytes())
    return content.hexdigest()[:16]


def _perform(stage: Stage, tree: Path, values: Mapping[str, str]) -> None:
    """Do what a stage says, in `tree`."""
    env = {"HOME": "/root", **environment(stage), **_proxies(), **values}
    folder = "/"
    _base(tree)
    for word, rest in stage.instructions:
        if word == "WORKDIR":
            folder = rest
            (tree / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            *sources, target = rest.split()
            _copy(sources, tree / folder.lstrip("/") / target)
        elif word == "RUN":
            command = [*_entered(tree, "rw"), "env", "--chdir", folder, "/bin/sh", "-c", rest]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout}"
        else:
            assert word == "ENV", f"{word} in a stage that is built here"


def _proxies() -> dict[str, str]:
    """What this machine needs to reach the registry, as an engine would be given it."""
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy") or name[:4] == "PIP_"}


def _copy(sources: Sequence[str], target: Path) -> None:
    """COPY, from the context."""
    names = context()
    for source in sources:
        found = [name for name in names if name == source or name.startswith(f"{source}/")]
        assert found, f"COPY {source}: the build's context has no such file"
        for name in found:
            inside = name.removeprefix(source).lstrip("/")
            to = target / inside if inside else target / Path(name).name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tools.ROOT / name, to)


def _base(tree: Path) -> None:
    """Have in `tree` what the base image has: places for the machine's own system to be mounted on."""
    tree.mkdir(exist_ok=True)
    for name in _SYSTEM:
        theirs, ours = Path("/") / name, tree / name
        if theirs.is_symlink() and not ours.is_symlink():
            ours.symlink_to(theirs.readlink())
        elif theirs.is_dir() and not theirs.is_symlink():
            ours.mkdir(exist_ok=True)
    for name in ("dev", "etc", "proc", "root", "run", "tmp", "var"):
        (tree / name).mkdir(exist_ok=True)
    for name in _ETC:
        if (Path("/etc") / name).exists() and not (tree / "etc" / name).exists():
            subprocess.run(["cp", "--archive", f"/etc/{name}", tree / "etc"], check=True)
    if not (tree / "var" / "run").is_symlink():
        (tree / "var" / "run").symlink_to("../run")
    (tree / "tmp").chmod(0o1777)
    (tree / sys.base_prefix.lstrip("/")).mkdir(parents=True, exist_ok=True)


def _npm(stage: Stage, program: Path, tree: Path) -> Path:
    """The tree of the stage that runs npm, with the packages that the loopback world has of the same lock."""
    modules = program.parents[2]
    target = tree / stage.last("WORKDIR", "/").lstrip("/")
    target.mkdir(parents=True)
    (target / "node_modules").symlink_to(modules)
    return tree


def _link(source: Path, target: Path) -> None:
    """Copy a file or a folder as hard links, or as copies where they lie on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cp", "--archive", "--no-target-directory", str(source), str(target)]
    if subprocess.run([*command, "--link"], capture_output=True).returncode != 0:
        subprocess.run(command, check=True)


def needs() -> str:
    """Why this machine cannot run the image, or nothing."""
    if os.geteuid() != 0:
        return "only root can become uid 65532 and mount"
    if shutil.which("setpriv") is None:
        return "there is no setpriv"
    return "" if subprocess.run(["unshare", "--mount", "true"]).returncode == 0 else "no mounts are allowed here"


@contextlib.contextmanager
def ended(child: children.Child) -> Iterator[children.Child]:
    """A container that is killed if the test has not ended it; its log is shown."""
    try:
        yield child
    finally:
        if child.process.poll() is None:
            child.end(signal.SIGKILL)
        print(child.log.read_text())


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of this checkout."""
    if missing := needs():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(dir=cache.folder(), prefix="image-of-") as folder:
        yield build(Path(folder))
