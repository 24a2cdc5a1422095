"""`react`: thoughts, actions and observations in text, until there is a final answer."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="react",
    dialect=dialects.REACT,
    tools=True,
    reads="results",
    instructions="react",
    conclude="conclude-react",
)
