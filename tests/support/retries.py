"""One honest retry: what failed because something did not come in time runs once more, is counted, and is told last.

"Not reached in time" may be the machine's fault, "wrong when reached" is never: pytest-rerunfailures tries again what
raised `patience.TooLong` and nothing else. A test marked `once` (kills, masking, rights) is never tried again, and
a run with more than three retries is red: the machine cannot be that unlucky.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RETRIES_MAX = 3
FILE = Path(".dev") / "flaky.json"
"""Where the retries of the last run are written, from the root of the checkout."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--no-skips`, for CI, which installs whatever a test could miss."""
    parser.addoption("--no-skips", action="store_true", help="fail if a test was skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Count in the one process that has all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counter(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the retry from the tests marked `once`."""
    for test in items:
        if test.get_closest_marker("once"):
            test.add_marker(pytest.mark.flaky(reruns=0), append=False)


class Counter:
    """The retries and skips of a run."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin with none; `config` is the run's."""
        self._config = config
        self._retried: dict[str, str] = {}
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a retry with its cause, and a skip."""
        if str(report.outcome) == "rerun":  # the outcome that pytest-rerunfailures adds
            self._retried[report.nodeid] = report.longreprtext[-2000:]
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run with too many retries, or with skips where there may be none."""
        if self._config.option.reruns is not None:
            path = self._config.rootpath / FILE
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(self._retried, indent=2) + "\n", encoding="utf-8")
        if self._is_red() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Name the retries and, where they are red, the skips: last, below pytest's own summary."""
        terminal: pytest.TerminalReporter = self._config.pluginmanager.getplugin("terminalreporter")
        for nodeid in self._retried:
            terminal.write_line(f"retried, because it did not reach something in time: {nodeid}")
        if len(self._retried) > RETRIES_MAX:
            terminal.write_line(f"red: {len(self._retried)} retries, of which at most {RETRIES_MAX} are bad luck")
        if self._config.option.no_skips:
            for nodeid in self._skipped:
                terminal.write_line(f"red: skipped, and CI has to run it: {nodeid}")

    def _is_red(self) -> bool:
        is_skipped = bool(self._skipped) and bool(self._config.option.no_skips)
        return is_skipped or len(self._retried) > RETRIES_MAX
