from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tarsy_dev import progress

PLAN = ["have unsafe", "todo runtime", "todo k8s.io/api/core/v1", "link tarsy.dev/controlplane"]


def read(reader: progress.Reader, *lines: str) -> str:
    for line in lines:
        assert reader.read(line), line
    return str(reader.step)


def test_go_first_downloads_modules_of_which_only_the_bound_is_known() -> None:
    reader = progress.GoBuild(downloads=227)
    assert str(reader.step) == "looking up modules"
    assert read(reader, "go: downloading k8s.io/api v0.36.3", "go: downloading k8s.io/kubectl v0.36.3") == (
        "downloading modules: 2 of at most 227, at most 225 left"
    )


def test_go_compiles_what_the_plan_names_and_links_at_last() -> None:
    reader = progress.GoBuild(downloads=0)
    assert read(reader, *PLAN) == "compiling packages: 1 of 3, 2 left"
    assert read(reader, "runtime") == "compiling packages: 2 of 3, 1 left"
    assert read(reader, "k8s.io/api/core/v1") == "compiling packages: 3 of 3, 0 left"
    assert read(reader, "tarsy.dev/controlplane") == "linking, the last step"


def test_go_links_at_once_when_its_cache_has_all_packages() -> None:
    plan = ["have runtime", "link tarsy.dev/controlplane"]
    assert read(progress.GoBuild(downloads=0), *plan) == "linking, the last step"


@pytest.mark.parametrize(
    "line", ["# k8s.io/api/core/v1", "types.go:1:1: syntax error", "runtime", "go: no such module"]
)
def test_what_go_says_beyond_its_plan_is_left_for_the_error(line: str) -> None:
    assert not progress.GoBuild(downloads=0).read(line)


def test_pip_fetches_each_package_then_installs_them() -> None:
    reader = progress.PipInstall(total=4)
    read(reader, "Ignoring colorama: markers 'sys_platform == \"win32\"' don't match your environment")
    assert str(reader.step) == "fetching packages: 0 of 3, 3 left"
    read(reader, "Collecting alembic==1.18.5 (from -r requirements/test.txt (line 1))")
    read(reader, "  Downloading alembic-1.18.5-py3-none-any.whl.metadata (7.2 kB)")
    assert read(reader, "Downloading alembic-1.18.5-py3-none-any.whl (247 kB)") == "fetching packages: 1 of 3, 2 left"
    assert read(reader, "  Using cached attrs-26.1.0-py3-none-any.whl (67 kB)") == "fetching packages: 2 of 3, 1 left"
    read(reader, "Requirement already satisfied: click==8.2.1 in ./lib (from -r requirements/test.txt (line 90))")
    assert str(reader.step) == "fetching packages: 3 of 3, 0 left"
    assert read(reader, "Installing collected packages: attrs, alembic") == "installing 2 packages"


@pytest.mark.parametrize("line", ["ERROR: No matching distribution found for x", "    sha256 does not match"])
def test_what_pip_says_beyond_that_is_left_for_the_error(line: str) -> None:
    assert not progress.PipInstall(total=1).read(line)


def compiling(done: int) -> progress.Step:
    return progress.Step(doing="compiling packages", done=done, total=1893)


def test_a_terminal_has_one_line_that_is_drawn_anew_when_it_changes() -> None:
    stream = io.StringIO()
    display = progress.Display("control plane", stream, columns=80)
    display.show(compiling(811), 192.4)
    display.show(compiling(811), 192.6)
    display.show(compiling(812), 193.0)
    display.end(372.0, ok=True)
    assert stream.getvalue().split("\r\033[K") == [
        "",
        "tarsy_dev: control plane: compiling packages: 811 of 1893, 1082 left (3:12)",
        "tarsy_dev: control plane: compiling packages: 812 of 1893, 1081 left (3:13)",
        "tarsy_dev: control plane: done (6:12)\n",
    ]


def test_a_line_is_cut_where_the_terminal_ends() -> None:
    stream = io.StringIO()
    progress.Display("control plane", stream, columns=30).show(compiling(811), 192.4)
    assert stream.getvalue() == "\r\033[Ktarsy_dev: control plane: com"


def test_a_terminal_keeps_how_far_it_came_before_it_failed() -> None:
    stream = io.StringIO()
    display = progress.Display("control plane", stream, columns=80)
    display.show(compiling(811), 192.4)
    display.end(193.0, ok=False)
    assert stream.getvalue().endswith("811 of 1893, 1082 left (3:12)\n")


def test_elsewhere_there_is_a_line_at_each_step_and_each_minute() -> None:
    stream = io.StringIO()
    display = progress.Display("control plane", stream, columns=None)
    for second in range(150):
        display.show(compiling(second * 10), second)
    display.show(progress.Step(doing="linking"), 150)
    display.end(170, ok=True)
    assert stream.getvalue().splitlines() == [
        "tarsy_dev: control plane: compiling packages: 0 of 1893, 1893 left (0:00)",
        "tarsy_dev: control plane: compiling packages: 600 of 1893, 1293 left (1:00)",
        "tarsy_dev: control plane: compiling packages: 1200 of 1893, 693 left (2:00)",
        "tarsy_dev: control plane: linking (2:30)",
        "tarsy_dev: control plane: done (2:50)",
    ]


def test_a_program_is_followed_and_what_else_it_says_is_returned(capfd: pytest.CaptureFixture[str]) -> None:
    script = "printf 'todo a\\nlink tiny\\n# a\\na\\nlost: é\\ntiny\\nthe end' >&2; exit 3"
    done = progress.follow(["sh", "-c", script], progress.GoBuild(downloads=0), what="tiny")
    assert done.returncode == 3
    assert done.stdout == "# a\nlost: é\nthe end\n"
    printed = capfd.readouterr()
    assert printed.out == ""
    steps = [line.split(": ", 1)[1].rpartition(" (")[0] for line in printed.err.splitlines()]
    assert steps == [
        "tiny: looking up modules",
        "tiny: compiling packages: 0 of 1, 1 left",
        "tiny: linking, the last step",
    ]


@contextlib.contextmanager
def followed(script: str, folder: Path, *, before: str = "") -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process that follows a shell, and the pipe that the script's "$0" is: it ends when nobody there has it.

    `before` that it runs other Python. It can be interrupted although a shell may have started the tests in the
    background, which leaves them without SIGINT.
    """
    ours = f"""
        import os, signal, subprocess, sys
        from tarsy_dev import progress
        signal.signal(signal.SIGINT, signal.default_int_handler)
        {before}
        progress.follow(["sh", "-c", *sys.argv[1:]], progress.GoBuild(downloads=0), what="tiny")
    """
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(ours), script, fifo], stderr=subprocess.DEVNULL)
    with process, fifo.open("rb") as pipe:
        assert pipe.readline() == b"begun\n"
        yield process, pipe


def test_an_interrupted_run_ends_the_program_and_its_children(tmp_path: Path) -> None:
    with followed('(echo begun; exec tail -f /dev/null) >"$0" & wait', tmp_path) as (process, pipe):
        process.send_signal(signal.SIGINT)
        assert pipe.read() == b""


HASTY = """
        class Hasty(subprocess.Popen):
            def __init__(self, command, **named):
                super().__init__(command, **named)
                open(f"{command[-1]}.started").readline()
                os.kill(os.getpid(), signal.SIGINT)
        subprocess.Popen = Hasty
"""


def test_a_run_that_is_interrupted_while_it_starts_the_program_ends_it_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.started")
    script = '(echo begun; echo >"$0.started"; exec tail -f /dev/null) >"$0" & wait'
    with followed(script, tmp_path, before=HASTY.strip()) as (_, pipe):
        assert pipe.read() == b""


def test_a_killed_run_ends_the_program(tmp_path: Path) -> None:
    with followed('exec >"$0"; echo begun; exec tail -f /dev/null', tmp_path) as (process, pipe):
        process.kill()
        assert pipe.read() == b""
