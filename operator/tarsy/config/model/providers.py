"""The LLM providers of the platform file: one class for each `type`, with the settings of that type.

A setting that a provider does not support is an error of the file.
"""

from __future__ import annotations

import re
import urllib.parse
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tarsy.config.model.fields import URL, AllowedNamespaces, Part, Variable, Word, require
from tarsy.resources import chains

A_PRICE = 1_000_000
"""The tokens that a price is for."""
GeminiTool = Literal["google_search", "code_execution", "url_context"]
WithMCP = Literal["never", "auto"]


class Price(Part):
    """The price of a provider for a million tokens, in any currency; thinking counts as output."""

    input: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """The price of a million tokens of input."""
    output: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """The price of a million tokens of output."""

    def cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the exact cost of tokens; thoughts are output."""
        total = input_tokens * Decimal(str(self.input)) + output_tokens * Decimal(str(self.output))
        return total / A_PRICE


LEAST_CLAUDE_BUDGET = 1024
"""Tokens. Source: Claude API documentation, "Extended thinking"."""
BudgetTokens = Annotated[int, Field(ge=0, le=1_000_000)]
LevelName = Literal["minimal", "low", "medium", "high"]


class Level(Part):
    """The amount of a model's thinking, as a level."""

    level: LevelName
    """The level."""


class Thinking(Part):
    """The amount of a model's thinking: in tokens for older models, as a level for newer ones."""

    budget: BudgetTokens | None = None
    """The maximum of tokens for thinking."""
    level: LevelName | None = None
    """The level."""

    @model_validator(mode="after")
    def _has_either(self) -> Thinking:
        if (self.budget is None) == (self.level is None):
            raise ValueError("give either budget or level")
        return self


class Common(Part):
    """The settings of every provider."""

    model: Word
    """The provider's name of the model."""
    price: Price | None = None
    """The price from which the cost of calls is computed; None computes no cost."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The maximum of requests in any minute, of all processes together; None is no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """The maximum of tokens in any minute, of all processes together; None is no limit."""
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    """The maximum of tokens in a request; None is the known limit of the model, if there is one."""
    max_output_tokens: Annotated[int, Field(ge=1024)] | None = None
    """The maximum of tokens in an answer, thoughts included, as each request states it; None is the model's own. A
    budget of tokens or cost needs it."""
    max_tool_result_tokens: Annotated[int, Field(ge=256)] | None = None
    """The maximum of tokens of one tool result in a request, of four characters each; None is `limits.tool_output`."""
    allowed_namespaces: AllowedNamespaces = None
    """The namespaces whose chains and investigations may use the provider, `*` for all that are served; None is the
    operator's own. If a chain of one namespace is used from another, both have to be allowed."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the provider supports."""
        return ()

    @property
    def own_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the platform file enables."""
        return tuple(dict.fromkeys(getattr(self, "native_tools", ())))

    @property
    def mixes_tools(self) -> bool:
        """Whether native tools can be used together with those of MCP servers."""
        return True


Address = Annotated[
    URL,
    require(
        lambda value: "@" not in urllib.parse.urlsplit(value).netloc,
        "a URL with a user or a password is refused: set api_key_env or api_key_file",
    ),
]
"""The address of a provider, without a user."""
NO_OPTIONS = frozenset(
    {"model", "model_provider", "configurable_fields", "config_prefix", "api_key", "callbacks", "cache"}
)
"""The options that have a setting of their own, or are not supported."""


class Keyed(Common):
    """A provider that needs a key, and can have another address."""

    api_key_env: Variable
    """The environment variable with the key."""
    api_key_file: Path | None = None
    """A file with the key, such as a mounted Secret; it takes precedence over `api_key_env`."""
    base_url: Address | None = None
    """The address of another server with the same protocol; None is the provider's own."""


def _check_thinking_fits(thinking: Thinking | None, max_output_tokens: int | None) -> None:
    """Raise ValueError if a thinking budget leaves nothing of an answer's tokens."""
    if thinking is not None and max_output_tokens is not None and (thinking.budget or 0) >= max_output_tokens:
        raise ValueError(
            f"thinking: a budget of {thinking.budget} leaves no tokens for the answer: max_output_tokens, which is "
            f"{max_output_tokens}, has to be more"
        )


THINKING_SINCE = (2, 5)
"""The first generation of Gemini that thinks; it takes a budget, and no level."""
LEVELS_SINCE = (3, 0)
"""The first generation that takes a level, and native tools together with functions. It still takes a budget."""
_BUDGETS = {"gemini-2.5-pro": (128, 32_768), "gemini-2.5-flash-lite": (512, 24_576), "gemini-2.5-flash": (1, 24_576)}
"""The bounds of a model's thinking budget, in tokens. Source: Gemini API documentation, "Thinking"."""
_ALWAYS_THINKS = "gemini-2.5-pro"
"""The one of these models whose thinking cannot be turned off."""


def gemini_generation(model: str) -> tuple[int, int] | None:
    """Return the generation in a model's name, such as (2, 5); None if there is none."""
    match = re.match(r"gemini-(\d{1,3})(?:\.(\d{1,3}))?(?![\d.])", model)
    return (int(match[1]), int(match[2] or 0)) if match else None


class _Gemini(Common):
    """The settings of Gemini, for both endpoints."""

    thinking: Thinking | None = None
    """The amount of thinking; None is a default that suits the model."""
    native_tools: list[GeminiTool] = []
    """The native tools of agents that select none themselves."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the provider supports."""
        return ("google_search", "code_execution", "url_context")

    @model_validator(mode="after")
    def _thinking_suits_the_model(self) -> _Gemini:
        generation = gemini_generation(self.model)
        _check_thinking_fits(self.thinking, self.max_output_tokens)
        if self.thinking is None or generation is None:
            return self
        if generation < THINKING_SINCE:
            raise ValueError(f"thinking: {self.model} does not think")
        if self.thinking.level is not None and generation < LEVELS_SINCE:
            raise ValueError(f"thinking: {self.model} takes a budget, and no level")
        prefix = next((model for model in _BUDGETS if self.model.startswith(model)), None)
        if self.thinking.budget is not None and prefix is not None:
            least, most = _BUDGETS[prefix]
            none = "" if prefix == _ALWAYS_THINKS else ", or 0"
            if not (least <= self.thinking.budget <= most or (none and self.thinking.budget == 0)):
                raise ValueError(f"thinking: {self.model} takes a budget from {least} to {most}{none}")
        return self


class GoogleProvider(_Gemini, Keyed):
    """Gemini through google-genai."""

    type: Literal["google"]
    api_key_env: Variable = "GOOGLE_API_KEY"
    native_tools_with_mcp: WithMCP = "never"
    """Use of native tools together with those of MCP servers; auto uses both with the models that support it."""

    @property
    def mixes_tools(self) -> bool:
        """Whether native tools can be used with functions, which models before Gemini 3 refuse."""
        generation = gemini_generation(self.model)
        return self.native_tools_with_mcp == "auto" and (generation is None or generation >= LEVELS_SINCE)


class VertexAIProvider(_Gemini):
    """Gemini on Google Cloud, through google-genai; no model there takes native tools together with functions."""

    type: Literal["vertexai"]
    project: Word | None = None
    """The id of the project; None is that of the credentials, or of GOOGLE_CLOUD_PROJECT."""
    location: Word = "global"
    """The location of the endpoint."""
    credentials_file: Path | None = None
    """A service account's key file; None is the credentials of the environment (workload identity)."""
    base_url: Address | None = None
    """The address of another server with the same protocol; None is the provider's own."""

    @model_validator(mode="after")
    def _is_no_claude(self) -> VertexAIProvider:
        """Refuse Claude: on Vertex AI it speaks Anthropic's protocol, at other paths."""
        if re.search("claude|anthropic", self.model, re.IGNORECASE):
            raise ValueError(
                "model: Claude on Vertex AI is not supported: give a Gemini model, or ask Claude by type: anthropic"
            )
        return self

    @property
    def mixes_tools(self) -> bool:
        """False: google-genai refuses `include_server_side_tool_invocations` for Vertex AI."""
        return False


class OpenAIProvider(Keyed):
    """OpenAI, or any server that speaks its protocol, through LangChain."""

    type: Literal["openai"]
    api_key_env: Variable | None = "OPENAI_API_KEY"  # type: ignore[assignment]
    """The environment variable with the key; null for a server that needs none."""
    api: Literal["chat", "responses"] = "chat"
    """The chat completions API, or the responses API, which keeps the model's reasoning between requests."""
    thinking: Level | None = None
    """The amount of thinking; None is the model's default."""
    native_tools: list[Literal["web_search"]] = []
    """The native tools of agents that select none themselves."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the provider supports."""
        return ("web_search",) if self.api == "responses" else ()

    @model_validator(mode="after")
    def _searches_by_responses(self) -> OpenAIProvider:
        if self.native_tools and self.api != "responses":
            raise ValueError("native_tools: web_search needs api: responses")
        return self


class AnthropicProvider(Keyed):
    """Claude through LangChain."""

    type: Literal["anthropic"]
    api_key_env: Variable = "ANTHROPIC_API_KEY"
    thinking: Thinking | None = None
    """The amount of thinking: a budget of 1024 tokens at least for the models up to 4.6, a level for those from 4.6 on;
    None is the model's default."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 16_384
    """The maximum of tokens in an answer, thoughts included."""
    native_tools: list[Literal["web_search"]] = []
    """The native tools of agents that select none themselves."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the provider supports."""
        return ("web_search",)

    @model_validator(mode="after")
    def _thinking_suits_claude(self) -> AnthropicProvider:
        if self.thinking and self.thinking.level == "minimal":
            raise ValueError("thinking: level is low, medium or high")
        if self.thinking and self.thinking.budget is not None and self.thinking.budget < LEAST_CLAUDE_BUDGET:
            raise ValueError(f"thinking: budget is at least {LEAST_CLAUDE_BUDGET}")
        _check_thinking_fits(self.thinking, self.max_output_tokens)
        return self


class XAIProvider(Keyed):
    """Grok through LangChain."""

    type: Literal["xai"]
    api_key_env: Variable = "XAI_API_KEY"
    thinking: Level | None = None
    """The amount of thinking; None is the model's default."""


class LangChainProvider(Common):
    """Any other chat model that LangChain's `init_chat_model` knows and whose package is installed: text and tools."""

    type: Literal["langchain"]
    model_provider: Word
    """LangChain's name of the integration, such as `mistralai` or `ollama`."""
    api_key_env: Variable | None = None
    """The environment variable with the key; None is the integration's own variable."""
    api_key_file: Path | None = None
    """A file with the key; it takes precedence over `api_key_env`."""
    options: dict[str, Any] = {}
    """Options of the integration, such as `base_url` or `temperature`; secrets do not belong here."""

    @model_validator(mode="after")
    def _options_belong_to_the_integration(self) -> LangChainProvider:
        if ours := sorted(NO_OPTIONS & self.options.keys()):
            raise ValueError(f"options: {ours[0]} does not belong there")
        return self


Provider = Annotated[
    GoogleProvider | VertexAIProvider | OpenAIProvider | AnthropicProvider | XAIProvider | LangChainProvider,
    Field(discriminator="type"),
]
