"""The summarization of an MCP server's long results, before a model reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tarsy.config.model.fields import Part, Word


class Summarization(Part):
    """Long results are summed up by a model call of their own, and agents read the summary; the whole is kept."""

    enabled: bool = True
    """False has agents read long results themselves, as much of them as their provider is shown."""
    size_threshold_tokens: Annotated[int, Field(ge=100)] = 5000
    """Results of more tokens, of four characters each, are summed up."""
    summary_max_token_limit: Annotated[int, Field(ge=50)] = 1000
    """Tokens that a summary is asked to stay under; one of more than twice as many is not used."""
    llm_provider: Word | None = None
    """The provider that is asked; None is the one that the agent asks just then."""

    @model_validator(mode="after")
    def _asks_somebody_for_something(self) -> Summarization:
        if self.llm_provider and not self.enabled:
            raise ValueError("llm_provider: nobody is asked where enabled is false")
        return self
