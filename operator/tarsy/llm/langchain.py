"""Chat models of LangChain: what all of them have in common; `openai`, `xai` and others add what is their own.

Of LangChain this uses what integrations are: their class with its settings, its way of writing requests, and the chunks
that it makes of a stream. Its callbacks and tracers are left out: they take a third of the processor time and would
tell others, if the environment says so, what was asked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from langchain_core import messages as lc
from langchain_core.language_models import chat_models
from langchain_core.messages import ai
from langchain_core.messages import content as types_of_content
from langchain_core.outputs import ChatGenerationChunk

from tarsy.llm import failures, http, names, provider
from tarsy.transcript import messages, ports

_ARGUMENTS_MAX = 4 * 1024 * 1024
"""The limit of characters in the calls of one answer, which are not shown before they are complete."""
_BLOCKS_MAX = 64 * 1024 * 1024
"""Characters of the blocks of one answer, which go back to its provider."""
_PIECE = 64
"""Characters that each piece of a block, and each call, counts at least: it takes memory, however short it is."""
_REFUSED = frozenset(
    {"content_filter", "safety", "refusal", "recitation", "malformed_function_call", "error", "failed", "cancelled"}
)
"""How a model says that it stopped without an answer."""
_GROWING = frozenset(
    {"text", "thinking", "signature", "arguments", "partial_json", "input_json", "refusal", "reasoning"}
)
"""The fields of a content block that arrive in pieces."""
_FIRST = frozenset({"type"})
"""The fields that only the first piece of a block sets; Anthropic's later pieces have types of their own."""


def _parsed(s: str, *, strict: bool = False) -> Any:
    """JSON that is whole; None where it is not."""
    try:
        return json.loads(s, strict=strict)
    except ValueError:
        return None


# LangChain parses each piece of a call's arguments in advance, which is not needed here: it takes the last
# character away until the rest is JSON. For a piece of 64 KB that is none the event loop would stand still for seconds.
ai.parse_partial_json = _parsed  # type: ignore[attr-defined]
# It gathers these names from its own types anew for each block of each message: half of a call of the responses API.
types_of_content._get_data_content_block_types = functools.cache(types_of_content._get_data_content_block_types)


@dataclass
class Block:
    """A block of an answer's content, put together from its pieces."""

    fields: dict[str, Any] = field(default_factory=dict)
    _growing: dict[str, list[str]] = field(default_factory=dict)
    _lists: dict[str, dict[object, Block]] = field(default_factory=dict)

    def add(self, piece: dict[str, Any]) -> None:
        """Take a piece: text goes on, parts of lists go on by their `index`, all else is what was said last."""
        for key, value in piece.items():
            if key == "index" or value is None:
                continue
            if key in _GROWING and isinstance(value, str):
                self._growing.setdefault(key, []).append(value)
            elif isinstance(value, list):
                parts = self._lists.setdefault(key, {})
                for part in value:
                    if not isinstance(part, dict):
                        self.fields.setdefault(key, []).append(part)
                        continue
                    parts.setdefault(part.get("index", (len(parts),)), Block()).add(part)
            elif (value != "" and key not in _FIRST) or key not in self.fields:
                self.fields[key] = value

    def whole(self) -> dict[str, Any]:
        """The block as JSON, without the places of its parts."""
        parts = {key: [*self.fields.get(key, ()), *(p.whole() for p in of.values())] for key, of in self._lists.items()}
        return {**self.fields, **{key: "".join(pieces) for key, pieces in self._growing.items()}, **parts}


@dataclass
class _Call:
    """A tool call as it comes in."""

    name: str = ""
    id: str = ""
    pieces: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """The parts of an answer that have arrived."""

    blocks: dict[object, Block] = field(default_factory=dict)
    """Its content, where it is more than text."""
    calls: dict[object, _Call] = field(default_factory=dict)
    finish: str | None = None
    size: int = 0
    """Characters of its calls."""
    kept: int = 0
    """Characters of its blocks."""

    def add_blocks(self, content: Sequence[Any]) -> None:
        """Take pieces of the content; those without a place are blocks of their own."""
        for piece in content:
            if isinstance(piece, dict):
                self.kept += _PIECE + _characters(piece)
                if self.kept > _BLOCKS_MAX:
                    raise provider.RejectedError(f"the answer is longer than {_BLOCKS_MAX} characters")
                self.blocks.setdefault(piece.get("index", (len(self.blocks),)), Block()).add(piece)

    def add_calls(self, chunks: Sequence[Any]) -> None:
        """Take pieces of calls: those without a place go on with the last call, unless they name another."""
        for chunk in chunks:
            key = chunk.get("index")
            if key is None:
                begins = chunk.get("name") or chunk.get("id") or not self.calls
                key = (len(self.calls),) if begins else next(reversed(self.calls))
            if key not in self.calls:
                self.size += _PIECE
            call = self.calls.setdefault(key, _Call())
            call.name = call.name or chunk.get("name") or ""
            call.id = call.id or chunk.get("id") or ""
            if piece := chunk.get("args"):
                call.pieces.append(piece)
                self.size += len(piece)
        if self.size > _ARGUMENTS_MAX:
            raise provider.RejectedError(f"the answer's calls are longer than {_ARGUMENTS_MAX} characters")

    def is_whole(self) -> bool:
        """Whether the model came to its end; a RejectedError where that is none."""
        if self.finish is not None and self.finish.lower() in _REFUSED:
            raise provider.RejectedError(f"the model stopped with {self.finish}", code=self.finish)
        if self.finish == "tool_calls" and not self.calls:
            raise provider.RejectedError("the model stopped to call tools, and called none")
        return self.finish is not None

    @property
    def call_ids(self) -> list[str]:
        """The provider's own ids of the calls."""
        return [call.id for call in self.calls.values()]


class ChatModel:
    """One chat model of LangChain's. What is a provider's own is in the methods below `stream`."""

    keeps_blocks = False
    """Whether the provider wants its answers' content back as it was."""

    def __init__(self, name: str, chat: chat_models.BaseChatModel, *, model: str, secret: str = "") -> None:
        """`name` is the provider's in the platform file: only its own state is sent back. `secret` is never told."""
        self.model = model
        self.name = name
        self.chat = chat
        self._secret = secret

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        answer = Answer()
        try:
            chunks = self.chunks(list(self._conversation(request.messages)), request)
            async with http.closing(), aclosing(chunks):
                async for chunk in chunks:
                    for event in self._events(chunk, answer):
                        yield event
            if answer.is_whole():
                for event in self._last(answer, request):
                    yield event
        except provider.ProviderError:
            raise
        except Exception as error:
            raise self.failed(error) from error

    async def close(self) -> None:
        """Close nothing: the connections are their maker's."""

    def chunks(self, conversation: list[Any], request: ports.Request) -> AsyncGenerator[ChatGenerationChunk]:
        """Ask, and stream what LangChain makes of the answer; the messages are those of the methods below."""
        # What `astream` stands on, and what integrations implement: see the module.
        chunks: Any = self.chat._astream(conversation, **self.options(request))
        return chunks  # type: ignore[no-any-return]

    def options(self, request: ports.Request) -> dict[str, Any]:
        """Return the options beside the conversation."""
        tools = self.tools(request)
        return {"tools": tools} if tools else {}

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """The tools as they are declared."""
        return [
            {
                "type": "function",
                "function": {
                    "name": names.wire_name(names.wire(spec.name)),
                    "description": spec.description,
                    "parameters": spec.parameters or {"type": "object", "properties": {}},
                },
            }
            for spec in request.tools
        ]

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Why the model stopped, if `chunk` says so."""
        for metadata in (chunk.generation_info, chunk.message.response_metadata):
            for key in ("finish_reason", "stop_reason", "done_reason"):
                if metadata and (reason := metadata.get(key)):
                    return str(reason)
        return None

    def ended(self, answer: Answer) -> Iterator[provider.StreamEvent]:  # noqa: ARG002 - for those with tools of their own
        """Yield the other results of a complete answer: those of the provider's own tools."""
        yield from ()

    def state(self, answer: Answer) -> Any:
        """Return the state that the provider wants back with this answer, as JSON."""
        return {"calls": answer.call_ids} if are_ids(answer.call_ids) and answer.calls else None

    def opened(self, text: str) -> Any:
        """Return the system prompt's message."""
        return lc.SystemMessage(text)

    def user_message(self, text: str) -> Any:
        """Return a user's message."""
        return lc.HumanMessage(text)

    def assistant_message(self, message: messages.Message, state: Any) -> tuple[Any, Sequence[str]] | None:
        """An answer of this provider's as it goes back, and the ids of its calls; None if `state` is not `state`'s."""
        match state:
            case {"calls": list(ids)} if len(ids) == len(message.calls) and are_ids(ids):
                return self.written(message, ids), ids
            case _:
                return None

    def written(self, message: messages.Message, ids: Sequence[str]) -> Any:
        """An answer as its text and its calls, which go by `ids`."""
        calls = [
            {"type": "tool_call", "name": name, "args": arguments(call) or {}, "id": call_id}
            for call, name, call_id in zip(message.calls, call_names(message), ids, strict=True)
        ]
        return lc.AIMessage(message.text, tool_calls=calls)

    def answered(self, message: messages.Message, call_id: str) -> Any:
        """A tool's result."""
        status: Any = "error" if message.failed else "success"
        return lc.ToolMessage(result(message), tool_call_id=call_id, status=status)

    def failed(self, error: Exception) -> provider.ProviderError:
        """Return our own error for an exception of LangChain or of the SDK below."""
        return failures.translated(error, name=self.name, secret=self._secret)

    def _conversation(self, conversation: Sequence[messages.Message]) -> Iterator[Any]:
        if system := "\n\n".join(message.text for message in conversation if message.role == "system"):
            yield self.opened(system)
        ids: dict[str, str] = {}
        for message in conversation:
            match message.role:
                case "user":
                    yield self.user_message(message.text)
                case "assistant":
                    state = message.provider_state
                    if state is not None and state.provider != self.name:
                        state = None
                    own = None if state is None else self.assistant_message(message, state.data)
                    called = [wire_id(call) for call in message.calls]
                    sent, wire = own or (self.written(message, called), called)
                    ids = {call.id: sent_id for call, sent_id in zip(message.calls, wire, strict=True)}
                    yield sent
                case "tool":
                    yield self.answered(message, ids[message.call_id])

    def _events(self, chunk: ChatGenerationChunk, answer: Answer) -> Iterator[provider.StreamEvent]:
        """Yield the events of a chunk; an empty text if it shows nothing, because that is no silence."""
        message: Any = chunk.message
        content = message.content
        if isinstance(content, str):
            yield provider.Text(content)
        else:
            yield from map(content_event, content)
            if self.keeps_blocks:
                answer.add_blocks(content)
        if thoughts := message.additional_kwargs.get("reasoning_content"):
            yield provider.Thinking(str(thoughts))
        if calls := _call_chunks(message):
            answer.add_calls(calls)
        if message.usage_metadata:
            yield provider.Usage(usage(message.usage_metadata))
        answer.finish = answer.finish or self.finish(chunk)

    def _last(self, answer: Answer, request: ports.Request) -> Iterator[provider.StreamEvent]:
        """Yield the events of a complete answer: its calls, its state and its usage."""
        yield from self.ended(answer)
        name_table = names.table(spec.name for spec in request.tools)
        for call in answer.calls.values():
            yield provider.Call(name_table.get(call.name, names.inner(call.name)), "".join(call.pieces) or "{}")
        yield provider.Finish(messages.well_formed_json(self.state(answer)))  # what cannot be sent could not go back


def content_event(block: Any) -> provider.StreamEvent:
    """Return the text or thought of a piece of content."""
    match block:
        case str(text) | {"type": "text", "text": str(text)}:
            return provider.Text(text)
        case {"type": "thinking", "thinking": str(text)} | {"type": "reasoning", "reasoning": str(text)}:
            return provider.Thinking(text)
        case {"type": "reasoning", "summary": list(parts)}:
            return provider.Thinking("".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)))
        case _:
            return provider.Text("")


def result(message: messages.Message) -> str:
    """A tool's result with the reference by which the model may name it; providers have no field for that."""
    return f"[tool {message.call_id}]{' failed' if message.failed else ''}\n{message.text}"


def wire_id(call: messages.ToolCall) -> str:
    """Our id as every provider takes it."""
    return names.wire_name(f"call_{call.id.replace('.', '_')}")


def call_names(message: messages.Message) -> list[str]:
    """The names of a message's calls as they are sent; a model may have called what there is not."""
    return [names.wire_name(names.wire(call.name)) for call in message.calls]


def arguments(call: messages.ToolCall) -> dict[str, Any] | None:
    """Its arguments; None where they are no object, as its result will have told."""
    try:
        loaded = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(loaded, dict) or not messages.is_plain_json(loaded):
        return None
    return messages.well_formed_json(loaded)  # type: ignore[no-any-return]


def usage(reported: Any) -> messages.Usage:
    """Token counts, the thinking apart: what providers count as output holds it, or stands beside it."""
    details = reported.get("output_token_details") or {}
    thinking = sum(count or 0 for key, count in details.items() if key.endswith("reasoning"))
    asked, output, total = (reported.get(f"{of}_tokens") or 0 for of in ("input", "output", "total"))
    output = max(0, (total - asked if total > asked else output) - thinking)
    return messages.Usage(
        input_tokens=asked,
        output_tokens=output,
        thinking_tokens=thinking,
        total_tokens=total or asked + output + thinking,
    )


def _call_chunks(message: Any) -> Sequence[Any]:
    """The pieces of calls in a message, which is one of pieces or a whole one."""
    if pieces := getattr(message, "tool_call_chunks", None):
        return pieces  # type: ignore[no-any-return]
    if isinstance(message, lc.AIMessageChunk) and not message.tool_calls:
        return ()
    chunks = [{**call, "args": json.dumps(call["args"], ensure_ascii=False)} for call in message.tool_calls]
    return [*chunks, *message.invalid_tool_calls]


def _characters(piece: dict[str, Any]) -> int:
    """The characters of a piece of a block; lists and objects as JSON has them."""
    strings = sum(len(value) for value in piece.values() if isinstance(value, str))
    return strings + sum(len(json.dumps(value)) for value in piece.values() if isinstance(value, list | dict))


def are_ids(ids: Sequence[object]) -> bool:
    """Whether results can name their calls by `ids`."""
    return len(set(map(str, ids))) == len(ids) and all(isinstance(i, str) and names.wire_name(i) == i for i in ids)
