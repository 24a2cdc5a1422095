"""The summarization of an MCP server's long results, before a model reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tarsy.config.model.fields import Part, Word


class Summarization(Part):
    """The summarization of long results by a model call. Agents read the summary, and the full result is stored."""

    enabled: bool = True
    """False gives agents the long results themselves, up to the limit of their provider."""
    size_threshold_tokens: Annotated[int, Field(ge=100)] = 5000
    """Results of more tokens, of four characters each, are summed up."""
    summary_max_token_limit: Annotated[int, Field(ge=50)] = 1000
    """The limit in tokens that the model is asked to keep; a summary of more than twice as many is discarded."""
    llm_provider: Word | None = None
    """The provider of the summary; None is the agent's current provider."""

    @model_validator(mode="after")
    def _provider_has_a_use(self) -> Summarization:
        if self.llm_provider and not self.enabled:
            raise ValueError("llm_provider: has no effect if enabled is false")
        return self
