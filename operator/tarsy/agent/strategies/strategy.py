"""The row of data that distinguishes one strategy from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tarsy.agent import dialects
from tarsy.resources import chains

Reads = Literal["results", "data", "everything"]
"""The work of others that a strategy reads: their conclusions; also answers, calls and results; also thoughts."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """The first messages of a conversation, the tools of its requests, and the dialect of its answers."""

    name: chains.IterationStrategy
    dialect: dialects.Dialect
    tools: bool
    """Without, the first answer is the conclusion."""
    reads: Reads
    instructions: str
    """The template with the instructions."""
    conclude: str
    """The template that asks for a conclusion when the iterations are used up."""
