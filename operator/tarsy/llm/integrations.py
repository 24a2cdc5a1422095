"""Every other chat model with an integration in LangChain: text and tools, over the integration's own HTTP.

It does not ask for thoughts, send signatures back, or offer tools of the provider's own. Each integration closes its
connections in its own way; if it shows its HTTP client, that follows no redirect to another origin and accepts no
compressed answer. Only the answers of an httpx2 client are bounded before they are parsed.
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
"""The options that are set if an integration has them: retries and timeouts are ours, and tokens are counted."""
OUTPUT_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "num_predict", "max_new_tokens")
"""The names of integrations for the maximum of tokens in an answer."""
CLIENTS = ("root_async_client", "async_client", "_async_client")
"""The attributes of integrations that hold the SDK's client, if they show it."""

for _variable in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"):
    os.environ.pop(_variable, None)  # prompts go to no third party


def build(
    name: str,
    settings: providers.LangChainProvider,
    *,
    key: str | None,
    session: aiohttp.ClientSession,  # noqa: ARG001 - integrations have HTTP of their own
) -> provider.Provider:
    """Build the provider `name`. Raises UnusableError if its settings are invalid."""
    options = settings.options | ({"api_key": key} if key else {})
    chat = _chat(settings, options)
    names = {name for field, about in type(chat).model_fields.items() for name in (field, about.alias)}
    if unknown := sorted(settings.options.keys() - names):
        raise provider.UnusableError(f"options: {type(chat).__name__} has no {unknown[0]}")
    defaults: dict[str, Any] = dict(DEFAULTS)
    if settings.max_output_tokens is not None:
        limit = next((limit for limit in OUTPUT_LIMITS if limit in names), None)
        if limit is None:
            raise provider.UnusableError(f"max_output_tokens: {type(chat).__name__} has no limit of an answer")
        if limit in settings.options:
            raise provider.UnusableError(f"max_output_tokens: options.{limit} is the same setting: give one of them")
        defaults[limit] = settings.max_output_tokens
    if more := {key: value for key, value in defaults.items() if key in names and key not in options}:
        chat = _chat(settings, options | more)
    _guard_clients(chat)
    return Integration(name, chat, model=settings.model, secret=key or "")


def _guard_clients(chat: core.BaseChatModel) -> None:
    """Make the HTTP clients of an integration refuse redirects to another origin and, if possible, bound answers."""
    for name in CLIENTS:
        client: Any = getattr(chat, name, None)
        while client is not None and not hasattr(client, "event_hooks"):  # the client of httpx, within the SDK's
            client = getattr(client, "_client", None)
        if client is None:
            continue
        client.follow_redirects = client.follow_redirects and bool(client.base_url.host)
        client.headers["Accept-Encoding"] = "identity"
        hooks = client.event_hooks
        client.event_hooks = {
            **hooks,
            "request": [*hooks["request"], functools.partial(_refuse_redirect, client.base_url)],
            "response": [
                *hooks["response"],
                http.bounded if isinstance(client, httpx2.AsyncClient) else http.refuse_compressed,
            ],
        }


async def _refuse_redirect(base: Any, request: Any) -> None:
    if base.host:
        http.refuse_other_origin(request.url, base)


def _chat(settings: providers.LangChainProvider, options: dict[str, Any]) -> core.BaseChatModel:
    chat = chat_models.init_chat_model(settings.model, model_provider=settings.model_provider, **options)
    assert isinstance(chat, core.BaseChatModel)  # noqa: S101 - without configurable fields it is one
    return chat


class Integration(langchain.ChatModel):
    """A model of an integration, used only by LangChain's common interface."""

    async def chunks(
        self, conversation: list[lc.BaseMessage], request: ports.Request
    ) -> AsyncGenerator[ChatGenerationChunk]:
        """Stream one answer, in one piece if the integration does not stream."""
        chat: Any = self.chat
        if request.tools:
            try:
                chat = self.chat.bind_tools(self.tools(request))
            except NotImplementedError as error:
                problem = (
                    f"{type(self.chat).__name__} takes no tools: give its agents no MCP servers, or strategy react"
                )
                raise provider.FatalError(problem, code="tools") from error
        async for message in chat.astream(conversation):
            yield ChatGenerationChunk(message=message)

    def finish(self, chunk: ChatGenerationChunk) -> str | None:
        """Return the reason why the model stopped. Many integrations give none; then LangChain marks the last chunk."""
        last = getattr(chunk.message, "chunk_position", "last") == "last"
        return super().finish(chunk) or ("stop" if last else None)

    async def close(self) -> None:
        """Close the SDK's client, if the integration shows it."""
        for name in CLIENTS:
            close = getattr(getattr(self.chat, name, None), "close", None)
            if inspect.iscoroutinefunction(close):
                await close()
