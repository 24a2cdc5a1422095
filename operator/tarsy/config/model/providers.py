"""The LLM providers of the platform file: one class a `type`, which says what that type takes.

What a provider lacks is an error of the file: a setting that nothing listens to is not there.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from tarsy.config.model.fields import URL, Part, Variable, Word
from tarsy.resources import chains

GeminiTool = Literal["google_search", "code_execution", "url_context"]
WithMCP = Literal["never", "auto"]


class Price(Part):
    """The price of a provider for a million tokens, in any currency; thinking counts as output."""

    input: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """The price of a million tokens of input."""
    output: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    """The price of a million tokens of output."""


LEAST_CLAUDE_BUDGET = 1024
"""Tokens. Source: Claude API documentation, "Extended thinking"."""
BudgetTokens = Annotated[int, Field(ge=0, le=1_000_000)]
LevelName = Literal["minimal", "low", "medium", "high"]


class Level(Part):
    """How much a model may think, in one word."""

    level: LevelName
    """In one word."""


class Thinking(Part):
    """How much a model may think: in tokens for older ones, in one word for newer ones."""

    budget: BudgetTokens | None = None
    """In tokens."""
    level: LevelName | None = None
    """In one word."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Thinking:
        if (self.budget is None) == (self.level is None):
            raise ValueError("give either budget or level")
        return self


class Common(Part):
    """The settings of every provider."""

    model: Word
    """The model's name, as the provider has it."""
    price: Price | None = None
    """The price that gives calls their cost; None: no cost."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests in any minute, of all processes together; None is no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens in any minute, of all processes together; None is no limit."""
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    """Tokens that a request may have; None is what is known of the model."""
    max_tool_result_tokens: Annotated[int, Field(ge=256)] | None = None
    """Tokens of one tool result that it is shown, of four characters each; None is as `limits.tool_output` says."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that it could offer."""
        return ()

    @property
    def own_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that the file gives it."""
        return tuple(dict.fromkeys(getattr(self, "native_tools", ())))

    @property
    def mixes_tools(self) -> bool:
        """Whether its native tools are offered beside those of MCP servers."""
        return True


def _without_user(value: str) -> str:
    if "@" in urllib.parse.urlsplit(value).netloc:
        raise ValueError("no user or password belongs there: the key comes by api_key_env or api_key_file")
    return value


Address = Annotated[URL, AfterValidator(_without_user)]
"""Where a provider is asked."""
NO_OPTIONS = frozenset(
    {"model", "model_provider", "configurable_fields", "config_prefix", "api_key", "callbacks", "cache"}
)
"""The options that stand elsewhere in the platform file, or have no place in it."""


class Keyed(Common):
    """A provider that wants a key, and may stand at another address."""

    api_key_env: Variable
    """The environment variable that holds the key."""
    api_key_file: Path | None = None
    """A file that holds the key, such as a mounted Secret; it goes before `api_key_env`."""
    base_url: Address | None = None
    """Another server that speaks the protocol; None is the provider's own."""


THINKING_SINCE = (2, 5)
"""The first generation of Gemini that thinks; it takes a budget, and no level."""
LEVELS_SINCE = (3, 0)
"""The first that takes a level, and takes native tools beside functions; a budget it takes still."""
_BUDGETS = {"gemini-2.5-pro": (128, 32_768), "gemini-2.5-flash-lite": (512, 24_576), "gemini-2.5-flash": (1, 24_576)}
"""Least and most tokens of a model's thoughts, if it is to think. Source: Gemini API documentation, "Thinking"."""
_NEVER_THOUGHTLESS = "gemini-2.5-pro"
"""The one of them whose thoughts cannot be turned off."""


def gemini_generation(model: str) -> tuple[int, int] | None:
    """The generation that a model's name tells, such as (2, 5); None where it tells none."""
    match = re.match(r"gemini-(\d{1,3})(?:\.(\d{1,3}))?(?![\d.])", model)
    return (int(match[1]), int(match[2] or 0)) if match else None


class _Gemini(Common):
    """The settings of Gemini, whatever the endpoint."""

    thinking: Thinking | None = None
    """None is what suits the model."""
    native_tools: list[GeminiTool] = []
    """Its own tools that agents have, if they choose none."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that it could offer."""
        return ("google_search", "code_execution", "url_context")

    @model_validator(mode="after")
    def _thinks_as_its_model_can(self) -> _Gemini:
        generation = gemini_generation(self.model)
        if self.thinking is None or generation is None:
            return self
        if generation < THINKING_SINCE:
            raise ValueError(f"thinking: {self.model} does not think")
        if self.thinking.level is not None and generation < LEVELS_SINCE:
            raise ValueError(f"thinking: {self.model} takes a budget, and no level")
        prefix = next((model for model in _BUDGETS if self.model.startswith(model)), None)
        if self.thinking.budget is not None and prefix is not None:
            least, most = _BUDGETS[prefix]
            none = "" if prefix == _NEVER_THOUGHTLESS else ", or 0"
            if not (least <= self.thinking.budget <= most or (none and self.thinking.budget == 0)):
                raise ValueError(f"thinking: {self.model} takes a budget from {least} to {most}{none}")
        return self


class GoogleProvider(_Gemini, Keyed):
    """Gemini through google-genai."""

    type: Literal["google"]
    api_key_env: Variable = "GOOGLE_API_KEY"
    native_tools_with_mcp: WithMCP = "never"
    """Whether native tools are offered beside those of MCP servers; auto is: to the models that take both."""

    @property
    def mixes_tools(self) -> bool:
        """Models before Gemini 3 refuse native tools beside functions."""
        generation = gemini_generation(self.model)
        return self.native_tools_with_mcp == "auto" and (generation is None or generation >= LEVELS_SINCE)


class VertexAIProvider(_Gemini):
    """Gemini on Google Cloud, through google-genai; it takes no native tools beside functions, whatever the model."""

    type: Literal["vertexai"]
    project: Word | None = None
    """The project's id; None is the credentials' own, or that of GOOGLE_CLOUD_PROJECT."""
    location: Word = "global"
    """Where it is asked."""
    credentials_file: Path | None = None
    """A service account's key file; None is the credentials that the environment offers (workload identity)."""
    base_url: Address | None = None
    """Another server that speaks the protocol; None is the provider's own."""

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
        """Source: google-genai, which refuses `include_server_side_tool_invocations` for Vertex AI."""
        return False


class OpenAIProvider(Keyed):
    """OpenAI, or any server that speaks its protocol, through LangChain."""

    type: Literal["openai"]
    api_key_env: Variable | None = "OPENAI_API_KEY"  # type: ignore[assignment]
    """The environment variable that holds the key; null for a server that wants none."""
    api: Literal["chat", "responses"] = "chat"
    """Chat completions, or the responses API, whose reasoning is kept from one request to the next."""
    thinking: Level | None = None
    """None is what the model does by itself."""
    native_tools: list[Literal["web_search"]] = []
    """Its own tools that agents have, if they choose none."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that it could offer."""
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
    """A budget for the models up to 4.6, of 1024 tokens at least; a level for those from 4.6 on. None is what the model
    does by itself."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Tokens that an answer may have, beside the budget of its thinking; what it thinks by level counts as well."""
    native_tools: list[Literal["web_search"]] = []
    """Its own tools that agents have, if they choose none."""

    @property
    def has_native_tools(self) -> tuple[chains.NativeTool, ...]:
        """The native tools that it could offer."""
        return ("web_search",)

    @model_validator(mode="after")
    def _thinks_as_claude_does(self) -> AnthropicProvider:
        if self.thinking and self.thinking.level == "minimal":
            raise ValueError("thinking: level is low, medium or high")
        if self.thinking and self.thinking.budget is not None and self.thinking.budget < LEAST_CLAUDE_BUDGET:
            raise ValueError(f"thinking: budget is at least {LEAST_CLAUDE_BUDGET}")
        return self


class XAIProvider(Keyed):
    """Grok through LangChain."""

    type: Literal["xai"]
    api_key_env: Variable = "XAI_API_KEY"
    thinking: Level | None = None
    """None is what the model does by itself."""


class LangChainProvider(Common):
    """Any other chat model that LangChain's `init_chat_model` knows and whose package is installed: text and tools."""

    type: Literal["langchain"]
    model_provider: Word
    """LangChain's name of the integration, such as `mistralai` or `ollama`."""
    api_key_env: Variable | None = None
    """The environment variable that holds the key; None leaves it to the integration's own."""
    api_key_file: Path | None = None
    """A file that holds the key; it goes before `api_key_env`."""
    options: dict[str, Any] = {}
    """Handed on to the integration, such as `base_url` or `temperature`; secrets do not belong here."""

    @model_validator(mode="after")
    def _options_of_its_own(self) -> LangChainProvider:
        if ours := sorted(NO_OPTIONS & self.options.keys()):
            raise ValueError(f"options: {ours[0]} does not belong there")
        return self


Provider = Annotated[
    GoogleProvider | VertexAIProvider | OpenAIProvider | AnthropicProvider | XAIProvider | LangChainProvider,
    Field(discriminator="type"),
]
