"""Claude through LangChain's ChatAnthropic.

The blocks of each answer are its provider state: thoughts only hold when their blocks go back whole and unchanged, and
so do the pages that a search has found.

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
from tarsy.llm import http, langchain, names, provider
from tarsy.transcript import messages, ports

JSON: TypeAlias = dict[str, Any]

ADDRESS = "https://api.anthropic.com"
"""Where the SDK goes by itself, unless the environment says otherwise."""
PAUSES = 10
"""How often an answer may stop for the provider's own tools and be asked to go on."""
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_CACHED = {"cache_control": {"type": "ephemeral"}}
_THOUGHTS = ("thinking", "redacted_thinking")
_NOTHING = "(nothing)"
"""Sent for a blank text: a request with one is refused whole."""
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The form of an argument's name; a request with any other is refused whole."""
_SENT = {
    "text": ("type", "text", "citations"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input", "caller"),
    "server_tool_use": ("type", "id", "name", "input"),
    "web_search_tool_result": ("type", "tool_use_id", "content"),
}
"""The fields of each kind of block that go back to Claude; a request with any other field is refused whole."""
_COMBINED = ("oneOf", "allOf", "anyOf")
"""The keywords that the schema of all arguments together must not have at its root."""


class Written(langchain_anthropic.ChatAnthropic):
    """LangChain's class, whose requests and events the SDK makes no objects of: that takes 0.5 ms of a call's 2.6."""

    async def _acreate(self, payload: JSON) -> Events:
        body = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return await self._async_client.post(
            "/v1/messages", content=body, cast_to=object, stream=True, stream_cls=Events
        )


class Events(anthropic.AsyncStream[object]):
    """A stream's events, as LangChain reads them."""

    def parse(self) -> Events:
        """The stream: LangChain asks for the answer as it came, and then for this."""
        return self

    async def __aiter__(self) -> AsyncIterator[object]:
        async for event in super().__aiter__():
            yield Event(event) if isinstance(event, dict) else event


class Event(JSON):
    """JSON that is read as the SDK's objects are: what is not there is None."""

    def __getattr__(self, name: str) -> Any:
        value = self.get(name)
        return Event(value) if type(value) is dict else value

    def model_dump(self, **_: Any) -> JSON:
        """The JSON."""
        return dict(self)


def build(
    name: str, settings: providers.AnthropicProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """The provider `name`, speaking over `session`, which stays the caller's."""
    address = settings.base_url or ADDRESS
    budget = settings.thinking.budget if settings.thinking else None
    chat = Written(
        model=settings.model,
        api_key=key,
        base_url=address,
        max_retries=0,
        max_tokens=settings.max_output_tokens + (budget or 0),
    )
    claude = Claude(name, chat, settings=settings, secret=key or "")
    try:
        chat._assert_valid_model_configuration(claude.thinks())
    except ValueError as error:
        raise provider.UnusableError(f"thinking: {error}") from error
    vars(chat)["_async_client"] = anthropic.AsyncAnthropic(
        api_key=key,
        base_url=address,
        max_retries=0,
        default_headers={"X-Api-Key": key or ""},  # beside the SDK's own: most servers that speak it know but this
        http_client=http.client(address, session),
        open_telemetry=False,
    )
    return claude


class Claude(langchain.ChatModel):
    """One model of Anthropic's, or of a server that speaks its protocol."""

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
        """Ask, and ask to go on where the provider's own tools paused the answer: to us it is one."""
        system, asked = _accepted(conversation, cached=_goes_on(request))
        pieces: list[Any] = []
        spent: ai.UsageMetadata | None = None
        for _ in range(PAUSES):
            paused = False
            so_far = langchain.Answer()
            so_far.add_blocks(pieces)
            before = len(so_far.blocks)
            sent: Any = [*asked, _begun(_blocks(so_far))] if before else asked
            streamed: Any = self.chat._astream(sent, system=system, **self.options(request), **self.thinks(asked))
            async with aclosing(streamed) as received:
                async for chunk in received:
                    message: Any = chunk.message
                    for piece in (*message.content, *message.tool_call_chunks) if before else ():
                        piece["index"] += before  # behind the blocks that the answer has
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
        """Return the options beside the conversation; tools even if empty: LangChain returns blocks only then."""
        return {"tools": [*self.tools(request), *(_SEARCH for tool in request.native_tools if tool == "web_search")]}

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """The tools as they are declared."""
        return [
            {
                "name": names.wire_name(names.wire(spec.name)),
                "input_schema": _schema(spec.parameters),
                **({"description": spec.description} if spec.description else {}),
            }
            for spec in request.tools
        ]

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Why the model stopped, if `chunk` says so."""
        metadata = chunk.message.response_metadata
        if metadata.get("stop_reason") == "model_context_window_exceeded":
            raise provider.ContextOverflowError(f"the answer has filled the context of {self.model}")
        if metadata.get("stop_reason") == "refusal":
            details = metadata.get("stop_details") or {}
            why = ": ".join(str(details[key]) for key in ("category", "explanation") if details.get(key))
            raise provider.RejectedError(f"the model refused to answer{f' ({why})' if why else ''}")
        return super().finish(chunk)

    def ended(self, answer: langchain.Answer) -> Iterator[provider.StreamEvent]:
        """Yield the results of searches."""
        blocks = _blocks(answer)
        queries = [block["input"].get("query") for block in blocks if block["type"] == "server_tool_use"]
        pages = [page for block in blocks for page in _pages(block)]
        if queries or pages:
            yield provider.Grounding(
                "web_search",
                sources=[provider.Source(title=title, url=url) for url, title in dict(pages).items()],
                queries=[str(query) for query in queries if query],
            )

    def state(self, answer: langchain.Answer) -> Any:
        """The blocks of the answer, but those that were cut off in the middle: they would be refused."""
        blocks = _blocks(answer)
        answered_ids = {block.get("tool_use_id") for block in blocks}
        complete_blocks = [block for block in blocks if not _is_cut(block, answered_ids, answer.finish)]
        ids = [block["id"] for block in complete_blocks if block["type"] == "tool_use"]
        return (
            {"content": complete_blocks}
            if _says(complete_blocks) and langchain.are_ids(ids) and ids == answer.call_ids
            else None
        )

    def opened(self, text: str) -> JSON:
        """Return the system prompt's content; it goes beside the messages."""
        return {"role": "system", "content": [_text(text)]}

    def user_message(self, text: str) -> JSON:
        """Return the content of a user's message."""
        return {"role": "user", "content": [_text(text)]}

    def answered(self, message: messages.Message, call_id: str) -> JSON:
        """A tool's result."""
        content = [_text(langchain.result(message))]
        result = {"type": "tool_result", "tool_use_id": call_id, "is_error": message.failed, "content": content}
        return {"role": "user", "content": [result]}

    def written(self, message: messages.Message, ids: Sequence[str]) -> JSON:
        """An answer as its text, if it is not blank, and its calls."""
        text = message.text if message.text.strip() else ""
        calls = [
            {"type": "tool_use", "id": call_id, "name": name, "input": langchain.arguments(call) or {}}
            for call, name, call_id in zip(message.calls, langchain.call_names(message), ids, strict=True)
        ]
        return {"role": "assistant", "content": [*([_text(text)] if text else ()), *calls] if calls else text}

    def assistant_message(self, message: messages.Message, state: Any) -> tuple[JSON, Sequence[str]] | None:
        """An answer as it came; but a call's name is made into one that can be."""
        match state:
            case {"content": list(blocks)} if all(isinstance(block, dict) for block in blocks):
                ids = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
            case _:
                return None
        if not _says(blocks) or len(ids) != len(message.calls) or not langchain.are_ids(ids):
            return None
        return {"role": "assistant", "content": _sent(blocks)}, ids

    def thinks(self, conversation: Sequence[JSON] = ()) -> dict[str, Any]:
        """How much it is to think.

        With a budget, a turn, from what a user said over all calls to the conclusion, is thought about from its
        beginning or not at all: one that another provider began, or that came without thoughts, ends without.
        """
        if self._thinking is None:
            return {}
        if self._thinking.level:
            thinking = {"type": "adaptive", "display": "summarized"}
            return {"thinking": thinking, "output_config": {"effort": self._thinking.level}}
        if (first := _began(conversation)) is not None and _called_without_thoughts(first):
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": self._thinking.budget}}


def _began(conversation: Sequence[JSON]) -> JSON | None:
    """The first answer of the turn that goes on; what a user says behind results begins none."""
    first: JSON | None = None
    for message in conversation:
        if message["role"] == "assistant":
            first = first or message
        elif message["content"][0]["type"] != "tool_result":
            first = None
    return first


def _called_without_thoughts(message: JSON) -> bool:
    kinds = [block.get("type") for block in message["content"]] if isinstance(message["content"], list) else []
    return "tool_use" in kinds and kinds[0] not in _THOUGHTS


def _says(blocks: Sequence[dict[str, Any]]) -> bool:
    """Whether anything is left of `blocks` without blank texts."""
    return not all(map(_is_blank, blocks))


def _is_blank(block: JSON) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _goes_on(request: ports.Request) -> bool:
    """Whether the next request will begin as this one does: what is cached costs more once, and less from then on."""
    answered = any(message.role == "assistant" for message in request.messages)
    called = any(message.role == "tool" for message in request.messages)
    return bool(request.tools) or (answered and not called)


def _accepted(conversation: Sequence[JSON], *, cached: bool) -> tuple[list[JSON] | None, list[JSON]]:
    """The system prompt and the turns, without answers of nothing; `cached` marks the ends of what stays the same."""
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
        said_last = conversation[-1]["content"] if conversation[-1]["role"] == "user" else None
        for content in filter(None, (system, said_last)):
            content[-1] |= _CACHED
    return system, turns


def _text(text: str) -> JSON:
    return {"type": "text", "text": text if text.strip() else _NOTHING}


def _sent(blocks: Sequence[JSON]) -> list[JSON]:
    """Blocks of an answer as they go back."""
    return [
        _named({key: block[key] for key in _SENT.get(block.get("type", ""), block) if key in block})
        for block in blocks
        if not _is_blank(block)
    ]


def _begun(blocks: Sequence[JSON]) -> JSON:
    """An answer that is to go on, which must not end with white space."""
    sent = _sent(blocks)
    if sent and sent[-1]["type"] == "text":
        sent[-1]["text"] = sent[-1]["text"].rstrip()
    return {"role": "assistant", "content": sent}


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool's schema, as far as it is taken: what is left out, the tool's server checks."""
    plain_keys = {key: value for key, value in parameters.items() if key not in _COMBINED}
    properties = plain_keys.get("properties")
    taken = {key: of for key, of in properties.items() if _PROPERTY.fullmatch(key)} if properties else {}
    if isinstance(plain_keys.get("required"), list):
        plain_keys["required"] = [key for key in plain_keys["required"] if key in taken]
    return {**plain_keys, "type": "object", "properties": taken}


def _blocks(answer: langchain.Answer) -> list[Any]:
    """The blocks of an answer, as they have to be sent back."""
    return [_block(block.whole()) for block in answer.blocks.values()]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    if "partial_json" in block:
        block = {**block, "input": _object(block["partial_json"])}
        del block["partial_json"]
    if "citations" in block:
        block = {**block, "citations": [{"title": None, **citation} for citation in block["citations"]]}
    return block


def _object(text: str) -> dict[str, Any]:
    """The arguments of a call; {} where they are no object, as its result will have told."""
    try:
        loaded = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) and messages.is_plain_json(loaded) else {}


def _is_cut(block: dict[str, Any], answered_ids: set[Any], finish: str | None) -> bool:
    """Whether the end of the answer came before the block's."""
    match block["type"]:
        case "thinking":
            return not block.get("signature")
        case "server_tool_use":
            return finish == "max_tokens" and block["id"] not in answered_ids
        case _:
            return False


def _named(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") != "tool_use":
        return block
    return {"input": {}} | block | {"name": names.wire_name(str(block.get("name")))}


def _pages(block: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the web pages that a block names: addresses and titles."""
    match block:
        case {"type": "web_search_tool_result", "content": list(pages)} | {"citations": list(pages)}:
            yield from ((str(page["url"]), str(page.get("title") or "")) for page in pages if page.get("url"))
