"""OpenAI's models, and servers that speak its protocols, through LangChain's ChatOpenAI.

Chat completions return no state to be sent back. The responses API returns its reasoning, encrypted, because nothing is
stored there for us: the items of each answer go back as they came.

Source: OpenAI API reference, "Chat completions", "Responses" and "Reasoning models".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import aiohttp
import langchain_openai
import openai
from langchain_core import messages as lc
from langchain_core.outputs import ChatGenerationChunk

from tarsy.config.model import providers
from tarsy.llm import http, langchain, langchain_failures, provider, tool_calls
from tarsy.llm.langchain_answers import Answer
from tarsy.transcript import messages, ports

ADDRESS = "https://api.openai.com/v1"
"""The SDK's own default, unless the environment says otherwise."""
NO_KEY = "none"
"""The key for a server that wants none: the SDK requires one."""
UNUSED = object()
"""Stands for the SDK's blocking clients, each of which would read the certificates anew."""
_NOT_REASONING = re.compile(r"(gpt-3|gpt-4|chatgpt-)|gpt-5.*-chat")
"""Models that refuse all options of reasoning."""
_ERROR_TYPE = re.compile(r"^(?P<first>\w+): |code='(?P<named>\w+)'")
"""LangChain's text for an error within a stream of responses: `code: message`, or the SDK's object."""


class ChatCompletions(langchain_openai.ChatOpenAI):
    """LangChain's class for chat completions, with the thoughts that servers other than OpenAI's send."""

    def _convert_chunk_to_generation_chunk(self, chunk: dict[str, Any], *more: Any) -> ChatGenerationChunk | None:
        converted = super()._convert_chunk_to_generation_chunk(chunk, *more)
        choices = chunk.get("choices")
        delta = (choices[0].get("delta") if choices else None) or {}
        if converted and (thoughts := delta.get("reasoning_content") or delta.get("reasoning")):
            converted.message.additional_kwargs["reasoning_content"] = thoughts
        return converted


class CompletionsClient:
    """Chat completions by the SDK without its types, whose requests and chunks would take half of a call.

    The SDK would search each request for fields to rename, and make objects of each chunk, of which LangChain would
    make JSON again; LangChain takes the JSON as well.
    """

    def __init__(self, client: openai.AsyncOpenAI, *, is_openai: bool = True) -> None:
        """The caller closes `client`; `is_openai` says whether the server is OpenAI's, or xAI's."""
        self._client = client
        self._is_openai = is_openai

    async def create(self, **body: Any) -> CompletionChunks:
        """Request a streamed answer. Other servers know the answer's limit by its former name, and ignore the new."""
        if not self._is_openai and "max_completion_tokens" in body:
            body["max_tokens"] = body.pop("max_completion_tokens")
        return await self._client.post(
            "/chat/completions", body=body, cast_to=object, stream=True, stream_cls=CompletionChunks
        )


class CompletionChunks(openai.AsyncStream[object]):
    """The chunks of a stream as JSON, with fields that LangChain expects and some servers leave out."""

    async def __aiter__(self) -> AsyncIterator[object]:
        async for chunk in super().__aiter__():
            response_id = chunk.get("id") if isinstance(chunk, dict) else None
            for choice in (isinstance(chunk, dict) and chunk.get("choices")) or ():
                delta = choice.setdefault("delta", None) or {}
                if isinstance(response_id, str):
                    delta["id"] = response_id  # where LangChain looks for it
                for call in delta.get("tool_calls") or ():
                    call.setdefault("index", None)
                    call.setdefault("function", None)
            yield chunk


class ResponsesAPI(langchain_openai.ChatOpenAI):
    """LangChain's class for the responses API, whose requests cost half as much."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return as_extra_body(super()._get_request_payload(*args, **kwargs))


def as_extra_body(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a request with its long parts as `extra_body`, which the SDK does not search for fields to rename.

    In the body the SDK would search every value of every schema and message each time, without any result.
    """
    long = {key: payload[key] for key in ("input", "tools") if key in payload}
    for element in long.get("input", ()):
        match element:
            case {"type": "function_call_output", "output": [{"type": "input_text", "text": text}]}:
                element["output"] = text
    emptied: dict[str, Any] = {key: [] for key in long if key != "tools"}
    rest = {key: value for key, value in payload.items() if key not in long}
    return rest | emptied | {"extra_body": (payload.get("extra_body") or {}) | long}


def build(
    name: str, settings: providers.OpenAIProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """Build the provider `name` over `session`, which stays the caller's."""
    common = connection_options(settings.base_url or ADDRESS, key=key, session=session)
    level = settings.thinking.level if settings.thinking else None
    if settings.api == "chat":
        completions = ChatCompletions(
            model=settings.model,
            use_responses_api=False,
            stream_usage=True,
            reasoning_effort=level,
            max_tokens=settings.max_output_tokens,
            **common,
        )
        completions.async_client = CompletionsClient(completions.root_async_client, is_openai=settings.base_url is None)
        return Chat(name, completions, model=settings.model, secret=key or "")
    chat = ResponsesAPI(
        model=settings.model,
        use_responses_api=True,
        output_version="responses/v1",
        store=False,
        include=None if _NOT_REASONING.match(settings.model) else ["reasoning.encrypted_content"],
        reasoning={"effort": level, "summary": "auto"} if level else None,
        max_tokens=settings.max_output_tokens,
        **common,
    )
    _remove_repetition(chat.root_async_client.responses)
    return Responses(name, chat, model=settings.model, secret=key or "")


def _remove_repetition(responses: Any) -> None:
    """Remove the answer from the last event of each stream, which repeats it.

    LangChain would build it again only for its counts, and fail at a call's arguments that are no object.
    """
    create = responses.create

    async def create_without_repetition(**options: Any) -> Any:
        return _without_repetition(await create(**options))

    responses.create = create_without_repetition


@contextlib.asynccontextmanager
async def _without_repetition(stream: Any) -> AsyncIterator[AsyncIterator[Any]]:
    async def events() -> AsyncIterator[Any]:
        async for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                event.response.output = []
            yield event

    async with stream:
        yield events()


def connection_options(url: str, *, key: str | None, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Return the options of LangChain's class for the connection, without its own retries and timeouts."""
    return {
        "api_key": key or NO_KEY,
        "base_url": url,
        "max_retries": 0,
        "stream_chunk_timeout": None,
        "openai_proxy": None,  # `http.client` looks up proxies
        "http_async_client": http.client(url, session),
        "http_socket_options": (),
        "client": UNUSED,
        "root_client": UNUSED,
    }


class Chat(langchain.ChatModel):
    """A model with the chat completions API."""

    def response(self, chunk: ChatGenerationChunk) -> provider.Response:
        """Return what `chunk` tells of the model that answers and of its response."""
        return provider.Response.from_json((chunk.generation_info or {}).get("model_name"), chunk.message.id)

    def assistant_message(self, message: messages.Message, ids: Sequence[str]) -> lc.AIMessage:
        """Return an answer as its text and its calls. Only in invalid calls LangChain keeps the text of arguments."""
        calls = [
            {"name": name, "args": _arguments_text(call), "id": call_id, "error": None}
            for call, name, call_id in zip(message.calls, tool_calls.sent_names(message), ids, strict=True)
        ]
        return lc.AIMessage(message.text, invalid_tool_calls=calls)


class Responses(langchain.ChatModel):
    """A model with the responses API."""

    keeps_blocks = True

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """Return the declarations of the tools; without `strict: false` the API would change their schemas."""
        functions = [{"type": "function", **tool["function"], "strict": False} for tool in super().tools(request)]
        return [*functions, *({"type": tool} for tool in request.native_tools)]

    def result_message(self, message: messages.Message, call_id: str) -> lc.ToolMessage:
        """Return a tool's result as a block, because LangChain inspects each character of a plain text."""
        content: list[str | dict[Any, Any]] = [{"type": "input_text", "text": tool_calls.result_text(message)}]
        return lc.ToolMessage(content, tool_call_id=call_id)

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Return the reason why the model stopped, if `chunk` has it."""
        metadata = chunk.message.response_metadata
        reason = (metadata.get("incomplete_details") or {}).get("reason")
        return reason or metadata.get("status")

    def native_results(self, answer: Answer) -> Iterator[provider.StreamEvent]:
        """Yield the result of a search."""
        items = [block.to_json() for block in answer.blocks.values()]
        searches = [block.get("action") or {} for block in items if block.get("type") == "web_search_call"]
        notes = [note for block in items if block.get("type") == "text" for note in block.get("annotations") or ()]
        pages = {str(note["url"]): str(note.get("title") or "") for note in notes if note.get("url")}
        yield from langchain.web_search(pages, [search.get("query") for search in searches])

    def state(self, answer: Answer) -> Any:
        """Return the items of the answer in LangChain's form."""
        items = [block.to_json() for block in answer.blocks.values()]
        ids = [element.get("call_id") for element in items if element.get("type") == "function_call"]
        return {"items": items} if tool_calls.are_ids(ids) and ids == answer.call_ids else None

    def own_message(self, message: messages.Message, state: Any) -> tuple[lc.AIMessage, Sequence[str]] | None:
        """Return an answer unchanged, except names and arguments of calls that the server does not accept."""
        match state:
            case {"items": list(items)} if all(isinstance(block, dict) for block in items):
                calls = [block for block in items if block.get("type") == "function_call"]
            case _:
                return None
        ids = [call.get("call_id") for call in calls]
        if len(ids) != len(message.calls) or not tool_calls.are_ids(ids):
            return None
        accepted = {
            id(block): block
            | {
                "name": tool_calls.accepted_name(str(block.get("name", ""))),
                "arguments": _arguments_text(call, block.get("arguments")),
            }
            for block, call in zip(calls, message.calls, strict=True)
        }
        content: list[Any] = [accepted.get(id(block), block) for block in items]
        return lc.AIMessage(content), [str(call_id) for call_id in ids]

    def failed(self, error: Exception) -> provider.ProviderError:
        """Our own error for an exception; errors within a stream have only their text."""
        match = _ERROR_TYPE.search(str(error)) if type(error) is ValueError else None
        word = (match["first"] or match["named"]) if match else ""
        return langchain_failures.translated(error, name=self.name, secret=self._secret, word=word)


def _arguments_text(call: messages.ToolCall, received: Any = None) -> str:
    """Return the arguments of a call as they were `received`, or as they are stored; `{}` if they are no object."""
    return str(received or call.arguments or "{}") if tool_calls.arguments(call.arguments) is not None else "{}"
