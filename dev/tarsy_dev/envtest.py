"""The published archive of envtest: kube-apiserver, etcd and kubectl of one version, for Linux and macOS.

`dev/controlplane/envtest.sha512` names the archives, as `envtest-releases.yaml` of kubernetes-sigs/controller-tools
does, with their hashes. Where the archive does not come soon, the programs are built instead (`assets.api_program`): a
machine without access to it must not wait for long.
"""

from __future__ import annotations

import hashlib
import queue
import re
import shutil
import tarfile
import threading
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tarsy_dev import errors, progress, tools

LOCK = tools.ROOT / "dev" / "controlplane" / "envtest.sha512"
PROGRAMS = ("etcd", "kube-apiserver", "kubectl")

_RELEASES = "https://github.com/kubernetes-sigs/controller-tools/releases/download"
_MEGABYTE = 1_000_000
_CHUNK = 1 << 16


class FetchError(errors.Error):
    """The archive could not be fetched; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive: its address and its hash, in hexadecimal digits."""

    url: str
    sha512: str


def published(platform: str, lock: str) -> Archive:
    """Return the archive of a platform, such as linux-amd64, by the text of the lock file. Raises FetchError."""
    match = re.search(rf"^([0-9a-f]{{128}})  ((envtest-v[0-9.]+)-{re.escape(platform)}\.tar\.gz)$", lock, re.MULTILINE)
    if match is None:
        raise FetchError(f"there is no archive of envtest for {platform}")
    sha512, name, release = match.groups()
    return Archive(url=f"{_RELEASES}/{release}/{name}", sha512=sha512)


def fetch(folder: Path, archive: Archive, *, first: float = 3.0, silence: float = 10.0) -> None:
    """Put PROGRAMS of the archive into `folder`, and tell on stderr how far it is.

    Raises FetchError when the first byte does not come within `first` seconds, when later `silence` seconds bring
    nothing, and when what comes is not the archive; then nothing is left in `folder`.
    """
    path = folder / "archive.tar.gz"
    try:
        _download(archive, path, first=first, silence=silence)
        _unpack(path, folder)
    finally:
        path.unlink(missing_ok=True)


def _download(archive: Archive, path: Path, *, first: float, silence: float) -> None:
    sha512 = hashlib.sha512()
    received = 0
    download = _Download(archive.url, timeout=first + silence)
    download.start()
    try:
        chunk = download.chunk(timeout=first)
        teller = progress.Teller("envtest's archive")
        with path.open("wb") as file:
            while chunk:
                file.write(chunk)
                sha512.update(chunk)
                received += len(chunk)
                total = "" if download.length is None else f" of {download.length // _MEGABYTE}"
                teller.show(f"fetching megabytes: {received // _MEGABYTE}{total}")
                chunk = download.chunk(timeout=silence)
            if download.length not in (None, received):
                raise FetchError(f"{archive.url} ended after {received} of {download.length} bytes")
            if sha512.hexdigest() != archive.sha512:
                raise FetchError(f"{archive.url} has another SHA-512 than {LOCK.name} says")
        teller.end()
    finally:
        download.give_up()


class _Download(threading.Thread):
    """The body of a GET, received in a thread of its own, because the lookup of a name has no time limit."""

    def __init__(self, url: str, *, timeout: float) -> None:
        super().__init__(name="download", daemon=True)
        self.length: int | None = None
        """The length of the body, if it is known; it is set before the first chunk."""
        self._url = url
        self._timeout = timeout
        self._chunks = queue.SimpleQueue[bytes | Exception]()
        self._given_up = threading.Event()

    def run(self) -> None:
        """Receive until the end, which is an empty chunk, or until it is given up."""
        try:
            with urllib.request.urlopen(self._url, timeout=self._timeout) as response:  # noqa: S310 - a locked address
                self.length = response.length
                chunk = b"?"
                while chunk and not self._given_up.is_set():
                    chunk = response.read1(_CHUNK)
                    self._chunks.put(chunk)
        except (OSError, HTTPException) as error:
            self._chunks.put(error)

    def chunk(self, *, timeout: float) -> bytes:
        """Return the next chunk. Raises FetchError when it fails or does not come within `timeout` seconds."""
        try:
            chunk = self._chunks.get(timeout=timeout)
        except queue.Empty:
            raise FetchError(f"{self._url} sent nothing for {timeout:g} s") from None
        if isinstance(chunk, Exception):
            raise FetchError(f"{self._url} cannot be fetched: {chunk}")
        return chunk

    def give_up(self) -> None:
        """End the thread, at its next chunk or timeout."""
        self._given_up.set()


def _unpack(path: Path, folder: Path) -> None:
    try:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in PROGRAMS:
                if name not in members:
                    raise FetchError(f"envtest's archive has no {name}")
            for name in PROGRAMS:
                content = archive.extractfile(members[name])
                assert content is not None  # noqa: S101 - it is a file
                with content, (folder / name).open("wb") as program:
                    shutil.copyfileobj(content, program)
                (folder / name).chmod(0o755)
    except tarfile.TarError as error:
        raise FetchError(f"envtest's archive cannot be read: {error}") from error
