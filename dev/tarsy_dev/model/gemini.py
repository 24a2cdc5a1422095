"""Gemini's protocol, as google-genai 3 speaks it: the pieces of `generateContent` and `streamGenerateContent`.

Requests are parsed as strictly as the real server's: unknown fields are refused, names are accepted in camel and in
snake case (the SDK mixes both), and what Gemini 3 refuses of a conversation is refused in its words: `conversation`
has those rules. An answer is streamed as it is by the real one: summaries of thoughts, text, all calls in one event,
and a last event with the finish reason, the final usage and, if there were no calls, the signature on an empty text.

Vertex AI speaks it too, at other paths and by a bearer token (`tokens`), without what mixes native tools and functions.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pydantic

from tarsy_dev import keys
from tarsy_dev.model import conversation, gemini_settings, script, signatures, tokens

name: Final = "gemini"
_METHOD = "{model}:{method:generateContent|streamGenerateContent}"
routes: Final = (
    f"/{{version:v1|v1beta}}/models/{_METHOD}",
    f"/{{version:v1|v1beta1}}/projects/{{project}}/locations/{{location}}/publishers/google/models/{_METHOD}",
)

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
_NO_TOKEN = script.HttpError(
    status=401,
    message="Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
    "valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.",
)
_KEY_FOR_TOKEN = script.HttpError(
    status=401,
    message="API keys are not supported by this API. Expected OAuth2 access token or other authentication credentials "
    "that assert a principal. See https://cloud.google.com/docs/authentication",
)
_NO_JSON = script.HttpError(status=400, message="Invalid JSON payload received. Unexpected token.")
_FLOOD = 64 * 1024  # characters in one event


def parse(
    *, path: Mapping[str, str], headers: Mapping[str, str], body: Any
) -> tuple[script.Turn, script.HttpError | None]:
    """Read a request; see `wire.Wire`."""
    is_vertex = "project" in path
    token = headers.get("Authorization", "").removeprefix("Bearer ")
    api_key = token if is_vertex else headers.get("x-goog-api-key", "")
    blank = script.Turn(model=path["model"], streaming=path["method"].startswith("stream"), api_key=api_key)
    if body is None:
        return blank, _NO_JSON
    try:
        request = gemini_settings.Request.model_validate(body)
    except pydantic.ValidationError as error:
        return blank, script.HttpError(status=400, message=gemini_settings.complaint(error))
    model_call = _turn(blank, request)
    if is_vertex and "x-goog-api-key" in headers:
        return model_call, _KEY_FOR_TOKEN
    if is_vertex and not tokens.genuine(token):
        return model_call, _NO_TOKEN
    if not api_key:
        return model_call, _NO_KEY
    refusal = conversation.refusal(request.contents) or gemini_settings.refusal(
        path["model"], request, is_vertex=is_vertex
    )
    return model_call, None if refusal is None else script.HttpError(status=400, message=refusal)


def _turn(blank: script.Turn, request: gemini_settings.Request) -> script.Turn:
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
        native_tools=tuple(native for tool in request.tools for native in tool.native),
        thinking=bool(gemini_settings.setting(request.thinking, "include_thoughts")),
        key=keys.find(system=system, first_user=first_user),
        kind=keys.kind(system=system, first_user=first_user),
        iteration=sum(message.role == "model" for message in messages),
    )


def content_type(*, streaming: bool) -> str:
    """The content type of an answer."""
    return "text/event-stream" if streaming else "application/json; charset=UTF-8"


def pieces(*, model_call: script.Turn, answer: script.Answer) -> Iterator[bytes]:
    """The body of an answer; see `wire.Wire`."""
    answer = _allowed(model_call, answer)
    identity = secrets.token_hex(8)
    usage = answer.usage or script.usage_of(model_call, answer)
    events = _events(model_call, answer)
    metadata = _metadata(answer)
    if not model_call.streaming:
        parts = [part for event in events for part in event]
        response = _response(model_call, identity, parts, finish=answer.finish, usage=usage, metadata=metadata)
        body = json.dumps(response, indent=2).encode()
        yield body[: len(body) // 2]
        yield body[len(body) // 2 :]
        return
    for parts in events[:-1]:
        early = metadata if "text" in parts[0] else {}
        so_far = script.Usage(input=usage.input, output=0)
        yield _event(_response(model_call, identity, parts, usage=so_far, metadata=early))
    yield _event(_response(model_call, identity, events[-1], finish=answer.finish, usage=usage, metadata=metadata))


def _events(model_call: script.Turn, answer: script.Answer) -> list[list[dict[str, Any]]]:
    """The parts of each event of the stream, or of the whole; the last event is the one that says that it is over."""
    size = answer.chunk if model_call.streaming else 0
    thoughts = script.cut(answer.thoughts, size) if model_call.thinking else []
    text = script.cut(answer.text, size)
    events: list[list[dict[str, Any]]] = [[{"text": piece, "thought": True}] for piece in thoughts]
    events += _native(model_call, answer)
    events += [[{"text": piece}] for piece in text]
    if answer.calls:
        events.append([_call(call, signed=answer.signed and index == 0) for index, call in enumerate(answer.calls)])
    if not events:
        return [[]]
    signature = {"thoughtSignature": _base64(signatures.issue(conversation.TEXT))} if answer.signed else {}
    if answer.calls:
        signature = {}
    if model_call.streaming:
        events.append([{"text": ""} | signature])
    elif not answer.calls:
        events[-1][0] |= signature
    return events


def _native(model_call: script.Turn, answer: script.Answer) -> list[list[dict[str, Any]]]:
    """Return what the server ran itself, as far as it is shown in parts: code always, searches besides functions."""
    events: list[list[dict[str, Any]]] = []
    if answer.searches and model_call.tools:
        called = {"id": secrets.token_hex(4), "toolType": "GOOGLE_SEARCH_WEB"}
        args = {"queries": [search.query for search in answer.searches]}
        signature = _base64(signatures.issue(signatures.of_call(called["toolType"], args)))
        events.append([{"toolCall": called | {"args": args}, "thoughtSignature": signature}])
        events.append([{"toolResponse": called | {"response": {"search_suggestions": "<div>"}}}])
    for run in answer.code:
        events.append([{"executableCode": {"language": "PYTHON", "code": run.code}}])
        outcome = "OUTCOME_FAILED" if run.failed else "OUTCOME_OK"
        events.append([{"codeExecutionResult": {"outcome": outcome, "output": run.output}}])
    return events


def _metadata(answer: script.Answer) -> dict[str, Any]:
    """Return a candidate's metadata about searches and pages that were read; Google sends it with each piece."""
    metadata: dict[str, Any] = {}
    if answer.searches:
        pages = [page for search in answer.searches for page in search.pages]
        metadata["groundingMetadata"] = {
            "webSearchQueries": [search.query for search in answer.searches],
            "groundingChunks": [{"web": {"uri": page.url, "title": page.title}} for page in pages],
            "searchEntryPoint": {"renderedContent": "<style></style>"},
        }
    if answer.read:
        status = {True: "URL_RETRIEVAL_STATUS_SUCCESS", False: "URL_RETRIEVAL_STATUS_ERROR"}
        read = [{"retrievedUrl": url, "urlRetrievalStatus": status[good]} for url, good in answer.read.items()]
        metadata["urlContextMetadata"] = {"urlMetadata": read}
    return metadata


def _allowed(model_call: script.Turn, answer: script.Answer) -> script.Answer:
    """The answer without what the request has no tools for."""
    return dataclasses.replace(
        answer,
        searches=answer.searches if "googleSearch" in model_call.native_tools else (),
        code=answer.code if "codeExecution" in model_call.native_tools else (),
        read=answer.read if "urlContext" in model_call.native_tools else {},
    )


def _call(call: script.Call, *, signed: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": call.name, "args": dict(call.args)}
    if call.id is not None:
        function["id"] = call.id or secrets.token_hex(4)
    if not signed:
        return {"functionCall": function}
    signature = signatures.issue(signatures.of_call(call.name, call.args))
    return {"functionCall": function, "thoughtSignature": _base64(signature)}


def _response(
    model_call: script.Turn,
    identity: str,
    parts: list[dict[str, Any]],
    *,
    usage: script.Usage,
    finish: script.Finish | None = None,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    content: dict[str, Any] = {"parts": parts, "role": "model"} if parts else {"role": "model"}
    candidate: dict[str, Any] = {"content": content, "index": 0} | (metadata or {})
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
        "modelVersion": model_call.model,
        "responseId": identity,
    }


def flood(*, model_call: script.Turn, megabytes: float | None) -> Iterator[bytes]:
    """The body of an answer of very much text, which does not repeat itself soon; see `wire.Wire`."""
    identity = secrets.token_hex(8)
    parts = [{"text": "".join(f"all work and no play {day:010}\n" for day in range(_FLOOD // 32))}]
    usage = script.Usage(input=1, output=0)
    if model_call.streaming:
        before = b""
        piece = _event(_response(model_call, identity, parts, usage=usage))
        after = _event(_response(model_call, identity, [{"text": ""}], usage=usage, finish="length"))
    else:
        body = json.dumps(_response(model_call, identity, parts, usage=usage, finish="length")).encode()
        piece = parts[0]["text"].encode()
        before, _, after = body.partition(piece)
    yield before
    sent = 0
    while megabytes is None or sent < megabytes * 1e6:
        yield piece
        sent += len(piece)
    yield after


def garbage(*, model_call: script.Turn, text: str) -> bytes:
    """A body around something that is not the protocol's."""
    return f"data: {text}\n\n".encode() if model_call.streaming else text.encode()


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


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
