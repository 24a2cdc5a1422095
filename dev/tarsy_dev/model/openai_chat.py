"""OpenAI's chat completions, as its SDK speaks them; and as xAI does, whose models are called grok.

A model of OpenAI's keeps its thoughts to itself and counts them as output; one of xAI's shows them, as
`reasoning_content`, and counts them apart. Of a conversation is refused what the real server refuses, in its words.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import pydantic

from tarsy_dev.model import openai_shapes as shapes
from tarsy_dev.model import script

name: Final = "openai chat"
routes: Final = ("/v1/chat/completions",)

_FINISH: dict[script.Finish, str] = {
    "stop": "stop",
    "length": "length",
    "safety": "content_filter",
    "malformed call": "content_filter",
}
_USAGE = "usage"
"""A word in `script.Turn.asked`: the counts, in a chunk of their own at the end of the stream."""


class _Text(shapes.Wire):
    type: Literal["text"]
    text: str


class _Called(shapes.Wire):
    name: str
    arguments: str


class _Call(shapes.Wire):
    id: str
    type: Literal["function"]
    function: _Called


class _Message(shapes.Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)


class _Tool(shapes.Wire):
    type: Literal["function"]
    function: shapes.Function


class _StreamOptions(shapes.Wire):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Request(shapes.Wire):
    model: str
    messages: list[_Message]
    stream: bool = False
    stream_options: _StreamOptions | None = None
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: Any = None
    user: str | None = None


def parse(
    *, path: Mapping[str, str], headers: Mapping[str, str], body: Any
) -> tuple[script.Turn, script.HttpError | None]:
    """Read a request; see `wire.Wire`."""
    del path
    blank = script.Turn(model="", api_key=shapes.api_key(headers))
    if body is None:
        return blank, shapes.NO_JSON
    try:
        request = _Request.model_validate(body)
    except pydantic.ValidationError as error:
        return blank, shapes.complaint(error)
    options = request.stream_options
    model_call = dataclasses.replace(
        blank,
        model=request.model,
        streaming=request.stream,
        thinking=_shows_thoughts(request.model),
        asked=frozenset({_USAGE} if options and options.include_usage else ()),
        tools=tuple(
            script.Tool(
                name=tool.function.name,
                description=tool.function.description or "",
                schema=tool.function.parameters or {},
            )
            for tool in request.tools or ()
        ),
    )
    refusal = shapes.refused_key(model_call.api_key) or _refused(request)
    if refusal:
        return model_call, refusal
    system = "".join(message.text for message in request.messages if message.role in ("system", "developer"))
    return shapes.with_conversation(model_call, system, shapes.joined(_messages(request.messages))), None


def _shows_thoughts(model: str) -> bool:
    return model.startswith("grok")


def _messages(messages: Sequence[_Message]) -> Iterator[script.Message]:
    names: dict[str, str] = {}
    for message in messages:
        match message.role:
            case "user":
                yield script.Message(role="user", text=message.text)
            case "assistant":
                calls = message.tool_calls or ()
                names = {call.id: call.function.name for call in calls}
                called = tuple(shapes.call(c.function.name, c.function.arguments, c.id) for c in calls)
                yield script.Message(role="model", text=message.text, calls=called)
            case "tool":
                identity = message.tool_call_id or ""
                yield script.Message(role="user", results=(script.result(names[identity], identity, message.text),))


def _refused(request: _Request) -> script.HttpError | None:
    if not request.messages:
        return shapes.refused("Invalid 'messages': empty array. Expected an array with minimum length 1.")
    if request.stream_options and not request.stream:
        return shapes.refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    names = [tool.function.name for tool in request.tools or ()]
    return shapes.refused_names("tools[{}].function.name", names) or _refused_conversation(request.messages)


def _refused_conversation(messages: Sequence[_Message]) -> script.HttpError | None:
    """Results follow their calls at once, one for each, and name them by their ids."""
    open_calls: list[str] = []
    asked: list[str] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in asked:
                return shapes.refused(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'."
                )
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            break
        if refusal := _refused_message(index, message):
            return refusal
        asked = [call.id for call in message.tool_calls or ()]
        open_calls = list(asked)
        if len(set(asked)) != len(asked):
            return shapes.refused(f"Duplicate value for 'tool_call_id' of {asked[0]} in message[{index}]")
    if open_calls:
        return shapes.refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
        )
    return None


def _refused_message(index: int, message: _Message) -> script.HttpError | None:
    calls = message.tool_calls
    if calls is not None and message.role != "assistant":
        return shapes.refused(f"Unknown parameter: 'messages[{index}].tool_calls'.", "unknown_parameter")
    if calls == []:
        return shapes.refused(f"Invalid 'messages[{index}].tool_calls': empty array.", "empty_array")
    if message.content is None and not calls:
        return shapes.refused(f"Invalid value for 'content': expected a string, got null. (messages[{index}])")
    names = [call.function.name for call in calls or ()]
    if refusal := shapes.refused_names(f"messages[{index}].tool_calls[{{}}].function.name", names):
        return refusal
    refusals = (shapes.refused_arguments(call.function.arguments) for call in calls or ())
    return next(filter(None, refusals), None)


def content_type(*, streaming: bool) -> str:
    """The content type of an answer."""
    return "text/event-stream; charset=utf-8" if streaming else "application/json"


def pieces(*, model_call: script.Turn, answer: script.Answer) -> Iterator[bytes]:
    """The body of an answer; see `wire.Wire`."""
    if not model_call.streaming:
        body = json.dumps(_completion(model_call, answer)).encode()
        yield body[: len(body) // 2]
        yield body[len(body) // 2 :]
        return
    head = _head(model_call)
    role: dict[str, Any] = {"role": "assistant", "content": ""}
    yield _chunk(head, role)
    for delta in _deltas(model_call, answer):
        yield _chunk(head, delta)
    yield _chunk(head, {}, finish=_finish(answer))
    if _USAGE in model_call.asked:
        yield _last(head, _usage(model_call, answer))
    yield b"data: [DONE]\n\n"


def _deltas(model_call: script.Turn, answer: script.Answer) -> Iterator[dict[str, Any]]:
    if model_call.thinking:
        for piece in shapes.cut(answer.thoughts, answer.chunk):
            yield {"reasoning_content": piece}
    for piece in shapes.cut(answer.text, answer.chunk):
        yield {"content": piece}
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": _id(call), "type": "function", "function": function}]}
    longest = max((len(shapes.fragments(call.arguments)) for call in answer.calls), default=0)
    for position in range(longest):  # by turns: a client has to tell them apart by their index
        for index, call in enumerate(answer.calls):
            if position < len(parts := shapes.fragments(call.arguments)):
                yield {"tool_calls": [{"index": index, "function": {"arguments": parts[position]}}]}


def _id(call: script.Call) -> str:
    return call.id or f"call_{secrets.token_hex(12)}"


def _finish(answer: script.Answer) -> str:
    return "tool_calls" if answer.calls and answer.finish == "stop" else _FINISH[answer.finish]


def _head(model_call: script.Turn) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model_call.model,
        "system_fingerprint": "fp_scripted",
    }


def _chunk(head: Mapping[str, Any], delta: dict[str, Any], *, finish: str | None = None) -> bytes:
    from openai.types import chat

    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    payload = {**head, "choices": [choice]}
    chat.ChatCompletionChunk.model_validate(payload)
    return shapes.event(payload)


def _last(head: Mapping[str, Any], usage: dict[str, Any]) -> bytes:
    from openai.types import chat

    payload = {**head, "choices": [], "usage": usage}
    chat.ChatCompletionChunk.model_validate(payload)
    return shapes.event(payload)


def _usage(model_call: script.Turn, answer: script.Answer) -> dict[str, Any]:
    usage = answer.usage or script.usage_of(model_call, answer)
    output_tokens = usage.output if model_call.thinking else usage.output + usage.thinking
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": output_tokens,
        "total_tokens": usage.input + usage.output + usage.thinking,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking, "audio_tokens": 0},
    }


def _completion(model_call: script.Turn, answer: script.Answer) -> dict[str, Any]:
    from openai.types import chat

    calls = [
        {"id": _id(call), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    message = {"role": "assistant", "content": answer.text or None, "refusal": None}
    payload = {
        **_head(model_call),
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": message
                | ({"tool_calls": calls} if calls else {})
                | ({"reasoning_content": answer.thoughts} if model_call.thinking and answer.thoughts else {}),
                "logprobs": None,
                "finish_reason": _finish(answer),
            }
        ],
        "usage": _usage(model_call, answer),
    }
    chat.ChatCompletion.model_validate(payload)
    return payload


def flood(*, model_call: script.Turn, megabytes: float | None) -> Iterator[bytes]:
    """The body of an answer of very much text; see `wire.Wire`."""
    text = shapes.flood_text()
    if model_call.streaming:
        head = _head(model_call)
        piece = _chunk(head, {"content": text})
        ends = [_chunk(head, {}, finish="length"), b"data: [DONE]\n\n"]
        yield from shapes.flooded([_chunk(head, {"role": "assistant", "content": ""})], piece, ends, megabytes)
        return
    body = json.dumps(_completion(model_call, script.Answer(text="flood", finish="length"))).encode()
    before, _, after = body.partition(b"flood")
    yield from shapes.flooded([before], text.replace("\n", " ").encode(), [after], megabytes)


def garbage(*, model_call: script.Turn, text: str) -> bytes:
    """A body around something that is not the protocol's."""
    return f"data: {text}\n\n".encode() if model_call.streaming else text.encode()


def error(error: script.HttpError, *, within_stream: bool) -> bytes:
    """An error in OpenAI's shape; see `wire.Wire`."""
    body = {"error": shapes.error_body(error)}
    return shapes.event(body) if within_stream else json.dumps(body, indent=2).encode()
