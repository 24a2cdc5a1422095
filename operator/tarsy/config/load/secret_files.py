"""Small files that hold secrets: read without waiting, whatever it is that stands under their names.

To open a pipe waits for who writes, a device may never end, and what is read here is read again with each reload: so
only what is a file counts, and no more of it than a secret may have.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 64 * 1024
"""Bytes; a key, a token or a service account has far fewer."""


class UnreadableError(Exception):
    """A file cannot be had; the message says why, and shows neither its name nor what stands in it."""


def read(path: Path) -> bytes:
    """Return the content of a file; raises UnreadableError with the reason."""
    content = beginning(path, LARGEST + 1)
    if len(content) > LARGEST:
        raise UnreadableError(f"more than {LARGEST // 1024} KiB: no secret is that long")
    return content


def text(path: Path) -> str:
    """The same as text, without the white space around it."""
    try:
        return read(path).decode().strip()
    except UnicodeDecodeError as error:
        raise UnreadableError("no file of UTF-8 text") from error


def beginning(path: Path, size: int) -> bytes:
    """Return at most `size` bytes from the beginning of a file; errors as with `read`."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableError("not a file: a pipe or a device cannot be read again and again")
            return file.read(size) or b""
    except OSError as error:
        raise UnreadableError(error.strerror or "cannot be read") from error
    except ValueError as error:  # NUL, which no name can have
        raise UnreadableError("no name of a file") from error
