"""The vocabulary of the tests: fixtures that more than one tier uses, each started only when a test asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop

pytest_plugins = ["support.cluster", "support.database", "support.loglines", "support.operators"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that an operator runs on."""
    return {"uvloop": uvloop.new_event_loop}
