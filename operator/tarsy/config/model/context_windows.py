"""How many tokens a request may have, by what is known of models; and how many characters of one result may be in it.

What is known are windows, and the answers that they have to hold as well. A model that is not here, or that has grown
since, is told of by `context_tokens`; without, its provider's refusal is what makes a request smaller.

Source: the model pages of Google, OpenAI, Anthropic and xAI.
"""

from __future__ import annotations

from tarsy.config.model import platforms, providers

_KNOWN: dict[str, tuple[int, int]] = {
    "gemini-2.0": (1_048_576, 0),  # what it answers has a window of its own
    "gemini-2.5": (1_048_576, 0),
    "gemini-3": (1_048_576, 0),
    "gpt-4o": (128_000, 16_384),
    "gpt-4.1": (1_047_576, 32_768),
    "gpt-5": (400_000, 128_000),
    "o3": (200_000, 100_000),
    "o4-mini": (200_000, 100_000),
    "claude-": (200_000, 0),  # the answer is what its provider asks for
    "grok-4": (256_000, 0),
    "grok-4-fast": (2_000_000, 0),
    "grok-4-1-fast": (2_000_000, 0),
}
"""By the beginning of a model's name, the longest that fits: its window, and what of it an answer may take."""
LEAST = 1000
"""The tokens that are left to a request, however long the answer may be."""
CHARACTERS_A_TOKEN = 4
"""By which settings in tokens are read where text is measured, as the founding documents have it."""
_CHAT = (128_000, 16_384)
"""The models that ChatGPT has, `gpt-5-chat-latest` and the like: smaller than the others of their names."""


def context_tokens(settings: providers.Common) -> int | None:
    """The tokens that a request to this provider may have; None where that is not known."""
    if settings.context_tokens is not None:
        return settings.context_tokens
    model = settings.model.rpartition("/")[2]  # gateways put the maker's name before it
    fitting = [name for name in _KNOWN if model.startswith(name)]
    if not fitting:
        return None
    is_chat = model.startswith("gpt-5") and "-chat" in model
    window, answer = _CHAT if is_chat else _KNOWN[max(fitting, key=len)]
    if isinstance(settings, providers.AnthropicProvider):
        answer = settings.max_output_tokens + ((settings.thinking.budget or 0) if settings.thinking else 0)
    return max(window - answer, LEAST)


def of_result(platform_file: platforms.Platform, provider: str) -> int:
    """The characters of one tool result that a provider is shown."""
    settings = platform_file.llm_providers.get(provider)  # the file may have lost it since
    own = settings.max_tool_result_tokens if settings else None
    return platform_file.limits.tool_output if own is None else own * CHARACTERS_A_TOKEN
