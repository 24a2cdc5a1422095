"""Detection of changes of the platform file: it is read at intervals, and settled content is loaded.

It is read, not watched. Reading works equally for a file that is edited in place, replaced by a rename, or replaced by
kubelet, which turns a link two folders above a mounted ConfigMap; for network file systems, which send no notices; and
for a file that vanishes and comes back. Content is compared, because a time or an inode number may recur. Reading a
file of 20 KB takes 20 microseconds.

Content that only one look has seen is not loaded: an editor that writes in place empties the file first, and an empty
file is valid. The key files that the platform file names are compared as well, such as a mounted Secret.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tarsy.config.load import loader, secret_files
from tarsy.config.model import platforms
from tarsy.resources import files


@dataclass(frozen=True)
class _Unreadable:
    """The reason why a file cannot be read."""

    problem: str


@dataclass(frozen=True)
class _Seen:
    """The result of one check; the content is None if the file was written meanwhile."""

    content: bytes | _Unreadable | None
    keys: secret_files.Digests


class Watch:
    """A platform file, with the last valid content that was seen of it."""

    def __init__(
        self,
        path: Path | None,
        *,
        environment: Mapping[str, str],
        other_files: Callable[[platforms.Platform], Iterable[Path]] = lambda _: (),
        own_namespace: str = "",
    ) -> None:
        """Load the file; raises a ConfigError that lists all problems.

        Without a `path` the built-in platform is loaded. `other_files` returns the other files that a platform names. A
        pipe is read once. `own_namespace` is the operator's own; "" if it is unknown (see `loader.loaded`).
        """
        self._path = path
        self._environment = environment
        self._other_files = other_files
        self._own_namespace = own_namespace
        try:
            is_file = path is not None and path.is_file()
            content: bytes | _Unreadable = loader.contents(path) if path else b""
            self.loaded = self._load(content)
        except files.FileError as error:
            raise loader.ConfigError(str(error)) from error
        self.problem = ""
        """The problems of the present file, one in each line; "" if it is loaded."""
        self.keys = self._keys()
        """The digests of the other files."""
        self._is_looked_at = is_file
        self._loaded_of = content
        self._judged = self._before = _Seen(content, self.keys)

    def changed(self) -> bool:
        """Check once whether `loaded`, `problem` or `keys` have changed. It blocks: call it in a thread."""
        seen = _Seen(self._content(), self._keys())
        is_settled, self._before = seen == self._before, seen
        if seen.content is None or not is_settled or seen == self._judged:
            return False
        return self._judge(seen.content, seen.keys)

    def _judge(self, content: bytes | _Unreadable, keys: secret_files.Digests) -> bool:
        before = (self.loaded, self.problem, self.keys)
        try:
            if content != self._loaded_of:
                self.loaded = self._load(content)
                self._loaded_of = content
            self.problem = ""
        except files.FileError as error:
            self.problem = str(error)
        self.keys = keys if self.loaded is before[0] else self._keys()  # another platform file may name other files
        self._judged = self._before = _Seen(content, self.keys)
        return (self.loaded, self.problem, self.keys) != before

    def _load(self, content: bytes | _Unreadable) -> loader.Loaded:
        if self._path is None:
            return loader.builtin_only()
        if isinstance(content, _Unreadable):
            raise files.FileError([files.Problem(file=str(self._path), line=0, message=content.problem)])
        return loader.from_bytes(
            content, file=str(self._path), environment=self._environment, own_namespace=self._own_namespace
        )

    def _content(self) -> bytes | _Unreadable | None:
        if self._path is None or not self._is_looked_at:
            return self._loaded_of
        try:
            before = self._path.stat()
            if stat.S_ISFIFO(before.st_mode):  # opening one waits for a writer
                return _Unreadable("a pipe, which cannot be read again")
            content = loader.contents(self._path)
            after = self._path.stat()
        except files.FileError as error:
            return _Unreadable(error.problems[0].message)
        except OSError as error:
            return _Unreadable(loader.unreadable(error))
        return content if _moment(before) == _moment(after) else None

    def _keys(self) -> secret_files.Digests:
        return {path: secret_files.digest(path) for path in self._other_files(self.loaded.platform)}


def _moment(state: os.stat_result) -> tuple[int, ...]:
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
