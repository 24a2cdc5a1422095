"""`react-final-analysis`: one call without tools over all data of the stages before it."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="react-final-analysis",
    dialect=dialects.NATIVE,
    tools=False,
    reads="data",
    instructions="react-final-analysis",
    conclude="conclude-native",
)
