"""From a request's bytes to JSON that can be stored: the one door for text from outside."""

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

_PROBLEMS_TOLD = 10
_PLACE_MAX = 200  # characters; a place is named by keys that came from outside
MESSAGE_MAX = 500
"""Characters of what is said to be wrong at one place."""
_AT_ONCE = 256 * 1024  # bytes; the json module's own scanner keeps every thread waiting until it is done
CONTAINERS_MAX = 150_000
"""Objects and lists that a large body may have: the garbage collector stops every thread to look at them all."""
VALUES_MAX = 500_000
"""Members of objects and items of lists that a large body may have in all."""
MEMBERS_MAX = 50_000
"""Members that a single object of a large body may have: it is put together, checked and copied in one go."""


_Scan: TypeAlias = Callable[[str, int], Any]
"""Reads the value that stands at a place of a text."""


class PayloadError(ValueError):
    """The payload is not what its source says it is; the message names the place."""


def load(body: bytes) -> Any:
    """Parse JSON; what the store cannot hold (NUL, lone surrogates) becomes U+FFFD. A PayloadError: it is no JSON.

    In a thread, however large, it leaves the others their turns.
    """
    try:
        loaded = json.loads(body) if len(body) <= _AT_ONCE else json.loads(body, cls=_Patient)
        return messages.storable_json(loaded)
    except PayloadError:
        raise
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the body is not JSON: {error}") from error


def compact(value: Any) -> Iterator[str]:
    """The pieces of `value` as JSON, never longer than it came: indentation grows with depth, a hundredfold and more.

    In pieces, because all at once the json module's encoder keeps every thread waiting until it is done.
    """
    return json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode(value)


class _Patient(json.JSONDecoder):
    """The json module's decoder without the scanner that is written in C: that one holds the interpreter."""

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
        """`scan` for what stands in one more object or list, of which that may have `most`."""
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
    """Return the first problems of a payload with their places, cut to a readable length.

    `within` is the place of the part that was read; `describe` words a problem.
    """
    first = itertools.islice(faults(error, within=within, describe=describe), _PROBLEMS_TOLD)
    listed = [f"{location}: {message}" for location, message in first]
    more = error.error_count() - len(listed)
    return "; ".join([*listed, *([f"and {more} more"] if more else [])])


def faults(
    error: pydantic.ValidationError,
    *,
    within: str = "",
    describe: Callable[[core.ErrorDetails], str] = operator.itemgetter("msg"),
) -> Iterator[tuple[str, str]]:
    """The places that are wrong, cut to what one can read, each with what is wrong there, as it is `describe`.

    `within` is the place of what was read.
    """
    for problem in error.errors(include_input=False, include_url=False):
        steps = (step for step in problem["loc"] if step != "[key]")  # what pydantic adds to a key that is wrong
        location = ".".join(map(str, (*filter(None, [within]), *steps)))[:_PLACE_MAX] or "the body"
        yield location, describe(problem)[:MESSAGE_MAX]
