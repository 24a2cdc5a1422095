"""The part of an MCP server's long results that a model reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tarsy.config.model.fields import Part, Word

Mode = Literal["excerpt", "summary", "off"]


class Summarization(Part):
    """The treatment of long results. The full result is stored in each mode, and agents can search and read it."""

    mode: Mode = "excerpt"
    """`excerpt` gives agents an excerpt, chosen without a model: head, tail, errors and warnings, lines that differ
    from their neighbours, words of the alert. `summary` gives them a summary by a model, of an excerpt of 40,000
    characters at most. `off` gives them the results themselves, up to the limit of their provider. Without a mode,
    `llm_provider` or `summary_max_token_limit` mean `summary`."""
    enabled: bool | None = None
    """The former key instead of `mode`: true is `summary`, false is `off`."""
    size_threshold_tokens: Annotated[int, Field(ge=100)] = 5000
    """Results of more tokens, of four characters each, are long. An excerpt has at most as many, and 250 at least."""
    summary_max_token_limit: Annotated[int, Field(ge=50)] = 1000
    """The limit in tokens that the model is asked to keep; a summary of more than twice as many is discarded."""
    llm_provider: Word | None = None
    """The provider of the summary; None is the agent's current provider."""

    @model_validator(mode="before")
    @classmethod
    def _mode_by_other_keys(cls, written: Any) -> Any:
        """Set the mode of a file that is older than this key."""
        if not isinstance(written, dict) or written.get("mode") is not None:
            return written
        if isinstance(enabled := written.get("enabled"), bool):
            return written | {"mode": "summary" if enabled else "off"}
        if written.get("llm_provider") is not None or "summary_max_token_limit" in written:
            return written | {"mode": "summary"}
        return written

    @model_validator(mode="after")
    def _has_no_idle_keys(self) -> Summarization:
        if self.enabled is not None and self.mode != ("summary" if self.enabled else "off"):
            raise ValueError("enabled: contradicts mode: leave it out")
        if self.llm_provider and self.mode != "summary":
            raise ValueError("llm_provider: has no effect unless mode is summary")
        return self
