"""The redacted view of the platform file: its content without possible secrets.

These values are hidden: the values of variables; arguments, except flags and plain words after a flag without a secret
(`--toolsets core`); all parts of URLs except host and path, and parts of these two that look like keys; and each text
in which the masker finds a secret. The names of variables and files stay. Hidden values are also removed from other
texts: the error of an unreachable server may contain its arguments.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tarsy.config.model import fields, providers
from tarsy.masking import masker

MASKED = "[MASKED]"
VALUES_MAX = 20_000
"""The maximum number of values in the view: YAML aliases can expand a short file to a huge one."""
DEEPEST = 20
"""The maximum depth of the view."""
_LIKE_A_KEY = 16
"""The length from which a name without an underscore, or a part of a path that is not words, may be a key."""
_LONGEST_WORD = 12
_KEY_OF_HOST = 12
"""The length from which a piece of a host name with letters and digits may be a key; with letters only, twice that."""
_MASKER = masker.Masker(groups=["security"])
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_NAMED = re.compile(rf"\{{\{{\s*\.({_VARIABLE.pattern})\s*\}}\}}")
_FLAG = re.compile(r"(--[a-z]+(?:-[a-z]+)*)(=.*)?", re.DOTALL)
_PLAIN_FLAGS = {
    *(
        "cluster",
        "clusters",
        "context",
        "contexts",
        "depth",
        "feature",
        "features",
        "format",
        "interval",
        "kind",
        "kinds",
    ),
    *("level", "limit", "mode", "namespace", "namespaces", "output", "port", "provider", "region", "replicas"),
    *("resource", "resources", "retries", "size", "timeout", "tool", "tools", "toolset", "toolsets", "transport"),
    *("verbosity", "workers", "zone"),
}
"""The last words of flags whose values are no secrets: the last word of a name tells the kind of its value."""
_PLAIN_WORD = r"(?:[a-z]{1,12}[0-9]{0,4}|[0-9]{1,6}[a-z]{0,2})"
_PLAIN_VALUE = re.compile(rf"{_PLAIN_WORD}(?:[-_,./]{_PLAIN_WORD}){{0,19}}")
_WORDS = re.compile(rf"[a-z]{{1,{_LONGEST_WORD}}}(?:[-_,./ ][a-z]{{1,{_LONGEST_WORD}}})*")
_PATH = re.compile(r"(?:/|\./|\.\./|~/)[\w./@+-]*")


@dataclass(frozen=True, kw_only=True)
class View:
    """The redacted view of a platform file."""

    written: Any
    """The content, as JSON."""
    hidden: tuple[str, ...] = field(repr=False)
    """The hidden values, the longest first, without common words."""

    @property
    def digest(self) -> str:
        """16 hex digits that change with the view, but not with hidden values, which could then be guessed."""
        return hashlib.sha256(json.dumps(self.written, sort_keys=True).encode()).hexdigest()[:16]

    def redact_text(self, text: str) -> str:
        """Return `text` without the hidden values."""
        for value in self.hidden:
            text = text.replace(value, MASKED)
        return text


def redact(written: Mapping[str, Any], *, used: Mapping[str, Any] | None = None) -> View:
    """Return the redacted view of a file with the content `written`; `used` is the content with variables replaced."""
    redaction, used_redaction = _Redaction(), _Redaction()
    content = redaction.value((), dict(written))
    used_redaction.value((), dict(used or {}))
    hidden = sorted(redaction.hidden | used_redaction.hidden, key=len, reverse=True)
    return View(written=content, hidden=tuple(hidden))


def provider(settings: providers.Provider) -> dict[str, Any]:
    """Return the redacted view of a provider's resolved settings."""
    address = getattr(settings, "base_url", None)
    price = settings.price
    return {
        "type": settings.type,
        "model": _text(settings.model),
        "base_url": None if address is None else url(address),
        "price": None if price is None else {"input": price.input, "output": price.output},
        "limits": {
            "requests_per_minute": settings.requests_per_minute,
            "tokens_per_minute": settings.tokens_per_minute,
            "context_tokens": settings.context_tokens,
        },
    }


def url(value: str) -> str:
    """Return a URL without user, query and fragment, and without parts of its host and path that look like keys."""
    if not fields.is_url(value):
        return MASKED
    parts = urllib.parse.urlsplit(value)
    _, at, host = parts.netloc.rpartition("@")
    name, port = _name_and_port(host)
    host = ".".join(MASKED if _is_key_of_host(label) else label for label in name.split(".")) + port
    path = "/".join(MASKED if _may_be_key(part) else part for part in parts.path.split("/"))
    bare = f"{parts.scheme}://{host}{path}"
    if _MASKER.text(bare) != bare:
        return MASKED
    user = f"{MASKED}@" if at else ""
    query, fragment = ("?" if parts.query else ""), ("#" if parts.fragment else "")
    ends = "".join(f"{mark}{MASKED}" for mark in (query, fragment) if mark)
    return f"{parts.scheme}://{user}{host}{path}{ends}"


class _Redaction:
    """Redacts a file and collects the hidden values."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        self._left = VALUES_MAX

    def value(self, location: tuple[str, ...], plain: Any) -> Any:
        """Return the redacted value at `location`."""
        self._left -= 1
        if self._left < 0 or len(location) > DEEPEST:
            return MASKED
        if isinstance(plain, dict):
            return {self._key(key): self.value((*location, str(key)), below) for key, below in plain.items()}
        if isinstance(plain, list | tuple | set):
            return [self.value((*location, before), element) for before, element in _with_flags(list(plain), location)]
        if plain is None or isinstance(plain, bool):
            return plain
        if isinstance(plain, str) and (named := _NAMED.fullmatch(plain)) and _variable(named[1]) != MASKED:
            return plain
        redacted = _rule(location)(plain if isinstance(plain, str) else _plain(plain), location)
        if redacted != plain and isinstance(plain, str):
            self._hide(plain)
        is_number = isinstance(plain, int) or (isinstance(plain, float) and math.isfinite(plain))  # as JSON has them
        return plain if is_number and redacted == _plain(plain) else redacted

    def _key(self, key: object) -> str:
        redacted = _text(str(key)[:253])
        if redacted == MASKED or not re.fullmatch(r"[\w. -]+", redacted):
            self._hide(str(key))
            return MASKED
        return redacted

    def _hide(self, value: str) -> None:
        self.hidden.update(part for part in (value, *_parts(value)) if _is_distinct(part))


_Rule = Callable[[str, tuple[str, ...]], str]


def _rule(location: tuple[str, ...]) -> _Rule:
    """Return the function that redacts a value at `location`."""
    match location:
        case ("mcp_servers", _, "transport", "env" | "headers", *_) | ("deliveries", _, "headers", *_):
            return lambda value, _: MASKED if value else ""
        case ("mcp_servers", _, "transport", "args", before, *_):
            return lambda value, _: _argument(value, before=before)
        case ("mcp_servers", _, "transport", "args"):
            return lambda value, _: _argument(value, before="")
        case ("mcp_servers", _, "tool_hashes", _):
            return lambda value, _: value if _HASH.fullmatch(value) else MASKED
        case ("mcp_servers", _, "transport", "command"):
            return lambda value, _: _text(value) if len(value.split()) == 1 else MASKED
        case (*_, "url" | "base_url"):
            return lambda value, _: url(value)
        case ("llm_providers", _, "options", *_):
            return _option
        case (
            ("llm_providers", _, "api_key_env")
            | ("mcp_servers", _, "transport", "bearer_token_env")
            | ("runbooks", "token_env")
            | ("deliveries", _, "url_env" | "secret_env" | "token_env")
        ):
            return lambda value, _: _variable(value)
        case (
            ("llm_providers", _, "api_key_file" | "credentials_file")
            | ("runbooks", "token_file")
            | ("deliveries", _, "url_file" | "secret_file" | "token_file")
        ):
            return lambda value, _: _file(value)
        case ("mcp_servers", _, "transport", "bearer_token_file" | "ca_file" | "certificate_file" | "key_file"):
            return lambda value, _: _file(value)
        case _:
            return _at


def _at(value: str, location: tuple[str, ...]) -> str:
    """Redact a text if the masker finds a secret in it, by its content or by the name of its key."""
    named = json.dumps({location[-1] if location else "": value}, ensure_ascii=False)
    return MASKED if _MASKER.text(named) != named else _text(value)


def _text(value: str) -> str:
    return value if _MASKER.text(value) == value else MASKED


def _option(value: str, location: tuple[str, ...]) -> str:
    """Redact an option of an integration, which can hold anything: only numbers and URLs stay."""
    if re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", value):
        return _at(value, location)
    return url(value) if re.match(r"https?://", value) else MASKED


def _with_flags(items: list[Any], location: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (last part of its location, element): for an argument, the argument before it, a possible flag."""
    is_arguments = location[:1] == ("mcp_servers",) and location[2:] == ("transport", "args")
    before = "*"
    for element in items:
        yield before, element
        if is_arguments:
            before = element if isinstance(element, str) else "*"


def _argument(value: str, *, before: str) -> str:
    """Redact an argument: the name of a flag stays, and plain words after a flag that holds no secret.

    `before` is the argument before it.
    """
    match = _FLAG.fullmatch(value)
    if match is None or len(match[1]) > 4 * _LONGEST_WORD or max(map(len, match[1].split("-"))) > _LONGEST_WORD:
        return _value_of_flag(value, before)
    return f"{match[1]}={_value_of_flag(match[2][1:], match[1])}" if match[2] else match[1]


def _value_of_flag(value: str, flag: str) -> str:
    is_plain = _FLAG.fullmatch(flag) and flag.rpartition("-")[2] in _PLAIN_FLAGS and _PLAIN_VALUE.fullmatch(value)
    return value if is_plain and _text(value) == value else MASKED


def _variable(value: str) -> str:
    """Redact a variable's name if it looks like a key: AWS has keys of capitals and digits without an underscore."""
    named = _VARIABLE.fullmatch(value) and ("_" in value or len(value) < _LIKE_A_KEY)
    return value if named and _text(value) == value else MASKED


def _file(value: str) -> str:
    is_plain_path = _PATH.fullmatch(value) and not any(map(_may_be_key, value.split("/")))
    return value if is_plain_path and _text(value) == value else MASKED


def _may_be_key(part: str) -> bool:
    """Return whether a part of a path may be a key: it is long, and does not consist of words."""
    return len(part) >= _LIKE_A_KEY and not _WORDS.fullmatch(part.lower())


def _name_and_port(host: str) -> tuple[str, str]:
    """Return (host, port with its colon) of a URL's host. An IPv6 address is not split."""
    name, colon, port = host.rpartition(":")
    return (name, f":{port}") if colon and not host.startswith("[") else (host, "")


def _is_key_of_host(label: str) -> bool:
    """Return whether a label of a host name may be a key. Digits in short pieces or after a dash are common."""
    pieces = [] if label.startswith("[") else label.split("-")
    return any(
        len(piece) >= _KEY_OF_HOST and (len(piece) >= 2 * _KEY_OF_HOST or not (piece.isalpha() or piece.isdigit()))
        for piece in pieces
    )


def _plain(value: object) -> str:
    """Return the text of a value that YAML has parsed: a number, a date, bytes."""
    return value if isinstance(value, str) else str(value)


def _parts(value: str) -> Iterator[str]:
    """Yield the parts of a value that other texts may contain alone."""
    _, equals, right = value.partition("=")
    if equals:
        yield right
    try:
        parts = urllib.parse.urlsplit(value)
        if parts.scheme and parts.netloc:
            user, _, host = parts.netloc.rpartition("@")
            queried = (right for _, right in urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
            keys = [*filter(_is_key_of_host, _name_and_port(host)[0].split("."))]
            keys += filter(_may_be_key, parts.path.split("/"))
            for part in (user, *user.split(":"), parts.query, *queried, parts.fragment, *keys):
                yield from (part, urllib.parse.unquote(part))
    except ValueError:
        return


def _is_distinct(value: str) -> bool:
    """Return whether a value differs enough from common words to be removed from texts."""
    if len(value) < 8:
        return len(value) >= 4 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return not _WORDS.fullmatch(value)
