"""`synthesis`: one call without tools that joins the results of agents side by side."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="synthesis",
    dialect=dialects.NATIVE,
    tools=False,
    reads="everything",
    instructions="synthesis",
    conclude="conclude-native",
)
