"""The chain snapshot that an investigation runs, decoded from its row."""

from __future__ import annotations

import json

import pydantic

from tarsy.resources import chains
from tarsy.transcript import messages, record


class UnreadableError(Exception):
    """This program cannot read a log or a chain snapshot; the message says which part."""

    def __init__(self, problem: str) -> None:
        super().__init__(messages.storable(problem))  # the message is stored and shown


def chain_of(stored: str | None, *, version: int | None) -> chains.Spec:
    """Decode the chain's spec. Raises UnreadableError."""
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
