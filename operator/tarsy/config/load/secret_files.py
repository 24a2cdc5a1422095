"""Reading of small files with secrets, and of the files of MCP servers, without waiting, even for a pipe.

Opening a pipe waits for a writer, a device may never end, and each file is read again with each reload. So only regular
files are read, and no more of one than a secret may have.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from tarsy.config.model import platforms, server_transports
from tarsy.resources import files

LARGEST = 64 * 1024
"""Bytes; a key, a token or a service account has far fewer."""
_SERVER_KEYS = ("bearer_token_file", "ca_file", "certificate_file", "key_file")
_RECEIVER_KEYS = ("url_file", "secret_file", "token_file")

Digests: TypeAlias = Mapping[Path, bytes]
"""The digests of files, which reveal changes; b"" for unreadable ones."""


class UnreadableError(Exception):
    """A file cannot be read; the message says why, without its name and its content."""


class UnusableError(Exception):
    """A key of a transport cannot be used; the message begins with the key, and quotes no secret."""


def read(path: Path) -> bytes:
    """Return the content of a file; raises UnreadableError."""
    content = read_beginning(path, LARGEST + 1)
    if len(content) > LARGEST:
        raise UnreadableError(f"more than {LARGEST // 1024} KiB: no secret is that long")
    return content


def read_text(path: Path) -> str:
    """Return the content of a file as text, without the white space around it; raises UnreadableError."""
    try:
        return read(path).decode().strip()
    except UnicodeDecodeError as error:
        raise UnreadableError("no file of UTF-8 text") from error


def read_beginning(path: Path, size: int) -> bytes:
    """Return at most `size` bytes from the beginning of a file; raises UnreadableError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableError("not a file: a pipe or a device cannot be read again and again")
            return file.read(size) or b""
    except OSError as error:
        raise UnreadableError(error.strerror or "cannot be read") from error
    except ValueError as error:  # a path with NUL
        raise UnreadableError("no name of a file") from error


def digest(path: Path) -> bytes:
    """Return a digest of a file; b"" for one that cannot be read, or cannot be read twice."""
    try:
        return hashlib.sha256(read_beginning(path, files.SIZE_MAX)).digest()
    except UnreadableError:
        return b""


def server_files(settings: platforms.Platform) -> set[Path]:
    """Return the files of all MCP servers of a platform file."""
    return {path for server in settings.mcp_servers.values() for path in _paths(server.transport)}


def receiver_files(settings: platforms.Platform) -> set[Path]:
    """Return the files of all receivers of a platform file."""
    paths = (getattr(receiver, key, None) for receiver in settings.deliveries.values() for key in _RECEIVER_KEYS)
    return {path for path in paths if path is not None}


def server_digests(transport: server_transports.Transport) -> Digests:
    """Return the digests of one server's files, which may be missing."""
    return {path: digest(path) for path in _paths(transport)}


def _paths(transport: server_transports.Transport) -> Iterator[Path]:
    paths = (getattr(transport, key, None) for key in _SERVER_KEYS)
    return (path for path in paths if path is not None)


def bearer_token(transport: server_transports.RemoteTransport, environment: Mapping[str, str]) -> str | None:
    """Return the present bearer token of a server, or None if it has none; raises UnusableError."""
    key, token = "bearer_token_file", ""
    if (path := transport.bearer_token_file) is not None:
        try:
            token = read_text(path)
        except UnreadableError as error:
            raise UnusableError(f"{key}: {error}") from error
    elif (variable := transport.bearer_token_env) is not None:
        key, token = "bearer_token_env", environment.get(variable, "")
        if not token:
            raise UnusableError(f"{key}: the variable {variable} is not set")
    else:
        return None
    token = token.strip()
    if not token:
        raise UnusableError(f"{key}: it is empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UnusableError(f"{key}: the token has characters that no token has")
    return token
