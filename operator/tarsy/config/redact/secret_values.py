"""The known secrets of a process: from its environment, its platform file, and the files that these two name.

The name of a value decides whether it is a secret, as in the masker; a value that is declared to hold one
(`api_key_env`, `bearer_token_file`, the password in a URL) is always a secret. The result is for
`masking.known_secrets` alone.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tarsy.config.load import secret_files, settings, traces
from tarsy.config.model import platforms
from tarsy.masking import masker, secret_names

_NO_SECRETS = ("ca_file", "certificate_file")
_MASKER = masker.Masker(groups=["secrets"])
_SESSION = re.compile("cookie|session", re.IGNORECASE)
_ONLY_MASKED = re.compile(r"(?:\w+ )?\[MASKED:\w+\]")
_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def collect(loaded: platforms.Platform, environment: Mapping[str, str]) -> list[str]:
    """Return the secrets of a process with this environment and platform file, as they can be read now."""
    secrets = [*_of_environment(environment), *_of_file(_SERVICE_ACCOUNT)]
    hashes = {"mcp_servers": {"__all__": {"tool_hashes"}}}  # no secrets, even if a tool's name looks like one
    secrets += _Reader(environment).secrets_in(loaded.model_dump(mode="python", exclude=hashes))
    return [value for value in dict.fromkeys(secrets) if value]


def pepper(environment: Mapping[str, str]) -> str:
    """Return a secret that all processes share: the password of the database, or ""."""
    url = environment.get(settings.DATABASE_URL, "")
    if named := environment.get(settings.DATABASE_URL + settings.FILE):
        url = _text(Path(named)).strip()
    try:
        return urllib.parse.unquote(urllib.parse.urlsplit(url).password or "")
    except ValueError:
        return ""


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in variables, and in files that variables name."""
    yield from _of_variables(environment)
    yield from _of_headers(dict(traces.header_values(environment)))
    for name, value in environment.items():
        held = name.removesuffix(settings.FILE)
        if name == _CREDENTIALS or (held != name and (held == settings.DATABASE_URL or _is_secret_name(held))):
            for read in _of_file(Path(value)):
                yield from _of_url(read)
                yield read


class _Reader:
    """Finds the secrets of a platform file."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def secrets_in(self, value: Any, key: str = "") -> Iterator[str]:
        """Yield the secrets in the value of `key`."""
        match value:
            case dict() if key == "headers":
                yield from _of_headers(value)
            case dict() if key == "env":
                yield from _of_variables(value)
            case dict():
                for name, below in value.items():
                    yield from self.secrets_in(below, str(name))
            case list() if key == "args":
                yield from _of_arguments([str(argument) for argument in value])
            case list():
                for below in value:
                    yield from self.secrets_in(below)
            case Path() if key.endswith("_file") and key not in _NO_SECRETS:
                yield from _of_file(value)
            case str():
                yield from self._of_text(value, key)

    def _of_text(self, value: str, key: str) -> Iterator[str]:
        if key.endswith("_env"):
            yield self._environment.get(value, "")
        elif secret_names.kind_of(key.encode("utf-8", "replace")) and not secret_names.is_harmless(
            value.encode("utf-8", "replace")
        ):
            yield value
        else:
            yield from _of_url(value)


def _of_variables(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield values of secrets' names, values that look like secrets, and secrets in URLs."""
    for name, text in variables.items():
        value = str(text)
        if _is_secret_name(name):
            if not secret_names.is_harmless(value.encode("utf-8", "replace")):
                yield value
                yield value.rpartition(" ")[2]  # after Bearer or Basic
        elif _looks_secret(name, value):
            yield value.rpartition(" ")[2]
        yield from _of_url(value)


def _of_headers(headers: Mapping[str, Any]) -> Iterator[str]:
    """Yield the secrets of headers, and the values of all cookies, because their names are arbitrary."""
    yield from _of_variables(headers)
    for name, value in headers.items():
        if _SESSION.search(name):
            yield value
            yield from (part.partition("=")[2].strip() for part in value.split(";"))


def _is_secret_name(name: str) -> bool:
    return secret_names.is_secret_variable(name.encode("utf-8", "replace"))


def _looks_secret(name: str, value: str) -> bool:
    """Return whether the masker would mask the whole value, except a scheme before it."""
    masked = _MASKER.text(f"{name}: {value}") if len(value) < secret_files.LARGEST else ""
    return _ONLY_MASKED.fullmatch(masked.removeprefix(f"{name}: ")) is not None


def _of_arguments(arguments: list[str]) -> Iterator[str]:
    """Yield the values of secrets' flags, in the same argument or in the next."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.startswith("-") and secret_names.kind_of(flag.encode("utf-8", "replace")):
            yield value if equals else arguments[index + 1] if index + 1 < len(arguments) else ""
        yield from _of_url(value if equals else argument)


def _of_url(value: str) -> Iterator[str]:
    """Yield the password and the secret parameters of a URL, percent-encoded and decoded."""
    if "://" not in value:
        return
    try:
        parts = urllib.parse.urlsplit(value)
        candidates = [parts.password or ""]
        candidates += [candidate for name, candidate in urllib.parse.parse_qsl(parts.query) if _is_secret_name(name)]
    except ValueError:
        return
    for candidate in candidates:
        yield candidate
        yield urllib.parse.unquote(candidate)


def _of_file(path: Path) -> Iterator[str]:
    """Yield the content of a file; of JSON, the values of secrets' names."""
    text = _text(path)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        yield from (
            value
            for name, value in parsed.items()
            if isinstance(value, str) and secret_names.kind_of(str(name).encode("utf-8", "replace"))
        )
    else:
        yield text.strip()


def _text(path: Path) -> str:
    """Return the beginning of a file; "" if it cannot be read, which others report."""
    try:
        return secret_files.read_beginning(path, secret_files.LARGEST).decode()
    except (secret_files.UnreadableError, UnicodeDecodeError):
        return ""
