"""From a request's bytes to JSON that can be stored: the one door for text from outside."""

from __future__ import annotations

import json
import json.decoder
import json.scanner
from collections.abc import Callable
from typing import Any

import pydantic

from tarsy.transcript import messages

_PROBLEMS_TOLD = 10
_PLACE_MAX = 200  # characters; a place is named by keys that came from outside
_AT_ONCE = 256 * 1024  # bytes; the json module's own scanner keeps every thread waiting until it is done
CONTAINERS_MAX = 150_000
"""Objects and lists that a large body may have: the garbage collector stops every thread to look at them all."""


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


class _Patient(json.JSONDecoder):
    """The json module's decoder without the scanner that is written in C: that one holds the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self._containers = 0
        self.parse_object = self._counted(json.decoder.JSONObject)  # type: ignore[attr-defined]
        self.parse_array = self._counted(json.decoder.JSONArray)  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _counted(self, parse: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self._containers += 1
            if self._containers > CONTAINERS_MAX:
                raise PayloadError(f"the body has more than {CONTAINERS_MAX} objects and lists")
            return parse(*args)

        return counted


def places(error: pydantic.ValidationError, *, within: str = "") -> str:
    """What is wrong with a payload, and where: the first few problems, their places cut to what one can read.

    `within` is the place of what was read.
    """
    shown = [
        f"{'.'.join(map(str, (*filter(None, [within]), *problem['loc'])))[:_PLACE_MAX] or 'the body'}: {problem['msg']}"
        for problem in error.errors(include_input=False)[:_PROBLEMS_TOLD]
    ]
    more = error.error_count() - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])
