"""From a request's bytes to JSON that can be stored: the one door for text from outside."""

from __future__ import annotations

import json
from typing import Any

import pydantic

from tarsy.transcript import messages

_PROBLEMS_TOLD = 10
_PLACE_MAX = 200  # characters; a place is named by keys that came from outside


class PayloadError(ValueError):
    """The payload is not what its source says it is; the message names the place."""


def load(body: bytes) -> Any:
    """Parse JSON; what the store cannot hold (NUL, lone surrogates) becomes U+FFFD. A PayloadError: it is no JSON."""
    try:
        return messages.storable_json(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the body is not JSON: {error}") from error


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
