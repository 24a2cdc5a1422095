from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tarsy_dev import cache


def test_folder_is_made_once_for_two_concurrent_requests(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "program").touch()

    def want() -> Path:
        return cache.made(tmp_path / "tool-1", make, notice="making a tool")

    with ThreadPoolExecutor(2) as pool:
        wanted = [pool.submit(want), pool.submit(want)]
    assert [future.result() for future in wanted] == [tmp_path / "tool-1"] * 2
    assert len(made) == 1
    assert (tmp_path / "tool-1" / "program").exists()


def test_a_run_that_is_killed_while_it_makes_a_folder_is_no_hindrance_to_the_next(tmp_path: Path) -> None:
    killed = """
        import os, pathlib, signal, sys
        from tarsy_dev import cache
        def make(folder):
            (folder / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        cache.made(pathlib.Path(sys.argv[1]), make, notice="making a tool")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(killed), tmp_path / "tool-1"], check=False)
    assert len(list(tmp_path.glob("*/half"))) == 1

    cache.made(tmp_path / "tool-1", lambda folder: (folder / "whole").touch(), notice="making a tool")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "tool-1",
        "tool-1.lock",
        "tool-1/whole",
    ]
