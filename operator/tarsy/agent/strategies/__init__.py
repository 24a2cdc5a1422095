"""The iteration strategies: six rows of data over one loop and two dialects.

A strategy is a module, and a line here.
"""

from __future__ import annotations

from tarsy.agent.strategies import (
    native_thinking,
    react,
    react_final_analysis,
    react_stage,
    synthesis,
    synthesis_native_thinking,
)
from tarsy.agent.strategies.strategy import Reads, Strategy
from tarsy.resources import chains

__all__ = ["STRATEGIES", "Reads", "Strategy"]

STRATEGIES: dict[chains.IterationStrategy, Strategy] = {
    module.STRATEGY.name: module.STRATEGY
    for module in (react, react_stage, react_final_analysis, native_thinking, synthesis, synthesis_native_thinking)
}
"""By the names that chains and the platform file give them."""
