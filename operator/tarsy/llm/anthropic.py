"""Claude through LangChain's ChatAnthropic.

The blocks of each answer are its provider state: thoughts are valid only if their blocks go back complete and
unchanged, and so are the pages that a search has found.

Source: Claude API documentation, "Extended thinking", "Adaptive thinking", "Web search tool", "Handling stop reasons",
"Prompt caching".
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import aiohttp
import anthropic
import langchain_anthropic
from langchain_core.messages import ai
from langchain_core.outputs import ChatGenerationChunk

from tarsy.config.model import providers
from tarsy.llm import http, langchain, provider, tool_calls
from tarsy.llm.langchain_answers import Answer
from tarsy.transcript import messages, ports

JSON: TypeAlias = dict[str, Any]

ADDRESS = "https://api.anthropic.com"
"""The SDK's own default, unless the environment says otherwise."""
PAUSES = 10
"""The limit of pauses of one answer for the provider's own tools, after each of which it is asked to continue."""
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_CACHED = {"cache_control": {"type": "ephemeral"}}
_THOUGHTS = ("thinking", "redacted_thinking")
_NOTHING = "(nothing)"
"""Sent for a blank text: a request with one is refused whole."""
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The form of an argument's name; a request with any other is refused whole."""
_SENT_FIELDS = {
    "text": ("type", "text", "citations"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input", "caller"),
    "server_tool_use": ("type", "id", "name", "input"),
    "web_search_tool_result": ("type", "tool_use_id", "content"),
}
"""The fields of each kind of block that go back to Claude; a request with any other field is refused whole."""
_COMBINATIONS = ("oneOf", "allOf", "anyOf")
"""The keywords that the API refuses at the root of a tool's schema."""


class ClaudeChat(langchain_anthropic.ChatAnthropic):
    """LangChain's class without the SDK's objects for requests and events, which take 0.5 ms of a call's 2.6."""

    def _make_message_chunk_from_anthropic_event(self, event: Any, **options: Any) -> tuple[Any, Any]:
        chunk, start = super()._make_message_chunk_from_anthropic_event(event, **options)
        if chunk and event.type == "message_start":
            chunk.response_metadata["id"] = event.message.id
        return chunk, start

    async def _acreate(self, payload: JSON) -> Events:
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return await self._async_client.post(
            "/v1/messages", content=body, cast_to=object, stream=True, stream_cls=Events
        )


class Events(anthropic.AsyncStream[object]):
    """The events of a stream, as LangChain reads them."""

    def parse(self) -> Events:
        """Return the stream itself: LangChain asks for the raw response first, and then for this."""
        return self

    async def __aiter__(self) -> AsyncIterator[object]:
        async for event in super().__aiter__():
            yield Event(event) if isinstance(event, dict) else event


class Event(JSON):
    """JSON that is read like the SDK's objects: a missing attribute is None."""

    def __getattr__(self, name: str) -> Any:
        value = self.get(name)
        return Event(value) if type(value) is dict else value

    def model_dump(self, **_: Any) -> JSON:
        """Return the event as JSON."""
        return dict(self)


def build(
    name: str, settings: providers.AnthropicProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """Build the provider `name` over `session`, which stays the caller's."""
    address = settings.base_url or ADDRESS
    chat = ClaudeChat(
        model=settings.model,
        api_key=key,
        base_url=address,
        max_retries=0,
        max_tokens=settings.max_output_tokens,
    )
    claude = Claude(name, chat, settings=settings, secret=key or "")
    try:
        chat._assert_valid_model_configuration(claude.thinking_options())
    except ValueError as error:
        raise provider.UnusableError(f"thinking: {error}") from error
    vars(chat)["_async_client"] = anthropic.AsyncAnthropic(
        api_key=key,
        base_url=address,
        max_retries=0,
        default_headers={"X-Api-Key": key or ""},  # besides the SDK's own: most other servers read only this
        http_client=http.client(address, session),
        open_telemetry=False,
    )
    return claude


class Claude(langchain.ChatModel):
    """One model of Anthropic's, or of a server with its protocol."""

    keeps_blocks = True

    def __init__(
        self,
        name: str,
        chat: langchain_anthropic.ChatAnthropic,
        *,
        settings: providers.AnthropicProvider,
        secret: str,
    ) -> None:
        super().__init__(name, chat, model=settings.model, secret=secret)
        self._thinking = settings.thinking

    async def chunks(self, conversation: list[JSON], request: ports.Request) -> AsyncGenerator[ChatGenerationChunk]:
        """Stream one answer; after each pause for the provider's own tools, ask it to continue."""
        system, sent = _system_and_turns(conversation, cached=_is_continued(request))
        pieces: list[Any] = []
        spent: ai.UsageMetadata | None = None
        for _ in range(PAUSES):
            paused = False
            so_far = Answer()
            so_far.add_blocks(pieces)
            before = len(so_far.blocks)
            turns: Any = [*sent, _unfinished(_blocks(so_far))] if before else sent
            options = {**self.options(request), **self.thinking_options(sent)}
            streamed: Any = self.chat._astream(turns, system=system, **options)
            async with aclosing(streamed) as received:
                async for chunk in received:
                    message: Any = chunk.message
                    for piece in (*message.content, *message.tool_call_chunks) if before else ():
                        piece["index"] += before  # after the blocks that the answer already has
                    pieces += message.content
                    if message.usage_metadata:
                        message.usage_metadata = ai.add_usage(spent, message.usage_metadata)
                        spent = message.usage_metadata if message.response_metadata.get("stop_reason") else spent
                    if message.response_metadata.get("stop_reason") == "pause_turn":
                        paused = True
                        del message.response_metadata["stop_reason"]
                    yield chunk
            if not paused:
                return
        raise provider.RejectedError(f"the provider's own tools paused the answer {PAUSES} times")

    def options(self, request: ports.Request) -> dict[str, Any]:
        """Return the options of a request; with tools, even if there are none: only then LangChain returns blocks."""
        return {"tools": [*self.tools(request), *(_SEARCH for tool in request.native_tools if tool == "web_search")]}

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """Return the declarations of the tools."""
        return [
            {
                "name": tool_calls.accepted_name(tool_calls.wire_name(spec.name)),
                "input_schema": _schema(spec.parameters),
                **({"description": spec.description} if spec.description else {}),
            }
            for spec in request.tools
        ]

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Return the reason why the model stopped, if `chunk` has it."""
        metadata = chunk.message.response_metadata
        if metadata.get("stop_reason") == "model_context_window_exceeded":
            raise provider.ContextOverflowError(f"the answer has filled the context of {self.model}")
        if metadata.get("stop_reason") == "refusal":
            details = metadata.get("stop_details") or {}
            reason = ": ".join(str(details[key]) for key in ("category", "explanation") if details.get(key))
            raise provider.RejectedError(f"the model refused to answer{f' ({reason})' if reason else ''}")
        return super().finish(chunk)

    def native_results(self, answer: Answer) -> Iterator[provider.StreamEvent]:
        """Yield the result of searches."""
        blocks = _blocks(answer)
        queries = [block["input"].get("query") for block in blocks if block["type"] == "server_tool_use"]
        pages: dict[str, str] = {}
        for block in blocks:
            match block:
                case {"type": "web_search_tool_result", "content": list(parts)} | {"citations": list(parts)}:
                    pages |= {str(part["url"]): str(part.get("title") or "") for part in parts if part.get("url")}
        yield from langchain.web_search(pages, queries)

    def state(self, answer: Answer) -> Any:
        """Return the blocks of the answer without unfinished ones, which the API would refuse."""
        blocks = _blocks(answer)
        answered_ids = {block.get("tool_use_id") for block in blocks}
        complete = [block for block in blocks if not _is_unfinished(block, answered_ids, answer.finish)]
        ids = [block["id"] for block in complete if block["type"] == "tool_use"]
        is_usable = not all(map(_is_blank, complete)) and tool_calls.are_ids(ids) and ids == answer.call_ids
        return {"content": complete} if is_usable else None

    def system_message(self, text: str) -> JSON:
        """Return the system prompt; `chunks` sends it apart from the messages."""
        return {"role": "system", "content": [_text(text)]}

    def user_message(self, text: str) -> JSON:
        """Return a user's message."""
        return {"role": "user", "content": [_text(text)]}

    def result_message(self, message: messages.Message, call_id: str) -> JSON:
        """Return a tool's result."""
        content = [_text(tool_calls.result_text(message))]
        result = {"type": "tool_result", "tool_use_id": call_id, "is_error": message.failed, "content": content}
        return {"role": "user", "content": [result]}

    def assistant_message(self, message: messages.Message, ids: Sequence[str]) -> JSON:
        """Return an answer as its text, unless that is blank, and its calls."""
        text = message.text if message.text.strip() else ""
        calls = [
            {"type": "tool_use", "id": call_id, "name": name, "input": tool_calls.arguments(call.arguments) or {}}
            for call, name, call_id in zip(message.calls, tool_calls.sent_names(message), ids, strict=True)
        ]
        return {"role": "assistant", "content": [*([_text(text)] if text else ()), *calls] if calls else text}

    def own_message(self, message: messages.Message, state: Any) -> tuple[JSON, Sequence[str]] | None:
        """Return an answer unchanged, except names of calls that the API does not accept."""
        match state:
            case {"content": list(blocks)} if all(isinstance(block, dict) for block in blocks):
                ids = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
            case _:
                return None
        if all(map(_is_blank, blocks)) or len(ids) != len(message.calls) or not tool_calls.are_ids(ids):
            return None
        return {"role": "assistant", "content": _sent_blocks(blocks)}, ids

    def thinking_options(self, conversation: Sequence[JSON] = ()) -> dict[str, Any]:
        """Return the options for thinking.

        With a budget, Claude thinks from the beginning of a turn (a user's message, all calls and the conclusion) or
        not at all: a turn whose first answer called tools without thoughts ends without.
        """
        if self._thinking is None:
            return {}
        if self._thinking.level:
            thinking = {"type": "adaptive", "display": "summarized"}
            return {"thinking": thinking, "output_config": {"effort": self._thinking.level}}
        first = _first_answer(conversation)
        content = first["content"] if first is not None and isinstance(first["content"], list) else []
        kinds = [block.get("type") for block in content]
        if "tool_use" in kinds and kinds[0] not in _THOUGHTS:
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": self._thinking.budget}}


def _first_answer(conversation: Sequence[JSON]) -> JSON | None:
    """Return the first answer of the current turn; a user's text after tool results begins no new turn."""
    first: JSON | None = None
    for message in conversation:
        if message["role"] == "assistant":
            first = first or message
        elif message["content"][0]["type"] != "tool_result":
            first = None
    return first


def _is_blank(block: JSON) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _is_continued(request: ports.Request) -> bool:
    """Return whether the next request will begin like this one: only then does caching cost less."""
    answered = any(message.role == "assistant" for message in request.messages)
    called = any(message.role == "tool" for message in request.messages)
    return bool(request.tools) or (answered and not called)


def _system_and_turns(conversation: Sequence[JSON], *, cached: bool) -> tuple[list[JSON] | None, list[JSON]]:
    """Return the system prompt and the turns, without empty answers; with `cached`, marks for the cache."""
    system: list[JSON] | None = None
    turns: list[JSON] = []
    for message in conversation:
        if message["role"] == "system":
            system = message["content"]
        elif message["role"] == "user" and turns and turns[-1]["role"] == "user":
            turns[-1]["content"] += message["content"]
        elif message["content"]:
            turns.append(message)
    if cached:
        last = conversation[-1]["content"] if conversation[-1]["role"] == "user" else None
        for content in filter(None, (system, last)):
            content[-1] |= _CACHED
    return system, turns


def _text(text: str) -> JSON:
    return {"type": "text", "text": text if text.strip() else _NOTHING}


def _sent_blocks(blocks: Sequence[JSON]) -> list[JSON]:
    """Return the blocks of an answer in the form in which they are sent back."""
    sent = []
    for block in blocks:
        if _is_blank(block):
            continue
        fields = {key: block[key] for key in _SENT_FIELDS.get(block.get("type", ""), block) if key in block}
        if block.get("type") == "tool_use":
            fields = {"input": {}} | fields | {"name": tool_calls.accepted_name(str(block.get("name")))}
        sent.append(fields)
    return sent


def _unfinished(blocks: Sequence[JSON]) -> JSON:
    """Return an answer that the model is to continue, which must not end with white space."""
    sent = _sent_blocks(blocks)
    if sent and sent[-1]["type"] == "text":
        sent[-1]["text"] = sent[-1]["text"].rstrip()
    return {"role": "assistant", "content": sent}


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a tool's schema that the API accepts; the tool's server checks the rest."""
    schema = {key: value for key, value in parameters.items() if key not in _COMBINATIONS}
    properties = schema.get("properties")
    accepted = {key: value for key, value in properties.items() if _PROPERTY.fullmatch(key)} if properties else {}
    if isinstance(schema.get("required"), list):
        schema["required"] = [key for key in schema["required"] if key in accepted]
    return {**schema, "type": "object", "properties": accepted}


def _blocks(answer: Answer) -> list[Any]:
    """Return the blocks of an answer, as they have to be sent back."""
    blocks = []
    for block in answer.blocks.values():
        fields = block.to_json()
        if "partial_json" in fields:
            fields["input"] = tool_calls.arguments(fields.pop("partial_json")) or {}
        if "citations" in fields:
            fields["citations"] = [{"title": None, **citation} for citation in fields["citations"]]
        blocks.append(fields)
    return blocks


def _is_unfinished(block: dict[str, Any], answered_ids: set[Any], finish: str | None) -> bool:
    """Return whether the answer ended before the block did."""
    match block["type"]:
        case "thinking":
            return not block.get("signature")
        case "server_tool_use":
            return finish == "max_tokens" and block["id"] not in answered_ids
        case _:
            return False
