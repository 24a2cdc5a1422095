"""The bare loop's models: each provider's SDK as its own documentation uses it.

A conversation keeps its messages in the SDK's own types, streams each answer and puts its pieces together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import mcp
import openai as openai_sdk

from bench import model

QUESTION = "Investigation: bare/{name}\n\nA pod restarts every minute."
SYSTEM = "You are Bare, the agent of stage '{stage}' of chain 'bare'."


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of an answer."""

    id: str | None
    name: str
    arguments: dict[str, Any]


class Conversation(Protocol):
    """One conversation."""

    async def ask(self) -> tuple[Any, Sequence[Call]]:
        """Ask for the next answer; it as JSON, and its calls."""
        ...

    def tell(self, results: Sequence[tuple[Call, str]]) -> Any:
        """Add the results of its calls; they as JSON."""
        ...


Opening: TypeAlias = Callable[[str, str], Conversation]
"""Opens a conversation of a name, of a stage."""


class SDK(Protocol):
    """A provider's SDK, to be opened with the tools that there are."""

    def __call__(self, tools: Sequence[mcp.types.Tool], *, model_url: str) -> AbstractAsyncContextManager[Opening]:
        """Open it, to speak to the server at `model_url`."""
        ...


@asynccontextmanager
async def gemini(tools: Sequence[mcp.types.Tool], *, model_url: str) -> AsyncIterator[Opening]:
    """Gemini, by google-genai."""
    from google import genai
    from google.genai import types

    declared = types.Tool(
        function_declarations=[
            types.FunctionDeclaration(
                name=_wire(tool), description=tool.description, parameters_json_schema=tool.input_schema
            )
            for tool in tools
        ]
    )
    options = types.HttpOptions(base_url=model_url, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(api_key="any", http_options=options)

    def user(*parts: types.Part) -> types.Content:
        return types.Content(role="user", parts=list(parts))

    class Gemini:
        def __init__(self, name: str, stage: str) -> None:
            self.contents = [user(types.Part(text=QUESTION.format(name=name)))]
            self.config = types.GenerateContentConfig(
                system_instruction=SYSTEM.format(stage=stage),
                tools=[declared],
                thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=-1),
                automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            )

        async def ask(self) -> tuple[Any, Sequence[Call]]:
            parts: list[types.Part] = []
            chunks = await client.aio.models.generate_content_stream(
                model="gemini-2.5-flash", contents=list(self.contents), config=self.config
            )
            async for chunk in chunks:
                for candidate in chunk.candidates or ():
                    parts += (candidate.content and candidate.content.parts) or ()
            answer = types.Content(role="model", parts=parts)
            self.contents.append(answer)
            called = [part.function_call for part in parts if part.function_call]
            calls = [Call(id=call.id, name=call.name or "", arguments=call.args or {}) for call in called]
            return answer.model_dump(mode="json", exclude_none=True), calls

        def tell(self, results: Sequence[tuple[Call, str]]) -> Any:
            responses = [
                types.FunctionResponse(id=call.id, name=call.name, response={"output": text}) for call, text in results
            ]
            said = user(*(types.Part(function_response=response) for response in responses))
            self.contents.append(said)
            return said.model_dump(mode="json", exclude_none=True)

    try:
        yield Gemini
    finally:
        await client.aio.aclose()
        client.close()


@asynccontextmanager
async def openai(tools: Sequence[mcp.types.Tool], *, model_url: str, **settings: Any) -> AsyncIterator[Opening]:
    """Chat completions, by LangChain's ChatOpenAI; with `settings`, what these choose."""
    from langchain_openai import ChatOpenAI

    settings = settings or {"stream_usage": True}
    async with openai_sdk.DefaultAsyncHttpxClient() as client:  # LangChain shares its own, and never closes it
        chat = ChatOpenAI(
            model="gpt-5.1",
            base_url=f"{model_url}/v1",
            api_key="any",
            max_retries=0,
            http_async_client=client,
            **settings,
        )
        yield _langchain(chat, tools)


def responses(tools: Sequence[mcp.types.Tool], *, model_url: str) -> AbstractAsyncContextManager[Opening]:
    """OpenAI's responses API, by LangChain's ChatOpenAI."""
    settings = {"use_responses_api": True, "include": ["reasoning.encrypted_content"], "store": False}
    return openai(tools, model_url=model_url, **settings)


@asynccontextmanager
async def anthropic(tools: Sequence[mcp.types.Tool], *, model_url: str) -> AsyncIterator[Opening]:
    """Claude, by LangChain's ChatAnthropic."""
    from langchain_anthropic import ChatAnthropic

    chat = ChatAnthropic(model="claude-sonnet-4-5", base_url=model_url, api_key="any", max_tokens=1000, max_retries=0)
    try:
        yield _langchain(chat, tools)
    finally:
        await chat._async_client.close()  # LangChain has no other way


@asynccontextmanager
async def xai(tools: Sequence[mcp.types.Tool], *, model_url: str) -> AsyncIterator[Opening]:
    """Grok, by LangChain's ChatXAI."""
    from langchain_xai import ChatXAI

    async with openai_sdk.DefaultAsyncHttpxClient() as client:
        chat = ChatXAI(
            model="grok-4-1-fast",
            xai_api_base=f"{model_url}/v1",
            api_key="any",
            max_retries=0,
            http_async_client=client,
        )
        yield _langchain(chat, tools)


PROVIDERS: dict[str, dict[str, str]] = {
    "openai": {"type": "openai", "model": "gpt-5.1"},
    "responses": {"type": "openai", "model": "gpt-5.1", "api": "responses"},
    "anthropic": {"type": "anthropic", "model": "claude-sonnet-4-5"},
    "xai": {"type": "xai", "model": "grok-4-1-fast"},
}
"""The operator's settings of those beside Gemini, but for addresses and keys; the functions above have their names."""

SDKS: dict[str, SDK] = {"openai": openai, "responses": responses, "anthropic": anthropic, "xai": xai}


def _langchain(chat: Any, tools: Sequence[mcp.types.Tool]) -> Opening:
    """Conversations of a chat model of LangChain's."""
    from langchain_core import messages

    bound = chat.bind_tools(
        [
            {
                "type": "function",
                "function": {
                    "name": _wire(tool),
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in tools
        ]
    )

    class LangChain:
        def __init__(self, name: str, stage: str) -> None:
            self.said: list[messages.BaseMessage] = [
                messages.SystemMessage(SYSTEM.format(stage=stage)),
                messages.HumanMessage(QUESTION.format(name=name)),
            ]

        async def ask(self) -> tuple[Any, Sequence[Call]]:
            whole: messages.AIMessageChunk | None = None
            async for chunk in bound.astream(self.said):
                whole = chunk if whole is None else whole + chunk
            assert whole is not None  # noqa: S101 - a stream has a chunk
            self.said.append(whole)
            calls = [Call(id=call["id"], name=call["name"], arguments=call["args"]) for call in whole.tool_calls]
            return whole.model_dump(mode="json"), calls

        def tell(self, results: Sequence[tuple[Call, str]]) -> Any:
            said = [messages.ToolMessage(text, tool_call_id=call.id or "") for call, text in results]
            self.said += said
            return [one.model_dump(mode="json") for one in said]

    return LangChain


def _wire(tool: mcp.types.Tool) -> str:
    return f"{model.SERVER}__{tool.name}"
