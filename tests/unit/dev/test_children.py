from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tarsy_dev import children, patience

PARENT = """
import pathlib, threading, time
from tarsy_dev import children

def start():
    child = children.start(["sleep", "60"], name="sleep", log=pathlib.Path("sleep.log"), cwd=pathlib.Path())
    print(child.pid, flush=True)

thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(60)
"""


def start(tmp_path: Path, script: str) -> children.Child:
    return children.start(["sh", "-c", script], name="server", log=tmp_path / "server.log", cwd=tmp_path)


def test_a_child_outlives_the_thread_that_started_it_but_not_the_process(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        assert not select.select([child], [], [], 0.2)[0]
        parent.kill()
        assert select.select([child], [], [], 60)[0]
    finally:
        os.close(child)
        parent.kill()
        parent.communicate()


def test_an_early_end_is_an_error_with_the_last_lines_of_the_log(tmp_path: Path) -> None:
    child = start(tmp_path, "echo address already in use; exit 3")
    with pytest.raises(
        children.ChildError, match=r"server ended with status 3; the end of .*:\n  address already in use"
    ):
        child.wait_until(lambda: False, what="readiness")


def test_a_server_that_is_not_ready_in_time_is_an_error_that_says_what_was_waited_for(tmp_path: Path) -> None:
    child = start(tmp_path, "exec sleep 60")
    with pytest.raises(patience.TooLong, match="server: readiness did not come true"):
        child.wait_until(lambda: False, timeout=0, what="readiness")
    child.end()


def test_a_child_that_ignores_its_signal_is_killed(tmp_path: Path) -> None:
    child = start(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 1; done")
    child.wait_until(child.log.read_text, what="the trap")
    child.end(timeout=0)
    assert child.process.returncode == -signal.SIGKILL
