"""Every other chat model that LangChain has an integration of: text and tools, over the integration's own HTTP.

What it does not do: show thoughts that it has to be asked for, send signatures back, offer tools of the provider's own.
How it closes its connections is the integration's; where it shows its HTTP client, that follows no redirect to another
origin and takes no compressed answer. Only the answers of an httpx2 client are bounded before they are parsed.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import httpx2
from langchain import chat_models
from langchain_core import messages as lc
from langchain_core.language_models import chat_models as core
from langchain_core.outputs import ChatGenerationChunk

from tarsy.config.model import providers
from tarsy.llm import http, langchain, provider
from tarsy.transcript import ports

DEFAULTS = {"max_retries": 0, "stream_usage": True, "stream_chunk_timeout": None}
"""The options that are set where an integration has them: retries and timeouts are ours, and tokens are counted."""
CLIENTS = ("root_async_client", "async_client", "_async_client")
"""Where integrations have the SDK's client, if they show it."""

for _variable in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"):
    os.environ.pop(_variable, None)  # prompts go to no third party


def build(
    name: str,
    settings: providers.LangChainProvider,
    *,
    key: str | None,
    session: aiohttp.ClientSession,  # noqa: ARG001 - the others'
) -> provider.Provider:
    """The provider `name`; a `provider.UnusableError` says what is wrong with its settings."""
    options = settings.options | ({"api_key": key} if key else {})
    chat = _chat(settings, options)
    option = {option for field, field_info in type(chat).model_fields.items() for option in (field, field_info.alias)}
    if unknown := sorted(settings.options.keys() - option):
        raise provider.UnusableError(f"options: {type(chat).__name__} has no {unknown[0]}")
    if more := {name: value for name, value in DEFAULTS.items() if name in option and name not in options}:
        chat = _chat(settings, options | more)
    _guard_clients(chat)
    return Integration(name, chat, model=settings.model, secret=key or "")


def _guard_clients(chat: core.BaseChatModel) -> None:
    """Have the HTTP clients that an integration shows follow no redirect to another origin, and bound their answers.

    Key and conversation would go there.
    """
    for name in CLIENTS:
        client: Any = getattr(chat, name, None)
        while client is not None and not hasattr(client, "event_hooks"):  # httpx's, below what the SDK makes of it
            client = getattr(client, "_client", None)
        if client is None:
            continue
        client.follow_redirects = client.follow_redirects and bool(client.base_url.host)
        client.headers["Accept-Encoding"] = "identity"
        hooks = client.event_hooks
        client.event_hooks = {
            **hooks,
            "request": [*hooks["request"], functools.partial(_stays, client.base_url)],
            "response": [*hooks["response"], http.bounded if isinstance(client, httpx2.AsyncClient) else _is_plain],
        }


async def _stays(base: Any, request: Any) -> None:
    if base.host and _origin(request.url) != _origin(base):
        raise provider.FatalError("the server redirects to another origin, which gets neither key nor conversation")


async def _is_plain(response: Any) -> None:
    http.refuse_compressed(response)


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _chat(settings: providers.LangChainProvider, options: dict[str, Any]) -> core.BaseChatModel:
    chat = chat_models.init_chat_model(settings.model, model_provider=settings.model_provider, **options)
    assert isinstance(chat, core.BaseChatModel)  # noqa: S101 - without configurable fields it is one
    return chat


class Integration(langchain.ChatModel):
    """A model of an integration that is known by LangChain's words alone."""

    async def chunks(
        self, conversation: list[lc.BaseMessage], request: ports.Request
    ) -> AsyncGenerator[ChatGenerationChunk]:
        """Ask, and stream; an integration that does not stream answers whole."""
        asked: Any = self.chat
        if request.tools:
            try:
                asked = self.chat.bind_tools(self.tools(request))
            except NotImplementedError as error:
                why = f"{type(self.chat).__name__} takes no tools: give its agents no MCP servers, or strategy react"
                raise provider.FatalError(why, code="tools") from error
        async for message in asked.astream(conversation):
            yield ChatGenerationChunk(message=message)

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Why the model stopped; many do not say it, and LangChain ends what has ended well."""
        last = getattr(chunk.message, "chunk_position", "last") == "last"
        return super().finish(chunk) or ("stop" if last else None)

    async def close(self) -> None:
        """Close the SDK's client, where the integration shows it."""
        for name in CLIENTS:
            close = getattr(getattr(self.chat, name, None), "close", None)
            if inspect.iscoroutinefunction(close):
                await close()
