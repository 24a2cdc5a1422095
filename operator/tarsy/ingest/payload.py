"""Parsing of request bodies into JSON that can be stored, and messages about their problems."""

from __future__ import annotations

import itertools
import json
import json.decoder
import json.scanner
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pydantic
import pydantic_core as core

from tarsy.transcript import messages

_PROBLEMS_MAX = 10
_PLACE_MAX = 200  # characters; a place consists of keys that the sender chose
MESSAGE_MAX = 500
"""Characters of the message on one problem."""
_C_SCANNER_MAX = 256 * 1024  # bytes; the scanner in C holds the interpreter's lock until it is done
CONTAINERS_MAX = 150_000
"""Objects and lists that a large body may have: the garbage collector stops every thread to visit them."""
VALUES_MAX = 500_000
"""Members of objects and items of lists that a large body may have in all."""
MEMBERS_MAX = 50_000
"""Members that one object of a large body may have: the object is built, checked and copied in one go."""


_Scan: TypeAlias = Callable[[str, int], Any]
"""Parses the value at a position of a text."""


class PayloadError(ValueError):
    """The payload does not have its format; the message names the place."""


def load(body: bytes) -> Any:
    """Parse JSON. Characters that the store cannot hold (NUL, lone surrogates) become U+FFFD.

    Raise PayloadError if `body` is not JSON. However large the body, other threads run in the meantime.
    """
    try:
        loaded = json.loads(body) if len(body) <= _C_SCANNER_MAX else json.loads(body, cls=_InterruptibleDecoder)
        return messages.storable_json(loaded)
    except PayloadError:
        raise
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the body is not JSON: {error}") from error


def compact(value: Any) -> Iterator[str]:
    """Return `value` as JSON in pieces, never longer than it arrived, because nothing is indented.

    A whole text would come from the encoder in C, which holds the interpreter's lock until it is done.
    """
    return json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode(value)


def refuse_blank(remedy: str) -> pydantic.AfterValidator:
    """Return a validator that refuses a blank text, with `remedy` at the end of its message."""

    def check(value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"it is blank: {remedy}")
        return value

    return pydantic.AfterValidator(check)


class _InterruptibleDecoder(json.JSONDecoder):
    """The json module's decoder without the scanner in C, which holds the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__()
        self._containers = 0
        self._values = 0
        self.parse_object = self._object
        self.parse_array = self._array
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _object(self, start: tuple[str, int], strict: bool, scan: _Scan, *rest: Any) -> Any:  # noqa: FBT001 - json's
        counted = self._counted(scan, most=MEMBERS_MAX)
        return json.decoder.JSONObject(start, strict, counted, *rest)  # type: ignore[attr-defined]

    def _array(self, start: tuple[str, int], scan: _Scan) -> Any:
        return json.decoder.JSONArray(start, self._counted(scan, most=VALUES_MAX))  # type: ignore[attr-defined]

    def _counted(self, scan: _Scan, *, most: int) -> _Scan:
        """Count one more object or list, and return a `scan` that counts its members: `most` are allowed."""
        self._containers += 1
        if self._containers > CONTAINERS_MAX:
            raise PayloadError(f"the body has more than {CONTAINERS_MAX} objects and lists")
        left = most

        def counted(text: str, at: int) -> Any:
            nonlocal left
            left -= 1
            self._values += 1
            if self._values > VALUES_MAX:
                raise PayloadError(f"the body has more than {VALUES_MAX} members of objects and items of lists")
            if left < 0:
                raise PayloadError(f"an object of the body has more than {most} members")
            return scan(text, at)

        return counted


def places(
    error: pydantic.ValidationError,
    *,
    within: str = "",
    describe: Callable[[core.ErrorDetails], str] = operator.itemgetter("msg"),
) -> str:
    """Return the first problems of a payload with their places, in one line of limited length.

    The parameters are those of `faults`.
    """
    first = itertools.islice(faults(error, within=within, describe=describe), _PROBLEMS_MAX)
    listed = [f"{location}: {message}" for location, message in first]
    more = error.error_count() - len(listed)
    return "; ".join([*listed, *([f"and {more} more"] if more else [])])


def faults(
    error: pydantic.ValidationError,
    *,
    within: str = "",
    describe: Callable[[core.ErrorDetails], str] = operator.itemgetter("msg"),
) -> Iterator[tuple[str, str]]:
    """Yield the place and the message of each problem, both of limited length.

    `within` is the place of the part that was validated; `describe` returns the message.
    """
    for problem in error.errors(include_input=False, include_url=False):
        steps = (step for step in problem["loc"] if step != "[key]")  # pydantic adds it to the place of a key
        location = ".".join(map(str, (*filter(None, [within]), *steps)))[:_PLACE_MAX] or "the body"
        yield location, describe(problem)[:MESSAGE_MAX]
