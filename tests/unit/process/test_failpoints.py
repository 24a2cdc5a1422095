from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tarsy import failpoints

HITS = """
from tarsy import failpoints
for number in range(4):
    failpoints.hit("tool.call.before")
    failpoints.hit("journal.commit.after")
    print(number, flush=True)
"""


def start(points: str | None) -> subprocess.Popen[str]:
    """A process that passes two failpoints four times, and prints the number of each time that it survived."""
    environment = {**os.environ, **({"TARSY_FAILPOINTS": points} if points is not None else {})}
    return subprocess.Popen([sys.executable, "-c", HITS], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("points", "survived", "status"),
    [
        (None, 4, 0),
        ("", 4, 0),
        ("another.point=exit", 4, 0),
        ("journal.commit.after=exit", 0, 137),
        ("journal.commit.after=exit@3", 2, 137),
        ("another.point=exit ; journal.commit.after=exit@2;", 1, 137),
        ("journal.commit.after=exit@5", 4, 0),
        ("journal.commit.after=raise@2", 1, 1),
    ],
)
def test_a_process_ends_at_the_hit_that_was_named(points: str | None, survived: int, status: int) -> None:
    process = start(points)
    output, _ = process.communicate(timeout=60)
    assert (output.split(), process.returncode) == ([str(n) for n in range(survived)], status)


def test_process_stopped_by_failpoint_resumes_on_sigcont() -> None:
    process = start("tool.call.before=stop@2")
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=60)
        assert (output.split(), process.returncode) == (["0", "1", "2", "3"], 0)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("text", ["a", "a=", "a=explode", "a=exit@x", "a=exit@-1", "b=exit;a=exit@1.5"])
def test_text_that_is_no_failpoint_is_refused_with_the_part_that_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=r"^TARSY_FAILPOINTS: 'a.*' is not name=\(exit\|stop\|raise\)\[@hit\]$"):
        failpoints.parse(text)
