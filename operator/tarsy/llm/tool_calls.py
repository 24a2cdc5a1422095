"""Tools and their calls as providers take them: names, ids, arguments and results.

A tool is `server.tool` inside and `server__tool` on the wire, because no provider takes a dot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tarsy.transcript import messages

_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The form of a function's name for OpenAI and Anthropic; a request with any other name is refused whole."""
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


def wire_name(name: str) -> str:
    """Return `server__tool` for `server.tool`."""
    return name.replace(".", "__", 1)


def tool_name(sent: str) -> str:
    """Return `server.tool` for a sent name that was not declared, if it maps back to that; else the sent name."""
    name = sent.replace("__", ".", 1)
    return name if wire_name(name) == sent else sent


def accepted_name(name: str) -> str:
    """Return a name that every provider accepts: `name`, or else its accepted characters with a hash.

    The same name always gives the same result, so former calls need no table.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{_NOT_ACCEPTED.sub('_', name)[: 64 - _DIGITS - 1]}_{digest}"


def tools_by_sent_name(names: Iterable[str]) -> Mapping[str, str]:
    """Return the tools, by their declared names."""
    return {accepted_name(wire_name(name)): name for name in names}


def sent_names(message: messages.Message) -> list[str]:
    """Return the names of a message's calls as they are sent; a model may have called a tool that does not exist."""
    return [accepted_name(wire_name(call.name)) for call in message.calls]


def sent_id(call: messages.ToolCall) -> str:
    """Our id of a call in a form that every provider takes."""
    return accepted_name(f"call_{call.id.replace('.', '_')}")


def are_ids(ids: Sequence[object]) -> bool:
    """Return whether `ids` are different and acceptable, so that results can refer to calls by them."""
    return len(set(map(str, ids))) == len(ids) and all(isinstance(i, str) and accepted_name(i) == i for i in ids)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object in a call's JSON; None if it has none, as the call's result says."""
    try:
        loaded = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def arguments(text: str) -> dict[str, Any] | None:
    """Return the object in a call's JSON, in a form that every SDK can send; None if it has none that can be sent."""
    loaded = json_object(text)
    if loaded is None or not messages.is_plain_json(loaded):
        return None
    return messages.well_formed_json(loaded)  # type: ignore[no-any-return]


def result_text(message: messages.Message) -> str:
    """Return a tool's result with the reference by which the model may name it; providers have no field for that."""
    return f"[tool {message.call_id}]{' failed' if message.failed else ''}\n{message.text}"
