"""OpenAI's models, and what speaks their protocols, through LangChain's ChatOpenAI.

Chat completions give nothing to be sent back. The responses API gives its reasoning, encrypted, as we have nothing
stored there: the items of each answer go back as they came.

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
from tarsy.llm import failures, http, langchain, names, provider
from tarsy.transcript import messages, ports

ADDRESS = "https://api.openai.com/v1"
"""Where the SDK goes by itself, unless the environment says otherwise."""
NO_KEY = "none"
"""Sent to a server that wants no key: the SDK does not go without."""
UNUSED = object()
"""Stands for the SDK's blocking clients, each of which would read the certificates anew."""
_THOUGHTLESS = re.compile(r"(gpt-3|gpt-4|chatgpt-)|gpt-5.*-chat")
"""Models that refuse whatever has to do with reasoning."""
_WORD = re.compile(r"^(?P<first>\w+): |code='(?P<named>\w+)'")
"""How LangChain tells an error within a stream of responses: `code: message`, or the SDK's object."""


class ThoughtsShown(langchain_openai.ChatOpenAI):
    """LangChain's class for chat completions, which shows what other servers than OpenAI's show of thoughts."""

    def _convert_chunk_to_generation_chunk(self, chunk: dict[str, Any], *more: Any) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, *more)
        choices = chunk.get("choices")
        delta = (choices[0].get("delta") if choices else None) or {}
        if made and (thoughts := delta.get("reasoning_content") or delta.get("reasoning")):
            made.message.additional_kwargs["reasoning_content"] = thoughts
        return made


class Completions:
    """Chat completions by the SDK, but without its types, in which requests and chunks would take half of a call.

    It would walk through each request for something to rename, and make objects of each chunk, of which LangChain
    would make JSON again; LangChain takes the JSON as well.
    """

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        """Ask by `client`, which stays the caller's."""
        self._client = client

    async def create(self, **asked: Any) -> Chunks:
        """Ask for an answer, to be streamed."""
        return await self._client.post("/chat/completions", body=asked, cast_to=object, stream=True, stream_cls=Chunks)


class Chunks(openai.AsyncStream[object]):
    """A stream's chunks as JSON, with what LangChain takes for granted and some servers leave out."""

    async def __aiter__(self) -> AsyncIterator[object]:
        async for chunk in super().__aiter__():
            for choice in (isinstance(chunk, dict) and chunk.get("choices")) or ():
                delta = choice.setdefault("delta", None) or {}
                for call in delta.get("tool_calls") or ():
                    call.setdefault("index", None)
                    call.setdefault("function", None)
            yield chunk


class Unwalked(langchain_openai.ChatOpenAI):
    """LangChain's class for the responses API, whose requests cost half as much."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return unwalked(super()._get_request_payload(*args, **kwargs))


def unwalked(payload: dict[str, Any]) -> dict[str, Any]:
    """A request with its long parts where the SDK does not walk through them for something to rename.

    It does so with every value of every schema and of every message, each time; there is nothing.
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
    """The provider `name`, speaking over `session`, which stays the caller's."""
    common = client(settings.base_url or ADDRESS, key=key, session=session)
    level = settings.thinking.level if settings.thinking else None
    if settings.api == "chat":
        thoughts = ThoughtsShown(
            model=settings.model, use_responses_api=False, stream_usage=True, reasoning_effort=level, **common
        )
        thoughts.async_client = Completions(thoughts.root_async_client)
        return Chat(name, thoughts, model=settings.model, secret=key or "")
    reasons = not _THOUGHTLESS.match(settings.model)
    chat = Unwalked(
        model=settings.model,
        use_responses_api=True,
        output_version="responses/v1",
        store=False,
        include=["reasoning.encrypted_content"] if reasons else None,
        reasoning={"effort": level, "summary": "auto"} if level else None,
        **common,
    )
    _leave_out_repetition(chat.root_async_client.responses)
    return Responses(name, chat, model=settings.model, secret=key or "")


def _leave_out_repetition(made: Any) -> None:
    """Take the answer out of the last event of each stream, where it stands once more.

    LangChain would build it again, for its counts alone, and stumble over a call's arguments that are no object.
    """
    create = made.create

    async def lean(**asked: Any) -> Any:
        return _without_repetition(await create(**asked))

    made.create = lean


@contextlib.asynccontextmanager
async def _without_repetition(stream: Any) -> AsyncIterator[AsyncIterator[Any]]:
    async def events() -> AsyncIterator[Any]:
        async for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                event.response.output = []
            yield event

    async with stream:
        yield events()


def client(url: str, *, key: str | None, session: aiohttp.ClientSession) -> dict[str, Any]:
    """Return the options of LangChain's class for the connection, without its own retries and timeouts."""
    return {
        "api_key": key or NO_KEY,
        "base_url": url,
        "max_retries": 0,
        "stream_chunk_timeout": None,
        "openai_proxy": None,  # proxies are looked up where the connections are made
        "http_async_client": http.client(url, session),
        "http_socket_options": (),
        "client": UNUSED,
        "root_client": UNUSED,
    }


class Chat(langchain.ChatModel):
    """A model behind chat completions."""

    def written(self, message: messages.Message, ids: Sequence[str]) -> lc.AIMessage:
        """An answer as its text and its calls: with the very arguments that came, which LangChain leaves only so."""
        calls = [
            {"name": name, "args": _text(call), "id": call_id, "error": None}
            for call, name, call_id in zip(message.calls, langchain.call_names(message), ids, strict=True)
        ]
        return lc.AIMessage(message.text, invalid_tool_calls=calls)


class Responses(langchain.ChatModel):
    """A model behind the responses API."""

    keeps_blocks = True

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """The tools as they are declared; without a word the API would make their schemas into others."""
        functions = [{"type": "function", **tool["function"], "strict": False} for tool in super().tools(request)]
        return [*functions, *({"type": tool} for tool in request.native_tools)]

    def answered(self, message: messages.Message, call_id: str) -> lc.ToolMessage:
        """A tool's result; of one that is a text LangChain would look at every character."""
        return lc.ToolMessage([{"type": "input_text", "text": langchain.result(message)}], tool_call_id=call_id)

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Why the model stopped, if `chunk` says so."""
        metadata = chunk.message.response_metadata
        reason = (metadata.get("incomplete_details") or {}).get("reason")
        return reason or metadata.get("status")

    def ended(self, answer: langchain.Answer) -> Iterator[provider.StreamEvent]:
        """Yield the results of a search."""
        output = [block.whole() for block in answer.blocks.values()]
        searches = [block.get("action") or {} for block in output if block.get("type") == "web_search_call"]
        notes = [note for block in output if block.get("type") == "text" for note in block.get("annotations") or ()]
        urls = {str(note["url"]): str(note.get("title") or "") for note in notes if note.get("url")}
        if searches or urls:
            yield provider.Grounding(
                "web_search",
                sources=[provider.Source(title=title, url=url) for url, title in urls.items()],
                queries=[str(search["query"]) for search in searches if search.get("query")],
            )

    def state(self, answer: langchain.Answer) -> Any:
        """The items of the answer, as LangChain has them."""
        items = [block.whole() for block in answer.blocks.values()]
        ids = [element.get("call_id") for element in items if element.get("type") == "function_call"]
        return {"items": items} if langchain.are_ids(ids) and ids == answer.call_ids else None

    def assistant_message(self, message: messages.Message, state: Any) -> tuple[lc.AIMessage, Sequence[str]] | None:
        """An answer as it came; but what servers refuse of a model's calls is made into what they take."""
        match state:
            case {"items": list(items)} if all(isinstance(block, dict) for block in items):
                calls = [block for block in items if block.get("type") == "function_call"]
            case _:
                return None
        ids = [call.get("call_id") for call in calls]
        if len(ids) != len(message.calls) or not langchain.are_ids(ids):
            return None
        sent = {
            id(block): _with_masked_arguments(block, call) for block, call in zip(calls, message.calls, strict=True)
        }
        content: list[Any] = [sent.get(id(block), block) for block in items]
        return lc.AIMessage(content), [str(call_id) for call_id in ids]

    def failed(self, error: Exception) -> provider.ProviderError:
        """Return our own error for an exception; those within a stream have nothing but their text."""
        match = _WORD.search(str(error)) if type(error) is ValueError else None
        word = (match["first"] or match["named"]) if match else ""
        return failures.translated(error, name=self.name, secret=self._secret, word=word)


def _with_masked_arguments(block: dict[str, Any], call: messages.ToolCall) -> dict[str, Any]:
    """A call's item, with arguments that are an object and a name that can be one."""
    return block | {
        "name": names.wire_name(str(block.get("name", ""))),
        "arguments": _text(call, block.get("arguments")),
    }


def _text(call: messages.ToolCall, came: Any = None) -> str:
    """The arguments of a call, if they are an object, as they came."""
    return str(came or call.arguments or "{}") if langchain.arguments(call) is not None else "{}"
