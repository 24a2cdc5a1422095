from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tarsy_dev import envtest, loopback, patience

NEVER = patience.PATIENCE


def archive_of(*names: str) -> bytes:
    """An archive of programs in folders, as envtest's has them; its content does not compress."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            content = name.encode() + os.urandom(400_000)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


WHOLE = archive_of(*envtest.PROGRAMS)


def head(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


@contextlib.contextmanager
def server(answer: bytes, *, holds: bool = False) -> Iterator[str]:
    """A server that answers one request and closes, or holds the connection until the test ends; gives its address."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as request, contextlib.suppress(OSError):
            while request.readline().strip():
                pass
            connection.sendall(answer)
            if holds:
                over.wait()

    with loopback.listen() as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/envtest.tar.gz"
        finally:
            over.set()
            thread.join()


def fetch(folder: Path, url: str, *, content: bytes = WHOLE, first: float = NEVER, silence: float = NEVER) -> None:
    archive = envtest.Archive(url=url, sha512=hashlib.sha512(content).hexdigest())
    envtest.fetch(folder, archive, first=first, silence=silence)


def test_the_archive_becomes_its_programs_with_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server(head(len(WHOLE)) + WHOLE) as url:
        fetch(tmp_path, url)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(envtest.PROGRAMS)
    for name in envtest.PROGRAMS:
        assert os.access(tmp_path / name, os.X_OK)
        assert (tmp_path / name).read_bytes().startswith(name.encode())
    progress = capsys.readouterr().err
    assert "envtest's archive: fetching megabytes: 0 of 1" in progress
    assert "envtest's archive: done" in progress


def test_archive_with_other_hash_than_locked_is_refused(tmp_path: Path) -> None:
    other = archive_of(*envtest.PROGRAMS)
    with server(head(len(other)) + other) as url, pytest.raises(envtest.FetchError, match="another SHA-512"):
        fetch(tmp_path, url)
    assert list(tmp_path.iterdir()) == []


def test_silent_download_server_is_given_up(tmp_path: Path) -> None:
    answer = head(len(WHOLE)) + WHOLE[:1000]
    with server(answer, holds=True) as url, pytest.raises(envtest.FetchError, match=r"sent nothing for 0\.1 s"):
        fetch(tmp_path, url, silence=0.1)
    assert list(tmp_path.iterdir()) == []
