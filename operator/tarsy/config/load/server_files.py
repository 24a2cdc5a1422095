"""The files that MCP servers are reached with, and the token among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tarsy.config.load import reload, secret_files
from tarsy.config.model import platforms

_FILES = ("bearer_token_file", "ca_file", "certificate_file", "key_file")


class UnusableError(Exception):
    """A transport names what cannot be used; the message begins with the key, and shows nothing of a secret."""


def all_files(settings: platforms.Platform) -> set[Path]:
    """Those of all servers of a platform file."""
    return {path for server in settings.mcp_servers.values() for path in _files(server.transport)}


def digests(transport: platforms.Transport) -> reload.Digests:
    """Return the digests of one server's files, which may be missing."""
    return {path: reload.digest(path) for path in _files(transport)}


def token(transport: platforms.RemoteTransport, environment: Mapping[str, str]) -> str | None:
    """The bearer token as it is now, None where there is to be none; an UnusableError says why it cannot be had."""
    if (path := transport.bearer_token_file) is not None:
        return _checked(_read(path), of="bearer_token_file")
    if transport.bearer_token_env is not None:
        if not (secret := environment.get(transport.bearer_token_env, "")):
            raise UnusableError(f"bearer_token_env: the variable {transport.bearer_token_env} is not set")
        return _checked(secret, of="bearer_token_env")
    return None


def _read(path: Path) -> str:
    try:
        return secret_files.text(path)
    except secret_files.UnreadableError as error:
        raise UnusableError(f"bearer_token_file: {error}") from error


def _checked(text: str, *, of: str) -> str:
    """A token that a header can hold."""
    stripped = text.strip()
    if not stripped:
        raise UnusableError(f"{of}: it is empty")
    if not (stripped.isascii() and stripped.isprintable()) or " " in stripped:
        raise UnusableError(f"{of}: the token has characters that no token has")
    return stripped


def _files(transport: platforms.Transport) -> Iterator[Path]:
    paths = (getattr(transport, key, None) for key in _FILES)
    return (path for path in paths if path is not None)
