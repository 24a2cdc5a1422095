"""The log of this process, as the operator would write it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from tarsy.telemetry import logs

LogLines: TypeAlias = Callable[[], list[dict[str, Any]]]
"""A function that returns the lines logged since its last call, a dictionary a line."""


@pytest.fixture
def logging_put_back() -> Iterator[None]:
    """Leave the root logger and the quieted ones as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: child.level for name, child in root.manager.loggerDict.items() if isinstance(child, logging.Logger)}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, logger in root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger):
            logger.setLevel(levels.get(name, logging.NOTSET))


@pytest.fixture
def log_lines(logging_put_back: None) -> LogLines:
    """The lines of the log, which is JSON from here on."""
    logs.configure(form="json")
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    stream = io.StringIO()
    handler.setStream(stream)

    def take_lines() -> list[dict[str, Any]]:
        lines = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in lines]

    return take_lines
