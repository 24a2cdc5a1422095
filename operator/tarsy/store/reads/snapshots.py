"""The snapshot of a chain that an investigation runs, decoded from its row."""

from __future__ import annotations

import json

import pydantic

from tarsy.resources import chains
from tarsy.transcript import messages, record


class UnreadableError(Exception):
    """The log, or the snapshot beside it, holds what this program cannot read; the message names the place."""

    def __init__(self, problem: str) -> None:
        super().__init__(messages.storable(problem))  # it is stored: people are told what is waited for


def chain_of(stored: str | None, *, version: int | None) -> chains.Spec:
    """The chain's spec as it was when the investigation was admitted; an UnreadableError says why not."""
    decoder = record.CHAIN_DECODERS.get(version or 0)
    if decoder is None:
        raise UnreadableError(f"the snapshot of the chain is of version {version}, which is unknown here")
    try:
        return decoder(json.loads(stored or "null"))
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False)[0]
        location = ".".join(map(str, first["loc"]))
        raise UnreadableError(f"the snapshot of the chain cannot be read: {location}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"the snapshot of the chain cannot be read: {type(error).__name__}: {error}") from error
