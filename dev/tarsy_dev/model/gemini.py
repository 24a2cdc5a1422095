"""Gemini's protocol, as google-genai 3 speaks it: the pieces of `generateContent` and `streamGenerateContent`.

Requests are parsed as strictly as the real server's: unknown fields are refused, names are accepted in camel and in
snake case (the SDK mixes both), and what Gemini 3 refuses of a conversation is refused in its words: `conversation`
has those rules. An answer is streamed as it is by the real one: summaries of thoughts, text, all calls in one event,
and a last event with the finish reason, the final usage and, if there were no calls, the signature on an empty text.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pydantic
from pydantic import alias_generators

from tarsy_dev import keys
from tarsy_dev.model import conversation, script, signatures

name: Final = "gemini"
routes: Final = ("/{version:v1|v1beta}/models/{model}:{method:generateContent|streamGenerateContent}",)

_STATUS = {
    400: ("INVALID_ARGUMENT", "Request contains an invalid argument."),
    401: ("UNAUTHENTICATED", "Request had invalid authentication credentials."),
    403: ("PERMISSION_DENIED", "The caller does not have permission"),
    404: ("NOT_FOUND", "Requested entity was not found."),
    429: ("RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan and billing details."),
    500: ("INTERNAL", "An internal error has occurred. Please retry."),
    503: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
    504: ("DEADLINE_EXCEEDED", "The request timed out. Please try again."),
}
_FINISH: dict[script.Finish, str] = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "safety": "SAFETY",
    "malformed call": "MALFORMED_FUNCTION_CALL",
}
_NO_KEY = script.HttpError(
    status=403,
    message="Method doesn't allow unregistered callers (callers without established identity). "
    "Please use API Key or other form of API consumer identity to call this API.",
)
_NO_JSON = script.HttpError(status=400, message="Invalid JSON payload received. Unexpected token.")
_FLOOD = 64 * 1024  # characters in one event


class _Declaration(conversation.Wire):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    behavior: str | None = None


class _Tool(conversation.Wire):
    function_declarations: list[_Declaration] = []
    google_search: dict[str, Any] | None = None
    google_search_retrieval: dict[str, Any] | None = None
    url_context: dict[str, Any] | None = None
    code_execution: dict[str, Any] | None = None


class _Request(conversation.Wire):
    contents: list[conversation.Content] = []
    system_instruction: conversation.Content | None = None
    tools: list[_Tool] = []
    tool_config: dict[str, Any] | None = None
    safety_settings: list[dict[str, Any]] | None = None
    generation_config: dict[str, Any] = {}
    cached_content: str | None = None
    service_tier: str | None = None
    labels: dict[str, str] | None = None
    store: bool | None = None
    model: str | None = None


def parse(
    *, path: Mapping[str, str], headers: Mapping[str, str], body: Any
) -> tuple[script.Turn, script.HttpError | None]:
    """Read a request; see `wire.Wire`."""
    api_key = headers.get("x-goog-api-key", "")
    blank = script.Turn(model=path["model"], streaming=path["method"].startswith("stream"), api_key=api_key)
    if body is None:
        return blank, _NO_JSON
    try:
        request = _Request.model_validate(body)
    except pydantic.ValidationError as error:
        return blank, script.HttpError(status=400, message=_complaint(error))
    turn = _turn(blank, request)
    if not api_key:
        return turn, _NO_KEY
    refusal = conversation.refusal(request.contents) or _refused_setting(request)
    return turn, None if refusal is None else script.HttpError(status=400, message=refusal)


def _turn(blank: script.Turn, request: _Request) -> script.Turn:
    system = "".join(part.text or "" for part in request.system_instruction.parts) if request.system_instruction else ""
    messages = conversation.messages(request.contents)
    first_user = next((message.text for message in messages if message.role == "user"), "")
    return dataclasses.replace(
        blank,
        system=system,
        messages=messages,
        tools=tuple(
            script.Tool(
                name=declared.name,
                description=declared.description,
                schema=declared.parameters_json_schema or declared.parameters or {},
            )
            for tool in request.tools
            for declared in tool.function_declarations
        ),
        thinking=bool(_setting(_thinking(request), "include_thoughts")),
        key=keys.find(system=system, first_user=first_user),
        kind=keys.kind(system=system, first_user=first_user),
        iteration=sum(message.role == "model" for message in messages),
    )


def _refused_setting(request: _Request) -> str | None:
    thinking = _thinking(request)
    if _setting(thinking, "thinking_budget") is not None and _setting(thinking, "thinking_level") is not None:
        return "You can only set only one of thinking budget and thinking level."
    names = [declared.name for tool in request.tools for declared in tool.function_declarations]
    for index, declared in enumerate(names):
        if not conversation.FUNCTION_NAME.fullmatch(declared):
            return (
                f"* GenerateContentRequest.tools[0].function_declarations[{index}].name: Invalid function name. "
                "Must start with a letter or an underscore. Must be alphanumeric (a-z, A-Z, 0-9), underscores (_), "
                "dots (.), colons (:), or dashes (-), with a maximum length of 64.\n"
            )
        if declared in names[:index]:
            return f"Duplicate function declaration found: {declared}"
    return None


def _thinking(request: _Request) -> dict[str, Any]:
    return _setting(request.generation_config, "thinking_config") or {}


def _setting(settings: dict[str, Any], snake: str) -> Any:
    return settings.get(alias_generators.to_camel(snake), settings.get(snake))


def _complaint(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] != "extra_forbidden":
        return f"Invalid value at '{where}': {first['msg']}"
    parent, _, field = where.rpartition(".")
    place = f" at '{parent}'" if parent else ""
    return f'Invalid JSON payload received. Unknown name "{field}"{place}: Cannot find field.'


def content_type(*, streaming: bool) -> str:
    """The content type of an answer."""
    return "text/event-stream" if streaming else "application/json; charset=UTF-8"


def pieces(*, turn: script.Turn, answer: script.Answer) -> Iterator[bytes]:
    """The body of an answer; see `wire.Wire`."""
    identity = secrets.token_hex(8)
    usage = answer.usage or script.usage_of(turn, answer)
    events = _events(turn, answer)
    if not turn.streaming:
        parts = [part for event in events for part in event]
        whole = json.dumps(_response(turn, identity, parts, finish=answer.finish, usage=usage), indent=2).encode()
        yield whole[: len(whole) // 2]
        yield whole[len(whole) // 2 :]
        return
    for parts in events[:-1]:
        yield _event(_response(turn, identity, parts, usage=script.Usage(input=usage.input, output=0)))
    yield _event(_response(turn, identity, events[-1], finish=answer.finish, usage=usage))


def _events(turn: script.Turn, answer: script.Answer) -> list[list[dict[str, Any]]]:
    """The parts of each event of the stream, or of the whole; the last event is the one that says that it is over."""
    size = answer.chunk if turn.streaming else 0
    thoughts = script.cut(answer.thoughts, size) if turn.thinking else []
    text = script.cut(answer.text, size)
    events: list[list[dict[str, Any]]] = [[{"text": piece, "thought": True}] for piece in thoughts]
    events += [[{"text": piece}] for piece in text]
    if answer.calls:
        events.append([_call(call, signed=answer.signed and index == 0) for index, call in enumerate(answer.calls)])
    if not events:
        return [[]]
    signature = {"thoughtSignature": _base64(signatures.issue(conversation.TEXT))} if answer.signed else {}
    if answer.calls:
        signature = {}
    if turn.streaming:
        events.append([{"text": ""} | signature])
    elif not answer.calls:
        events[-1][0] |= signature
    return events


def _call(call: script.Call, *, signed: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": call.name, "args": dict(call.args)}
    if call.id is not None:
        function["id"] = call.id or secrets.token_hex(4)
    if not signed:
        return {"functionCall": function}
    signature = signatures.issue(signatures.of_call(call.name, call.args))
    return {"functionCall": function, "thoughtSignature": _base64(signature)}


def _response(
    turn: script.Turn,
    identity: str,
    parts: list[dict[str, Any]],
    *,
    usage: script.Usage,
    finish: script.Finish | None = None,
) -> dict[str, Any]:
    content: dict[str, Any] = {"parts": parts, "role": "model"} if parts else {"role": "model"}
    candidate: dict[str, Any] = {"content": content, "index": 0}
    if finish is not None:
        candidate["finishReason"] = _FINISH[finish]
    counts = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output,
        "thoughtsTokenCount": usage.thinking,
        "totalTokenCount": usage.input + usage.output + usage.thinking,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": {field: count for field, count in counts.items() if count},  # as protobuf leaves out zeros
        "modelVersion": turn.model,
        "responseId": identity,
    }


def flood(*, turn: script.Turn, megabytes: float | None) -> Iterator[bytes]:
    """The body of an answer of very much text, which does not repeat itself soon; see `wire.Wire`."""
    identity = secrets.token_hex(8)
    parts = [{"text": "".join(f"all work and no play {day:010}\n" for day in range(_FLOOD // 32))}]
    usage = script.Usage(input=1, output=0)
    if turn.streaming:
        before = b""
        piece = _event(_response(turn, identity, parts, usage=usage))
        after = _event(_response(turn, identity, [{"text": ""}], usage=usage, finish="length"))
    else:
        whole = json.dumps(_response(turn, identity, parts, usage=usage, finish="length")).encode()
        piece = parts[0]["text"].encode()
        before, _, after = whole.partition(piece)
    yield before
    sent = 0
    while megabytes is None or sent < megabytes * 1e6:
        yield piece
        sent += len(piece)
    yield after


def garbage(*, turn: script.Turn, text: str) -> bytes:
    """A body around something that is not the protocol's."""
    return f"data: {text}\n\n".encode() if turn.streaming else text.encode()


def error(error: script.HttpError, *, within_stream: bool) -> bytes:
    """An error in Google's shape; see `wire.Wire`."""
    status, usual = _STATUS.get(error.status, ("UNKNOWN", "Unknown error."))
    body: dict[str, Any] = {"code": error.status, "message": error.message or usual, "status": status}
    if error.retry_after is not None:
        delay = f"{error.retry_after:g}s"
        body["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    return _event({"error": body}) if within_stream else json.dumps({"error": body}, indent=2).encode()


def _event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
