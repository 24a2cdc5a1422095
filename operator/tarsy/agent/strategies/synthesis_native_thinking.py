"""`synthesis-native-thinking`: as `synthesis`, by the founding documents' other name for it."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="synthesis-native-thinking",
    dialect=dialects.NATIVE,
    tools=False,
    reads="everything",
    instructions="synthesis",
    conclude="conclude-native",
)
