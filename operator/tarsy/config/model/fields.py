"""The building blocks of the platform file: strict models, durations, URLs and names of variables."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(value: object) -> timedelta:
    """Return the duration of a text such as `20s`; raises ValueError with the expected form."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", value)):
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    raise ValueError("not a duration: write a number and ms, s, m, h or d, such as 20s")


@dataclass(frozen=True)
class within:  # noqa: N801 - an annotation, like pydantic's
    """Checks that a duration lies within bounds, `least` and `most` included."""

    least: str
    most: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the bounds after the annotated type has validated the value."""
        low, high = duration(self.least), duration(self.most)

        def check(value: timedelta) -> timedelta:
            if not low <= value <= high:
                raise ValueError(f"must be from {self.least} to {self.most}")
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the bounds as `x-least` and `x-most`: JSON Schema has no keyword for them."""
        return {**handler(core), "x-least": self.least, "x-most": self.most}


Time = Annotated[
    timedelta,
    BeforeValidator(duration),
    WithJsonSchema({"type": "string", "pattern": r"^([0-9]{1,9}(ms|s|m|h|d)|.*\{\{.*)$"}),
]
"""A duration in the file's notation: `20s`, `5m`, `7d`."""

Duration = Annotated[Time, within("1ms", "1d")]
"""A duration from 1ms to 1d."""


def require(is_valid: Callable[[str], bool], message: str) -> AfterValidator:
    """Return a validator that raises ValueError with `message` for a text that is not valid."""

    def check(value: str) -> str:
        if not is_valid(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def is_url(value: str) -> bool:
    """Return whether `value` is an http or https URL."""
    try:
        parsed = urllib.parse.urlsplit(value)
        is_http = parsed.scheme in ("http", "https") and bool(parsed.hostname)
        return is_http and parsed.port != 0 and value.split() == [value]
    except ValueError:
        return False


URL = Annotated[str, require(is_url, "not a URL: write one with http or https, such as http://127.0.0.1:8080")]
"""An http or https URL, unchanged."""

_PORTS = {"http": 80, "https": 443}


def origin_of(value: str) -> str | None:
    """Return the normal form of an origin, such as https://tarsy.example; None if `value` is no origin.

    Source: RFC 6454, section 6.2, "ASCII Serialization of an Origin".
    """
    try:
        parsed = urllib.parse.urlsplit(value)
        port = parsed.port
    except ValueError:
        return None
    is_bare = value.lower() == f"{parsed.scheme}://{parsed.netloc.lower()}" and "@" not in parsed.netloc
    if parsed.scheme not in _PORTS or not parsed.hostname or not is_bare or value.split() != [value]:
        return None
    host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    return f"{parsed.scheme}://{host}" + (f":{port}" if port and port != _PORTS[parsed.scheme] else "")


def _origin(value: str) -> str:
    if (origin := origin_of(value)) is None:
        raise ValueError("not an origin: write scheme and host, such as https://tarsy.example:8443, without a path")
    return origin


Origin = Annotated[str, AfterValidator(_origin)]
"""The origin of a page: scheme, host and port, as browsers write it."""

Word = Annotated[str, Field(min_length=1)]


def _network(value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(value) if isinstance(value, str) else None
    except ValueError:  # its message contains the value
        network = None
    if network is None:
        raise ValueError("not an address or a network: write one such as 10.0.0.5 or 10.0.0.0/8, with all host bits 0")
    if network.prefixlen == 0:
        raise ValueError("this network has all addresses: write a smaller one")
    return network


Network = Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, BeforeValidator(_network)]
"""A network, or a single IP address."""


Variable = Annotated[
    str,
    require(
        lambda value: re.fullmatch(r"[A-Z_][A-Z0-9_]*", value) is not None,
        # The message never contains the value: it may be a key by mistake, and the message is logged.
        "not an environment variable's name, such as GOOGLE_API_KEY: the key itself is not written here",
    ),
]
"""The name of an environment variable, in capitals, so that a key written by mistake is most likely refused."""

ALL_NAMESPACES = "*"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""Source: Kubernetes documentation, "Object Names and IDs", RFC 1123 label names."""


def is_namespace(value: str) -> bool:
    """Return whether `value` can be the name of a namespace."""
    return re.fullmatch(_NAMESPACE, value) is not None


Namespace = Annotated[
    str,
    require(is_namespace, "not the name of a namespace, such as team-a: lower-case letters, digits and -, 63 at most"),
]


def _each_once(names: list[str]) -> list[str]:
    if repeated := next((name for index, name in enumerate(names) if name in names[:index]), None):
        raise ValueError(f"'{repeated}' is listed twice: name each namespace once")
    return names


Namespaces = Annotated[list[Namespace], Field(max_length=100), AfterValidator(_each_once)]
_Allowed = Annotated[
    str,
    require(
        lambda value: value == ALL_NAMESPACES or is_namespace(value),
        "neither the name of a namespace, such as team-a, nor * for all that are served",
    ),
]
AllowedNamespaces = Annotated[list[_Allowed], Field(max_length=100)] | None


class Part(BaseModel):
    """A part of the file: snake case, unknown keys refused, defaults checked like values."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE = re.compile(r"[!-~]([ !-~]*[!-~])?")
_OUR_HEADERS = re.compile(
    r"accept|accept-encoding|connection|content-.*|host|last-event-id|mcp-.*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
"""The headers that HTTP and MCP set themselves."""


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Return `headers` if all may be sent. Errors show no value."""
    names: set[str] = set()
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError("one of the names is not a header name such as X-Api-Key")
        if _OUR_HEADERS.fullmatch(name):
            raise ValueError(f"{name} cannot be set: the protocol decides it")
        if name.lower() in names:
            raise ValueError(f"{name} appears twice")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} is not valid in a header: write printable ASCII on one line")
        names.add(name.lower())
    return headers


Headers = Annotated[dict[str, str], Field(max_length=50), AfterValidator(_headers)]
"""Headers that are added to requests."""
