"""`native-thinking`: the provider's own tool calls, until an answer has none."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="native-thinking",
    dialect=dialects.NATIVE,
    tools=True,
    reads="results",
    instructions="native",
    conclude="conclude-native",
)
