"""The table of log lines is read from the code, and refuses what it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tarsy_dev import logs_page


def written(tmp_path: Path, body: str) -> list[logs_page.Line]:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "module.py").write_text(f"import logging\nlog = logging.getLogger(__name__)\n{body}")
    return logs_page.lines(tmp_path)


def test_a_line_has_the_fields_of_its_dictionary_variable_and_helper(tmp_path: Path) -> None:
    body = """
def about(target, action):
    return {"action": action, "uid": target}

def write(target, count):
    more = {"count": count}
    log.info("%s: %s", "began" if count else "goes on", target, extra=about(target, "begun") | more)
"""
    (line,) = written(tmp_path, body)
    assert line == logs_page.Line(
        action="begun", level="INFO", message="began: … / goes on: …", fields=("count", "uid"), room="room"
    )


@pytest.mark.parametrize("call", ['log.info("begun")', 'log.info("begun", extra={"action": action})'])
def test_a_line_without_a_readable_action_is_refused_with_its_place(tmp_path: Path, call: str) -> None:
    with pytest.raises(logs_page.LogCallError, match=r"^room/module\.py:4: write the action"):
        written(tmp_path, f"def write(action):\n    {call}\n")


@pytest.mark.slow
def test_every_call_of_a_logger_in_the_product_is_in_the_table() -> None:
    actions = {line.action for line in logs_page.lines()}
    page = logs_page.PAGE.read_text(encoding="utf-8")
    assert actions >= {"run_started", "run_ended", "lease_lost", "audit", "resync_alarm"}
    assert [action for action in actions if f"| `{action}` |" not in page] == []
