"""`synthesis`: one call without tools that joins the results of agents side by side."""

from __future__ import annotations

from tarsy.agent import dialects
from tarsy.agent.strategies import row

ROW = row.Strategy(
    name="synthesis",
    dialect=dialects.NATIVE,
    tools=False,
    reads="everything",
    instructions="synthesis",
    conclude="conclude-native",
)
