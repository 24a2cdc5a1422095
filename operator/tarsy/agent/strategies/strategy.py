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
    """How a conversation opens, what a request carries, and how an answer is read."""

    name: chains.IterationStrategy
    dialect: dialects.Dialect
    tools: bool
    """Without, the first answer is the conclusion."""
    reads: Reads
    instructions: str
    """The template that says how to work."""
    conclude: str
    """The template that asks for a conclusion when the iterations are used up."""
