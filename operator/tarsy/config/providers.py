"""The LLM providers of the platform file: one class a `type`, which says what that type takes.

What a provider lacks is an error of the file: a setting that nothing listens to is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tarsy.config.parts import URL, Part, Variable, Word
from tarsy.resources import chain

GeminiTool = Literal["google_search", "code_execution", "url_context"]
WithMCP = Literal["never", "auto"]


class Price(Part):
    """What a provider takes for a million tokens, in whatever currency; thinking counts as output."""

    input: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


BudgetTokens = Annotated[int, Field(ge=0, le=1_000_000)]
LevelName = Literal["minimal", "low", "medium", "high"]


class Budget(Part):
    """How much a model may think, in tokens."""

    budget: BudgetTokens
    """0 is not at all, where the model can do that."""


class Level(Part):
    """How much a model may think, in one word."""

    level: LevelName


class Thinking(Part):
    """How much a model may think: in tokens for older ones, in one word for newer ones."""

    budget: BudgetTokens | None = None
    level: LevelName | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Thinking:
        if (self.budget is None) == (self.level is None):
            raise ValueError("give either budget or level")
        return self


class Common(Part):
    """What every provider takes."""

    model: Word
    """The model's name, as the provider has it."""
    price: Price | None = None
    """What gives calls their cost; None is none."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests in any minute, of all processes together; None is no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Tokens in any minute, of all processes together; None is no limit."""
    context_tokens: Annotated[int, Field(ge=1000)] | None = None
    """Tokens that a request may have; None is what is known of the model."""

    has_native_tools: ClassVar[tuple[chain.NativeTool, ...]] = ()
    """The native tools that its type has."""

    @property
    def own_native_tools(self) -> tuple[chain.NativeTool, ...]:
        """The native tools that the file gives it."""
        return tuple(getattr(self, "native_tools", ()))

    @property
    def mixes_tools(self) -> bool:
        """Whether its native tools are offered beside those of MCP servers."""
        return True


class Keyed(Common):
    """A provider that wants a key, and may stand at another address."""

    api_key_env: Variable
    """The environment variable that holds the key."""
    api_key_file: Path | None = None
    """A file that holds the key, such as a mounted Secret; it goes before `api_key_env`."""
    base_url: URL | None = None
    """Another server that speaks the protocol; None is the provider's own."""


class _Gemini(Common):
    """What Gemini takes, wherever it is asked."""

    thinking: Thinking | None = None
    """None is what suits the model."""
    native_tools: list[GeminiTool] = []
    native_tools_with_mcp: WithMCP = "never"
    """Whether native tools are offered beside those of MCP servers; auto is: to the models that take both."""

    has_native_tools: ClassVar[tuple[chain.NativeTool, ...]] = ("google_search", "code_execution", "url_context")

    @property
    def mixes_tools(self) -> bool:
        """Models before Gemini 3 refuse native tools beside functions."""
        older = self.model.startswith(("gemini-1", "gemini-2"))
        return self.native_tools_with_mcp == "auto" and not older


class GoogleProvider(_Gemini, Keyed):
    """Gemini through google-genai."""

    type: Literal["google"]
    api_key_env: Variable = "GOOGLE_API_KEY"


class VertexAIProvider(_Gemini):
    """Gemini on Google Cloud, through google-genai."""

    type: Literal["vertexai"]
    project: Word | None = None
    """The project's id; None is the credentials' own, or that of GOOGLE_CLOUD_PROJECT."""
    location: Word = "global"
    credentials_file: Path | None = None
    """A service account's key file; None is the credentials that the environment offers (workload identity)."""
    base_url: URL | None = None
    """Another server that speaks the protocol; None is the provider's own."""


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

    has_native_tools: ClassVar[tuple[chain.NativeTool, ...]] = ("web_search",)

    @model_validator(mode="after")
    def _searches_by_responses(self) -> OpenAIProvider:
        if self.native_tools and self.api != "responses":
            raise ValueError("native_tools: web_search needs api: responses")
        return self


class AnthropicProvider(Keyed):
    """Claude through LangChain."""

    type: Literal["anthropic"]
    api_key_env: Variable = "ANTHROPIC_API_KEY"
    thinking: Budget | None = None
    """None is none."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 16_384
    """Tokens that an answer may have, beside its thinking."""
    native_tools: list[Literal["web_search"]] = []

    has_native_tools: ClassVar[tuple[chain.NativeTool, ...]] = ("web_search",)


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


Provider = Annotated[
    GoogleProvider | VertexAIProvider | OpenAIProvider | AnthropicProvider | XAIProvider | LangChainProvider,
    Field(discriminator="type"),
]
