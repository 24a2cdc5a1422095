"""Context windows of known models: the limits for the tokens of a request and the characters of one tool result.

A window holds the request and the answer. The platform file's `context_tokens` sets the limit of a model that is not
listed here, or whose window has grown. Without either, a request is made smaller once its provider refuses it.

Source: the model pages of Google, OpenAI, Anthropic and xAI.
"""

from __future__ import annotations

from tarsy.config.model import platforms, providers

_WINDOWS: dict[str, tuple[int, int]] = {
    "gemini-2.0": (1_048_576, 0),  # the answer has a window of its own
    "gemini-2.5": (1_048_576, 0),
    "gemini-3": (1_048_576, 0),
    "gpt-4o": (128_000, 16_384),
    "gpt-4.1": (1_047_576, 32_768),
    "gpt-5": (400_000, 128_000),
    "o3": (200_000, 100_000),
    "o4-mini": (200_000, 100_000),
    "claude-": (200_000, 0),  # the provider's settings limit the answer
    "grok-4": (256_000, 0),
    "grok-4-fast": (2_000_000, 0),
    "grok-4-1-fast": (2_000_000, 0),
}
"""(tokens of the window, tokens of it for the answer) by the beginning of a model's name; the longest match counts."""
MINIMUM = 1000
"""The smallest limit of a request, in tokens, however long the answer may be."""
CHARACTERS_A_TOKEN = 4
"""The conversion of settings in tokens to characters of text. Source: the founding documents."""
_CHAT = (128_000, 16_384)
"""The window of ChatGPT's models, such as `gpt-5-chat-latest`: it is smaller than that of other models of the name."""


def context_tokens(settings: providers.Common) -> int | None:
    """Return the tokens that a request to this provider may have; None if the limit is unknown."""
    if settings.context_tokens is not None:
        return settings.context_tokens
    model = settings.model.rpartition("/")[2]  # gateways put the vendor's name before it
    matches = [name for name in _WINDOWS if model.startswith(name)]
    if not matches:
        return None
    is_chat = model.startswith("gpt-5") and "-chat" in model
    window, answer = _CHAT if is_chat else _WINDOWS[max(matches, key=len)]
    if isinstance(settings, providers.AnthropicProvider):
        answer = settings.max_output_tokens
    return max(window - answer, MINIMUM)


def request_tokens(platform_file: platforms.Platform, provider: str) -> int | None:
    """Return the tokens that a request to a provider of the file may have; None if that is unknown."""
    settings = platform_file.llm_providers.get(provider)  # it may have been removed from the file
    return context_tokens(settings) if settings else None


def result_characters(platform_file: platforms.Platform, provider: str) -> int:
    """Return how many characters of one tool result a request to this provider may contain."""
    settings = platform_file.llm_providers.get(provider)  # it may have been removed from the file
    tokens = settings.max_tool_result_tokens if settings else None
    return platform_file.limits.tool_output if tokens is None else tokens * CHARACTERS_A_TOKEN
