"""`react-stage`: collects what its stage needs and analyses that, without a final conclusion."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import strategy

STRATEGY = strategy.Strategy(
    name="react-stage",
    dialect=dialects.REACT,
    tools=True,
    reads="results",
    instructions="react-stage",
    conclude="conclude-react-stage",
)
