"""The vocabulary of the tests: fixtures that more than one tier uses, each started only when a test asks for it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import hypothesis
import pytest
import uvloop
from hypothesis.internal.conjecture import providers
from support import inherited

inherited.settle()

# Without bytecode each worker, and each program that a test starts, would compile all sources of this checkout anew:
# half of what it costs to collect the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples each time, and none that fails because the machine was busy: what takes time has tests of its own.
hypothesis.settings.register_profile(
    "tarsy", deadline=None, derandomize=True, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tarsy")

# Hypothesis draws some of its values from the constants of all modules of ours that a worker has imported by then, so
# that an edit elsewhere, or another order of files, would change the examples. It is private, and has to be there.
assert callable(providers._get_local_constants)
providers._get_local_constants = lambda: providers._local_constants

pytest_plugins = [
    "support.shared",  # before those that import it
    "support.accounts",
    "support.applied_charts",
    "support.browser",
    "support.cluster",
    "support.database",
    "support.investigated",
    "support.leaping",
    "support.loglines",
    "support.operators",
    "support.retries",
    "support.command_worlds",
    "support.signed_in_pages",
    "support.watched_api",
]

UNIT = Path(__file__).parent / "unit"
UNIT_SECONDS = 120
"""The seconds that a test without servers may take; those with servers may take more (`pyproject.toml`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of `unit` a limit of their own."""
    for test in items:
        if UNIT in test.path.parents and not test.get_closest_marker("timeout"):
            test.add_marker(pytest.mark.timeout(UNIT_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without a look for garbage, and look never again at what modules and tests are made of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


class Loop(uvloop.Loop):
    """The loop that an operator runs on; a test that leaves something open in it fails.

    uvloop warns of such a thing while it closes it. Were the warning an error there, the thing would stay open, and
    uvloop would wait for its end for ever, where no time limit reaches.
    """

    def close(self) -> None:
        with warnings.catch_warnings(record=True) as unclosed:
            warnings.simplefilter("always")
            super().close()
        if unclosed:
            raise AssertionError("left open: " + "; ".join(str(warning.message) for warning in unclosed))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that an operator runs on; `support.leaping` has another for those that leap."""
    return {"uvloop": Loop}
