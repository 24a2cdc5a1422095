"""OpenAI's responses API, as its SDK speaks it; `openai_items` has the rules of its conversations.

A model thinks before it answers: a reasoning item, whose content is encrypted where the request asks for that. Nothing
is stored, so that what names something that would be is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import pydantic

from tarsy_dev.model import openai_items, script, signatures
from tarsy_dev.model import openai_shapes as shapes

name: Final = "openai responses"
routes: Final = ("/v1/responses",)

_ENCRYPTED = "reasoning.encrypted_content"
"""A word in `script.Turn.asked`."""


class _FunctionTool(shapes.Function):
    type: Literal["function"]


class _SearchTool(shapes.Wire):
    type: Literal["web_search", "web_search_preview"]


class _Thinking(shapes.Wire):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class _Request(shapes.Wire):
    model: str
    input: str | list[openai_items.Item]
    instructions: str | None = None
    stream: bool = False
    store: bool = True
    include: list[str] = []
    reasoning: _Thinking | None = None
    tools: list[Annotated[_FunctionTool | _SearchTool, pydantic.Field(discriminator="type")]] = []
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: dict[str, Any] | None = None
    user: str | None = None

    @property
    def functions(self) -> list[_FunctionTool]:
        return [tool for tool in self.tools if isinstance(tool, _FunctionTool)]


def parse(
    *, path: Mapping[str, str], headers: Mapping[str, str], body: Any
) -> tuple[script.Turn, script.HttpError | None]:
    """Read a request; see `wire.Wire`."""
    del path
    blank = script.Turn(model="", api_key=shapes.api_key(headers))
    if body is None:
        return blank, shapes.NO_JSON
    try:
        request = _Request.model_validate(_typed(body))
    except pydantic.ValidationError as error:
        return blank, shapes.complaint(error)
    model_call = dataclasses.replace(
        blank,
        model=request.model,
        streaming=request.stream,
        thinking=bool(request.reasoning and request.reasoning.summary),
        asked=frozenset(request.include),
        tools=tuple(
            script.Tool(name=tool.name, description=tool.description or "", schema=tool.parameters or {})
            for tool in request.functions
        ),
    )
    items = (
        [openai_items.Message(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    )
    names = [tool.name for tool in request.functions]
    refusal = (
        shapes.refused_key(model_call.api_key)
        or shapes.refused_names("tools[{}].name", names)
        or openai_items.refusal(items)
    )
    if refusal:
        return model_call, refusal
    system = (request.instructions or "") + openai_items.system(items)
    return shapes.with_conversation(model_call, system, shapes.joined(openai_items.messages(items))), None


def _typed(body: Any) -> Any:
    """The request with its messages' type, which may be left out."""
    items = body.get("input") if isinstance(body, dict) else None
    if not isinstance(items, list):
        return body
    typed = [{"type": "message"} | item if isinstance(item, dict) and "role" in item else item for item in items]
    return body | {"input": typed}


def content_type(*, streaming: bool) -> str:
    """The content type of an answer."""
    return "text/event-stream; charset=utf-8" if streaming else "application/json"


def pieces(*, model_call: script.Turn, answer: script.Answer) -> Iterator[bytes]:
    """The body of an answer; see `wire.Wire`."""
    items = _items(model_call, answer)
    if not model_call.streaming:
        body = json.dumps(_response(model_call, answer, items)).encode()
        yield body[: len(body) // 2]
        yield body[len(body) // 2 :]
        return
    begun = {**_response(model_call, None, []), "id": (identity := f"resp_{secrets.token_hex(16)}")}
    numbers = iter(range(1_000_000_000))

    def event(kind: str, **fields: Any) -> bytes:
        return _event(kind, next(numbers), fields)

    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for position, item in enumerate(items):
        for kind, fields in _streamed(item, answer.chunk):
            yield event(kind, output_index=position, **fields)
    ended = _response(model_call, answer, items) | {"id": identity}
    yield event(f"response.{ended['status']}", response=ended)


def _items(model_call: script.Turn, answer: script.Answer) -> list[dict[str, Any]]:
    """Return the items of the answer."""
    token = secrets.token_hex(8)
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{token}_{index}",
            "call_id": call.id or f"call_{secrets.token_hex(12)}",
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for index, call in enumerate(answer.calls)
    ]
    items: list[dict[str, Any]] = []
    if answer.signed and _ENCRYPTED in model_call.asked and (answer.text or calls):
        thoughts = answer.thoughts if model_call.thinking else ""
        vouched = openai_items.vouched(f"rs_{token}", [call["call_id"] for call in calls])
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{token}",
                "summary": [{"type": "summary_text", "text": thoughts}] if thoughts else [],
                "encrypted_content": base64.b64encode(signatures.issue(vouched)).decode(),
            }
        )
    else:
        for call in calls:
            call["id"] = f"fc_{secrets.token_hex(12)}"
    if answer.text:
        text = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{secrets.token_hex(12)}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    return [*items, *calls]


def _streamed(item: dict[str, Any], chunk: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of one item, without their places in the stream."""
    added = {**item, "status": "in_progress"}
    of = {"item_id": item["id"]}
    match item["type"]:
        case "message":
            yield "response.output_item.added", {"item": added | {"content": []}}
            yield from _text(item["content"][0], of | {"content_index": 0}, chunk)
        case "function_call":
            yield "response.output_item.added", {"item": added | {"arguments": ""}}
            for piece in shapes.fragments(item["arguments"]):
                yield "response.function_call_arguments.delta", of | {"delta": piece}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", of | done
        case "reasoning":
            yield "response.output_item.added", {"item": item | {"summary": [], "encrypted_content": "gAAA"}}
            for index, part in enumerate(item["summary"]):
                yield from _summary(part["text"], of | {"summary_index": index}, chunk)
    yield "response.output_item.done", {"item": item}


def _text(part: dict[str, Any], of: dict[str, Any], chunk: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.content_part.added", of | {"part": part | {"text": ""}}
    for piece in shapes.cut(part["text"], chunk):
        yield "response.output_text.delta", of | {"delta": piece, "logprobs": []}
    yield "response.output_text.done", of | {"text": part["text"], "logprobs": []}
    yield "response.content_part.done", of | {"part": part}


def _summary(text: str, of: dict[str, Any], chunk: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.reasoning_summary_part.added", of | {"part": {"type": "summary_text", "text": ""}}
    for piece in shapes.cut(text, chunk):
        yield "response.reasoning_summary_text.delta", of | {"delta": piece}
    yield "response.reasoning_summary_text.done", of | {"text": text}
    yield "response.reasoning_summary_part.done", of | {"part": {"type": "summary_text", "text": text}}


def _event(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    """An event, checked against the SDK's type of it."""
    from openai.types import responses

    checks: dict[str, type[pydantic.BaseModel]] = {
        "response.created": responses.ResponseCreatedEvent,
        "response.in_progress": responses.ResponseInProgressEvent,
        "response.completed": responses.ResponseCompletedEvent,
        "response.incomplete": responses.ResponseIncompleteEvent,
        "response.output_item.added": responses.ResponseOutputItemAddedEvent,
        "response.output_item.done": responses.ResponseOutputItemDoneEvent,
        "response.content_part.added": responses.ResponseContentPartAddedEvent,
        "response.content_part.done": responses.ResponseContentPartDoneEvent,
        "response.output_text.delta": responses.ResponseTextDeltaEvent,
        "response.output_text.done": responses.ResponseTextDoneEvent,
        "response.function_call_arguments.delta": responses.ResponseFunctionCallArgumentsDeltaEvent,
        "response.function_call_arguments.done": responses.ResponseFunctionCallArgumentsDoneEvent,
        "response.reasoning_summary_part.added": responses.ResponseReasoningSummaryPartAddedEvent,
        "response.reasoning_summary_part.done": responses.ResponseReasoningSummaryPartDoneEvent,
        "response.reasoning_summary_text.delta": responses.ResponseReasoningSummaryTextDeltaEvent,
        "response.reasoning_summary_text.done": responses.ResponseReasoningSummaryTextDoneEvent,
        "error": responses.ResponseErrorEvent,
    }
    payload = {"type": kind, "sequence_number": number, **fields}
    checks[kind].model_validate(payload)
    return shapes.event(payload, kind)


def _response(model_call: script.Turn, answer: script.Answer | None, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response as a whole; without an answer one that has begun."""
    response: dict[str, Any] = {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model_call.model,
        "output": list(items),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": False,
        "usage": None,
    }
    if answer is None:
        return response
    usage = answer.usage or script.usage_of(model_call, answer)
    reasons = {"length": "max_output_tokens", "safety": "content_filter", "malformed call": "content_filter"}
    reason = reasons.get(answer.finish)
    return response | {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.output + usage.thinking,
            "output_tokens_details": {"reasoning_tokens": usage.thinking},
            "total_tokens": usage.input + usage.output + usage.thinking,
        },
    }


def flood(*, model_call: script.Turn, megabytes: float | None) -> Iterator[bytes]:
    """The body of an answer of very much text; see `wire.Wire`."""
    text = shapes.flood_text()
    events = list(pieces(model_call=model_call, answer=script.Answer(text="flood", finish="length", signed=False)))
    before, after = events, []
    if model_call.streaming:
        position = next(index for index, event in enumerate(events) if b"output_text.delta" in event)
        piece = events[position].replace(b"flood", json.dumps(text)[1:-1].encode())
        before, after = events[:position], events[position + 1 :]
    else:
        start, _, end = b"".join(events).partition(b"flood")
        before, piece, after = [start], text.replace("\n", " ").encode(), [end]
    yield from shapes.flooded(before, piece, after, megabytes)


def garbage(*, model_call: script.Turn, text: str) -> bytes:
    """A body around something that is not the protocol's."""
    return f"data: {text}\n\n".encode() if model_call.streaming else text.encode()


def error(error: script.HttpError, *, within_stream: bool) -> bytes:
    """An error in OpenAI's shape; see `wire.Wire`."""
    body = shapes.error_body(error)
    if not within_stream:
        return json.dumps({"error": body}, indent=2).encode()
    return _event("error", 0, {field: body[field] for field in ("code", "message", "param")})
