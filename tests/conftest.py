"""The vocabulary of the tests: fixtures that more than one tier uses, each started only when a test asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import hypothesis
import uvloop

# The same examples each time, and none that fails because the machine was busy: what takes time has tests of its own.
hypothesis.settings.register_profile(
    "tarsy", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tarsy")

pytest_plugins = [
    "support.accounts",
    "support.cluster",
    "support.database",
    "support.image",
    "support.loglines",
    "support.operators",
]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that an operator runs on."""
    return {"uvloop": uvloop.new_event_loop}
