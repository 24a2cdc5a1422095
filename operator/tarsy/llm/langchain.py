"""Chat models of LangChain: their common part. `openai`, `xai`, `anthropic` and `integrations` add their own.

Three things of LangChain are used: its classes with their settings, the requests that they write, and the chunks that
they make of a stream. Its callbacks and tracers are left out: they take a third of the processor time, and may send
conversations elsewhere if the environment says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core import messages as lc
from langchain_core.language_models import chat_models
from langchain_core.outputs import ChatGenerationChunk

from tarsy.llm import http, langchain_failures, provider, tool_calls
from tarsy.llm.langchain_answers import Answer, call_chunks, content_event, usage
from tarsy.transcript import messages, ports


class ChatModel:
    """One chat model of LangChain's. Subclasses override the methods below `stream`."""

    keeps_blocks = False
    """Whether the content of answers goes back to the provider as it came."""

    def __init__(self, name: str, chat: chat_models.BaseChatModel, *, model: str, secret: str = "") -> None:
        """`name` is the provider's in the platform file: only its own state is sent back. Errors hide `secret`."""
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
            if answer.is_complete():
                for event in self._last_events(answer, request):
                    yield event
        except provider.ProviderError:
            raise
        except Exception as error:
            raise self.failed(error) from error

    async def close(self) -> None:
        """Close nothing: the owner of the HTTP session closes the connections."""

    def chunks(self, conversation: list[Any], request: ports.Request) -> AsyncGenerator[ChatGenerationChunk]:
        """Send the request and stream LangChain's chunks; the messages are those of the methods below."""
        # `astream` is built on it, and integrations implement it: see the module's docstring.
        chunks: Any = self.chat._astream(conversation, **self.options(request))
        return chunks  # type: ignore[no-any-return]

    def options(self, request: ports.Request) -> dict[str, Any]:
        """Return the options of a request."""
        tools = self.tools(request)
        return {"tools": tools} if tools else {}

    def tools(self, request: ports.Request) -> list[dict[str, Any]]:
        """Return the declarations of the tools."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool_calls.accepted_name(tool_calls.wire_name(spec.name)),
                    "description": spec.description,
                    "parameters": spec.parameters or {"type": "object", "properties": {}},
                },
            }
            for spec in request.tools
        ]

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Return the reason why the model stopped, if `chunk` has it."""
        for metadata in (chunk.generation_info, chunk.message.response_metadata):
            for key in ("finish_reason", "stop_reason", "done_reason"):
                if metadata and (reason := metadata.get(key)):
                    return str(reason)
        return None

    def response(self, chunk: ChatGenerationChunk) -> provider.Response:
        """Return what `chunk` tells of the model that answers and of its response."""
        metadata: dict[str, Any] = (chunk.generation_info or {}) | chunk.message.response_metadata
        return provider.Response.from_json(metadata.get("model_name"), metadata.get("id"))

    def native_results(self, answer: Answer) -> Iterator[provider.StreamEvent]:  # noqa: ARG002 - subclasses use it
        """Yield the results of the provider's own tools in a complete answer."""
        yield from ()

    def state(self, answer: Answer) -> Any:
        """Return the state that the provider wants back with this answer, as JSON."""
        return {"calls": answer.call_ids} if tool_calls.are_ids(answer.call_ids) and answer.calls else None

    def system_message(self, text: str) -> Any:
        """Return the system prompt as a message."""
        return lc.SystemMessage(text)

    def user_message(self, text: str) -> Any:
        """Return a user's message."""
        return lc.HumanMessage(text)

    def own_message(self, message: messages.Message, state: Any) -> tuple[Any, Sequence[str]] | None:
        """This provider's own answer and the ids of its calls; None if `state` is not of its kind."""
        match state:
            case {"calls": list(ids)} if len(ids) == len(message.calls) and tool_calls.are_ids(ids):
                return self.assistant_message(message, ids), ids
            case _:
                return None

    def assistant_message(self, message: messages.Message, ids: Sequence[str]) -> Any:
        """Return an answer as its text and its calls with these `ids`."""
        calls = [
            {"type": "tool_call", "name": name, "args": tool_calls.arguments(call.arguments) or {}, "id": call_id}
            for call, name, call_id in zip(message.calls, tool_calls.sent_names(message), ids, strict=True)
        ]
        return lc.AIMessage(message.text, tool_calls=calls)

    def result_message(self, message: messages.Message, call_id: str) -> Any:
        """Return a tool's result."""
        status: Any = "error" if message.failed else "success"
        return lc.ToolMessage(tool_calls.result_text(message), tool_call_id=call_id, status=status)

    def failed(self, error: Exception) -> provider.ProviderError:
        """Our own error for an exception of LangChain or of the SDK below."""
        return langchain_failures.translated(error, name=self.name, secret=self._secret)

    def _conversation(self, conversation: Sequence[messages.Message]) -> Iterator[Any]:
        if system := "\n\n".join(message.text for message in conversation if message.role == "system"):
            yield self.system_message(system)
        ids: dict[str, str] = {}
        for message in conversation:
            match message.role:
                case "user":
                    yield self.user_message(message.text)
                case "assistant":
                    state = message.provider_state
                    is_own = state is not None and state.provider == self.name
                    own = self.own_message(message, state.data) if state is not None and is_own else None
                    our_ids = [tool_calls.sent_id(call) for call in message.calls]
                    sent, sent_ids = own or (self.assistant_message(message, our_ids), our_ids)
                    ids = {call.id: sent_id for call, sent_id in zip(message.calls, sent_ids, strict=True)}
                    yield sent
                case "tool":
                    yield self.result_message(message, ids[message.call_id])

    def _events(self, chunk: ChatGenerationChunk, answer: Answer) -> Iterator[provider.StreamEvent]:
        """Yield the events of a chunk: an empty text at least, as a sign of life."""
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
        if calls := call_chunks(message):
            answer.add_calls(calls)
        if (response := self.response(chunk)) != answer.response:
            answer.response = response
            yield response
        if message.usage_metadata:
            yield provider.Usage(usage(message.usage_metadata))
        answer.finish = answer.finish or self.finish(chunk)

    def _last_events(self, answer: Answer, request: ports.Request) -> Iterator[provider.StreamEvent]:
        """Yield the last events of a complete answer: results of native tools, calls and state."""
        yield from self.native_results(answer)
        tools = tool_calls.tools_by_sent_name(spec.name for spec in request.tools)
        for call in answer.calls.values():
            name = tools.get(call.name, tool_calls.tool_name(call.name))
            yield provider.Call(name, "".join(call.pieces) or "{}")
        yield provider.Finish(messages.well_formed_json(self.state(answer)))  # anything else could not be sent back


def web_search(pages: Mapping[str, str], queries: Sequence[Any]) -> Iterator[provider.Grounding]:
    """Yield the result of a web search, if there was one: the titles of `pages` by URL, and the queries."""
    if pages or queries:
        yield provider.Grounding(
            "web_search",
            sources=[provider.Source(title=title, url=url) for url, title in pages.items()],
            queries=[str(query) for query in queries if query],
        )
