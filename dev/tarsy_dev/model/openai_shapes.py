"""Common parts of OpenAI's two protocols: keys, errors, names, and tools' results.

Source: OpenAI API reference, and the errors that people report from the API.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pydantic

from tarsy_dev import keys
from tarsy_dev.model import script

NAME = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_NAME = 64
_FLOOD = 64 * 1024  # characters in one event

_STATUS = {
    400: ("invalid_request_error", None, "The request is invalid."),
    401: (
        "invalid_request_error",
        "invalid_api_key",
        "Incorrect API key provided: ****. You can find your API key at https://platform.openai.com/account/api-keys.",
    ),
    403: (
        "invalid_request_error",
        "unsupported_country_region_territory",
        "Country, region, or territory not supported",
    ),
    404: (
        "invalid_request_error",
        "model_not_found",
        "The model does not exist or you do not have access to it.",
    ),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached on requests per min (RPM)."),
    500: (
        "server_error",
        "server_error",
        "The server had an error while processing your request. Sorry about that!",
    ),
    503: ("server_error", "server_error", "The engine is currently overloaded, please try again later."),
}
_OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."

NO_JSON = script.HttpError(status=400, message="We could not parse the JSON body of your request.")
_NO_KEY = script.HttpError(status=401, message="You didn't provide an API key.", code="")


class Wire(pydantic.BaseModel):
    """A part of a request: these fields, and no others."""

    model_config = pydantic.ConfigDict(extra="forbid")


class Function(Wire):
    """A function that is declared."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def refused(message: str, code: str = "") -> script.HttpError:
    """A request that is answered 400."""
    return script.HttpError(status=400, message=message, code=code)


def complaint(error: pydantic.ValidationError) -> script.HttpError:
    """Return the error for a request that does not have the protocol's shape."""
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "extra_forbidden":
        return refused(f"Unknown parameter: '{where}'.", "unknown_parameter")
    return refused(f"Invalid value for '{where}': {first['msg']}", "invalid_value")


def api_key(headers: Mapping[str, str]) -> str:
    """The key, or ""."""
    return headers.get("Authorization", "").removeprefix("Bearer").strip()


def refused_key(key: str) -> script.HttpError | None:
    """Return the error for a request without a key."""
    return None if key else _NO_KEY


def refused_names(path_template: str, names: Sequence[str]) -> script.HttpError | None:
    """Return the error for functions' names, in the list that `path_template` (with `{}` for the index) names."""
    for index, name in enumerate(names):
        where = path_template.format(index)
        if not NAME.fullmatch(name):
            return refused(
                f"Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
                "'^[a-zA-Z0-9_-]+$'.",
                "invalid_value",
            )
        if len(name) > _LONGEST_NAME:
            return refused(
                f"Invalid '{where}': string too long. Expected a string with maximum length {_LONGEST_NAME}, but got "
                f"a string with length {len(name)} instead.",
                "string_above_max_length",
            )
    return None


def refused_arguments(text: str) -> script.HttpError | None:
    """Return vLLM's error for arguments that are no object: it puts them into a template. OpenAI takes them."""
    try:
        loaded = json.loads(text)
    except ValueError as error:
        return refused(str(error))
    return None if isinstance(loaded, dict) else refused("Can only get item pairs from a mapping.")


def call(name: str, arguments: str, identity: str) -> script.Call:
    """A call of the conversation."""
    loaded = json.loads(arguments)
    return script.Call(name=name, args=loaded, id=identity, raw=arguments)


def joined(messages: Iterable[script.Message]) -> tuple[script.Message, ...]:
    """Neighbours of the same role as one message."""
    joined_messages: list[script.Message] = []
    for message in messages:
        if not joined_messages or joined_messages[-1].role != message.role:
            joined_messages.append(message)
            continue
        last = joined_messages.pop()
        joined_messages.append(
            dataclasses.replace(
                last,
                text=last.text + message.text,
                thoughts=last.thoughts + message.thoughts,
                calls=last.calls + message.calls,
                results=last.results + message.results,
            )
        )
    return tuple(joined_messages)


def with_conversation(model_call: script.Turn, system: str, messages: tuple[script.Message, ...]) -> script.Turn:
    """The turn with its conversation, and what that tells of whose it is."""
    first_user = next((message.text for message in messages if message.role == "user"), "")
    return dataclasses.replace(
        model_call,
        system=system,
        messages=messages,
        key=keys.find(system=system, first_user=first_user),
        kind=keys.kind(system=system, first_user=first_user),
        iteration=sum(message.role == "model" for message in messages),
    )


def error_body(error: script.HttpError) -> dict[str, Any]:
    """An error in OpenAI's shape, without what is around it."""
    kind, code, usual = _STATUS.get(error.status, ("server_error", None, "Unknown error."))
    if error.code == "context_length_exceeded":
        usual = _OVERFLOW
    message = error.message or usual
    if error.retry_after is not None:
        message = f"{message} Please try again in {error.retry_after:g}s."
    return {"message": message, "type": kind, "param": None, "code": error.code or (None if error.message else code)}


def cut(text: str, size: int) -> list[str]:
    """The pieces of a text that is streamed, each of `size` characters; 0 is all in one."""
    step = size or max(len(text), 1)
    return [text[start : start + step] for start in range(0, len(text), step)]


def fragments(arguments: str) -> list[str]:
    """The pieces of a call's arguments: the real server sends a token at a time, ours three pieces."""
    return cut(arguments, max(1, -(-len(arguments) // 3)))


def flood_text() -> str:
    """Text that does not repeat itself soon."""
    return "".join(f"all work and no play {day:010}\n" for day in range(_FLOOD // 32))


def flooded(before: Iterable[bytes], piece: bytes, after: Iterable[bytes], megabytes: float | None) -> Iterator[bytes]:
    """`piece` again and again, with what stands around it."""
    yield from before
    sent = 0
    while megabytes is None or sent < megabytes * 1e6:
        yield piece
        sent += len(piece)
    yield from after


def event(payload: Mapping[str, Any], name: str = "") -> bytes:
    """An event of a stream."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()
