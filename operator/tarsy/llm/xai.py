"""Grok through LangChain's ChatXAI, over OpenAI's chat completions. Its thoughts are shown, and not sent back."""

from __future__ import annotations

import aiohttp
import langchain_xai

from tarsy.config.model import providers
from tarsy.llm import openai, provider

ADDRESS = "https://api.x.ai/v1"
"""LangChain's own default, unless the environment says otherwise."""


def build(
    name: str, settings: providers.XAIProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """Build the provider `name` over `session`, which stays the caller's."""
    chat = langchain_xai.ChatXAI(
        model=settings.model,
        use_responses_api=False,
        stream_usage=True,
        reasoning_effort=settings.thinking.level if settings.thinking else None,
        max_tokens=settings.max_output_tokens,
        **openai.connection_options(settings.base_url or ADDRESS, key=key, session=session),
    )
    chat.async_client = openai.CompletionsClient(chat.root_async_client)
    return openai.Chat(name, chat, model=settings.model, secret=key or "")
