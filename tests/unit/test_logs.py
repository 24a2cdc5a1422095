from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest
from tarsy.telemetry import logs


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Leave the root logger and the quieted ones as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: found.level for name, found in root.manager.loggerDict.items() if isinstance(found, logging.Logger)}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, found in root.manager.loggerDict.items():
        if isinstance(found, logging.Logger):
            found.setLevel(levels.get(name, logging.NOTSET))


def test_a_line_ends_with_its_fields_sorted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("tarsy.worker").info("%s ended", "web", extra={"action": "ended", "attempt": 2, "Zone": "x"})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    tarsy\.worker  web ended Zone=x action=ended attempt=2\n",
        captured.err,
    )


async def test_a_line_of_a_task_has_no_fields_that_nobody_gave_it(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("tarsy").warning("plain")
    assert capsys.readouterr().err.endswith("tarsy  plain\n")


def test_an_exception_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("tarsy").error("broke", exc_info=RuntimeError("broken"), extra={"action": "run_broke"})
    line, exception = capsys.readouterr().err.splitlines()
    assert line.endswith("broke action=run_broke")
    assert exception == "RuntimeError: broken"


@pytest.mark.parametrize(("level", "lines"), [("DEBUG", 3), ("INFO", 2), ("ERROR", 0)])
def test_the_level_holds_for_us_and_noisy_libraries_only_warn(
    capsys: pytest.CaptureFixture[str], level: str, lines: int
) -> None:
    logs.configure(level=level)
    for name in ("tarsy.api", "kopf", "mcp", "google_genai", "httpx2"):
        logging.getLogger(name).info("detail")
        logging.getLogger(name).debug("detail")
    logging.getLogger("tarsy").warning("trouble")
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize("forged", ["a\nINFO tarsy  forged", "a\r\nb"])
def test_one_event_is_one_line_whatever_its_fields_hold(capsys: pytest.CaptureFixture[str], forged: str) -> None:
    """Names in the log come from alerts: they must not forge a line."""
    logs.configure()
    logging.getLogger("tarsy").info("alert %s", forged, extra={"alertname": forged})
    assert len(capsys.readouterr().err.splitlines()) == 1
