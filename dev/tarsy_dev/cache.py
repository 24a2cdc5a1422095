"""Folders that are made once and then shared by every checkout and every run of a user.

What takes long to make (a build of minutes, an installation) lies in the user's cache under a name that tells its
content, so that it is never stale: another content has another name. Two test runs may want it at the same moment,
hence the file lock; a run that dies leaves no half of it, hence the rename. What a killed run could not take away, its
draft, goes with the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


def folder() -> Path:
    """Return the user's cache of this project, which may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tarsy"


def made(target: Path, make: Callable[[Path], None], *, notice: str) -> Path:
    """Return `target`, a folder; where it does not exist, `make(empty folder)` fills it first.

    `notice` goes to stderr before the work starts: what is made, and how long it may take.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / f"{target.name}.lock"):
        if not target.exists():
            say(notice)
            drafts = f"{target.name}.draft-"
            for path in target.parent.iterdir():
                if path.name.startswith(drafts):
                    shutil.rmtree(path)  # of a run that was killed: we hold the lock
            draft = Path(tempfile.mkdtemp(prefix=drafts, dir=target.parent))
            try:
                make(draft)
                draft.chmod(0o755)
                draft.rename(target)
            except BaseException:
                shutil.rmtree(draft)
                raise
    return target


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; while another process holds it, say so on stderr and wait."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Tell the developer what goes on; stdout belongs to the command's result."""
    print(f"tarsy_dev: {text}", file=sys.stderr, flush=True)
