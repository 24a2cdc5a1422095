"""The payloads of NOTIFY for texts that are being written."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args
from uuid import UUID

from tarsy.transcript import messages, timeline_events

PAYLOAD_MAX = 7900
"""Bytes of a payload; Postgres accepts less than 8000."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A change of a text that is being written: from character `at` on, the text of an event is `text`.

    The first piece of an event is at 0. A piece at an earlier character replaces the text from there on, because the
    model was asked again, or because its answer is now parsed in another way. The text is the one that the log will
    have, or similar (the result of some strategies is known only at the end).
    """

    investigation: UUID
    run: int
    stage: str
    execution: str
    event: str
    """The id of the timeline's event."""
    type: timeline_events.Type
    at: int
    text: str
    state: Literal["grows", "over"] = "grows"
    """"over" ends the text: the log has the event by now, or will never have it."""
    more: bool = False
    """Whether the next piece has the text after `text`; the former text there stays until then."""

    def after(self, before: str) -> str:
        """Return the text of the event after this piece; `before` is the text so far."""
        rest = before[self.at + len(self.text) :] if self.more else ""
        return before[: self.at] + self.text + rest


_VERSION = 1
_FRAME = len(json.dumps({"v": _VERSION, "p": [], "m": []}))
_IDS = 200
"""The maximal number of ids in a payload; each takes 36 bytes, quotes and a comma."""


def encode(pieces: Iterable[Piece], committed: Iterable[UUID]) -> list[str]:
    """Return pieces and investigations with new entries as payloads; a long piece is split."""
    payloads: list[dict[str, list[str]]] = []
    size = PAYLOAD_MAX
    rows = [("p", row) for piece in pieces for row in _rows(piece)]
    for kind, row in [*rows, *(("m", _json(str(investigation))) for investigation in committed)]:
        length = _bytes(row) + 1
        if size + length > PAYLOAD_MAX:
            payloads.append({"p": [], "m": []})
            size = _FRAME
        payloads[-1][kind].append(row)
        size += length
    members = (",".join(f'"{kind}":[{",".join(rows)}]' for kind, rows in payload.items()) for payload in payloads)
    return [f'{{"v":{_VERSION},{text}}}' for text in members]


def _rows(piece: Piece) -> Iterator[str]:
    """Yield a piece in JSON, in as many rows as it needs."""
    about = [
        *(str(piece.investigation), piece.run, piece.stage, piece.execution),
        *(piece.event, piece.type, piece.state),
    ]
    limit = PAYLOAD_MAX - _FRAME - _bytes(_json([*about, piece.at + len(piece.text), False, ""])) - 1
    start = 0
    while True:
        end = start + _fitting(piece.text[start : start + limit], limit)
        yield _json([*about, piece.at + start, piece.more or end < len(piece.text), piece.text[start:end]])
        start = end
        if end == len(piece.text):
            return


def _fitting(text: str, limit: int) -> int:
    """Return a number of characters of `text` that take at most `limit` bytes of JSON."""
    count = len(text)
    while (size := _bytes(_json(text[:count])) - 2) > limit:
        count = count * limit // size
    return count


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _bytes(text: str) -> int:
    return len(text.encode())


def decode(payload: str) -> tuple[list[Piece], list[UUID]]:
    """Return the pieces and investigations in a payload, without those that this version would not send.

    Every user of the database can NOTIFY, so everything is checked.
    """
    match _parse(payload):
        case {"p": list(rows), "m": list(committed)}:
            return [piece for row in rows if (piece := _piece(row))], _uuids(committed)
    return [], []


_TYPES = frozenset(get_args(timeline_events.Type))
_NUMBER_MAX = 2**31 - 1


def _piece(row: object) -> Piece | None:
    match row:
        case [
            str(identity),
            int(run),
            str(stage),
            str(execution),
            str(event),
            str(kind),
            "grows" | "over" as state,
            int(at),
            bool(more),
            str(text),
        ] if (
            kind in _TYPES
            and all(0 <= number <= _NUMBER_MAX and not isinstance(number, bool) for number in (run, at))
            and (investigation := _uuid(identity))
        ):
            return Piece(
                investigation=investigation,
                run=run,
                stage=messages.storable(stage),
                execution=messages.storable(execution),
                event=messages.storable(event),
                type=cast("timeline_events.Type", kind),
                at=at,
                text=messages.storable(text),
                state=state,
                more=more,
            )
    return None


def _uuids(texts: Iterable[object]) -> list[UUID]:
    return [identity for text in texts if (identity := _uuid(text))]


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None


def encode_watched(requested: Sequence[UUID], still: Collection[UUID]) -> Iterator[str]:
    """Yield the payloads of watched investigations: those whose text so far is requested, and the others."""
    investigations = [
        *(("anew", str(identity)) for identity in requested),
        *(("still", str(identity)) for identity in still),
    ]
    for start in range(0, len(investigations), _IDS):
        by_list: dict[str, list[str]] = {"anew": [], "still": []}
        for name, identity in investigations[start : start + _IDS]:
            by_list[name].append(identity)
        yield _json({"v": _VERSION} | by_list)


def decode_watched(payload: str) -> tuple[list[UUID], list[UUID]]:
    """Return the investigations in a payload of `encode_watched`."""
    match _parse(payload):
        case {"anew": list(requested), "still": list(still)}:
            return _uuids(requested), _uuids(still)
    return [], []


def _parse(payload: str) -> Any:
    """Return the JSON of a payload of this version, or None."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("v") == _VERSION else None
