"""The payloads of NOTIFY for text that is being written."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import UUID

from tarsy.transcript import messages, timeline_events

PAYLOAD_MAX = 7900
"""Bytes of a NOTIFY's payload; Postgres takes less than 8000."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A change of text that is being written.

    From character `at` on the text of an event is `text`, and nothing behind it.

    The first piece of an event begins it, at 0. A piece at an earlier place replaces the text from there: the model is
    asked again, or its answer is parsed in another way. The text is what the log will hold at the end, or near it (the
    result of a strategy is only known at its end).
    """

    investigation: UUID
    run: int
    stage: str
    execution: str
    event: str
    """The event's id, under which it will stand in the timeline."""
    type: timeline_events.Type
    at: int
    text: str
    state: Literal["grows", "over"] = "grows"
    """"over": nothing more comes. The log has the event by now, or never will (then it was given up)."""
    more: bool = False
    """Whether the next piece has the text behind `text`, which stays until then. Only between processes."""

    def after(self, before: str) -> str:
        """The event's text with it, where that was `before`."""
        rest = before[self.at + len(self.text) :] if self.more else ""
        return before[: self.at] + self.text + rest


_VERSION = 1
_FRAME = len(json.dumps({"v": _VERSION, "p": [], "m": []}))
_IDS = 200
"""The number of ids, of 36 bytes each, in quotes and with a comma, that fit into a payload."""


def encode(pieces: Iterable[Piece], moved: Iterable[UUID]) -> list[str]:
    """As payloads of at most PAYLOAD_MAX bytes, long pieces in several."""
    payloads: list[_Told] = []
    size = PAYLOAD_MAX
    rows = [("p", row) for piece in pieces for row in _rows(piece)]
    for kind, row in [*rows, *(("m", _json(str(moved_id))) for moved_id in moved)]:
        length = _bytes(row) + 1
        if size + length > PAYLOAD_MAX:
            payloads.append({"p": [], "m": []})
            size = _FRAME
        payloads[-1][kind].append(row)
        size += length
    return [_payload(rows_of_payload) for rows_of_payload in payloads]


_Told: TypeAlias = dict[str, list[str]]
"""Rows in JSON: of pieces, and of what moved."""


def _payload(rows_of_payload: _Told) -> str:
    rows = (f'"{kind}":[{",".join(some)}]' for kind, some in rows_of_payload.items())
    return f'{{"v":{_VERSION},{",".join(rows)}}}'


def _rows(piece: Piece) -> Iterator[str]:
    """A piece in JSON, in as many rows as it needs."""
    about = [
        *(str(piece.investigation), piece.run, piece.stage, piece.execution),
        *(piece.event, piece.type, piece.state),
    ]
    room = PAYLOAD_MAX - _FRAME - _bytes(_json([*about, piece.at + len(piece.text), False, ""])) - 1
    start = 0
    while True:
        end = start + _fitting(piece.text[start : start + room], room)
        yield _json([*about, piece.at + start, piece.more or end < len(piece.text), piece.text[start:end]])
        start = end
        if end == len(piece.text):
            return


def _fitting(text: str, room: int) -> int:
    """How many characters of `text` surely have room in so many bytes of JSON."""
    count = len(text)
    while (size := _bytes(_json(text[:count])) - 2) > room:
        count = count * room // size
    return count


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _bytes(text: str) -> int:
    return len(text.encode())


def decode(payload: str) -> tuple[list[Piece], list[UUID]]:
    """Return the content of a payload; everything that this version of TARSy would not send is left out.

    Every user of the database can NOTIFY, so all of it is checked.
    """
    match _parse(payload):
        case {"p": list(rows), "m": list(moved)}:
            return [piece for row in rows if (piece := _piece(row))], _uuids(moved)
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


def watching(anew: Sequence[UUID], still: Collection[UUID]) -> Iterator[str]:
    """As payloads: of these the text so far is wanted, and those are watched still."""
    investigations = [("anew", str(identity)) for identity in anew] + [("still", str(identity)) for identity in still]
    for start in range(0, len(investigations), _IDS):
        some = investigations[start : start + _IDS]
        yield _json(
            {"v": _VERSION} | {kind: [identity for of, identity in some if of == kind] for kind in ("anew", "still")}
        )


def watchers(payload: str) -> tuple[list[UUID], list[UUID]]:
    """Return the content of a payload of `watching`.

    Investigations whose text so far is wanted, and others still watched.
    """
    match _parse(payload):
        case {"anew": list(anew), "still": list(still)}:
            return _uuids(anew), _uuids(still)
    return [], []


def _parse(payload: str) -> Any:
    """The JSON of a payload of this version; else None."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("v") == _VERSION else None
