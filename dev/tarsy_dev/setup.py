"""`make setup`: the hash-locked dependencies and this checkout, installed into an environment.

It runs before anything is installed, on the standard library alone. The environment has the file `installed` once it
is whole: without it, what is there may be the half of an interrupted run, and is emptied first. pip's own cache
keeps what such a run had downloaded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tarsy_dev import cache, errors, progress

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "test.txt"
PIP_FLAGS = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")


class SetupError(errors.Error):
    """The dependencies cannot be installed."""


def main(arguments: Sequence[str]) -> int:
    """Install the locked dependencies and this checkout into the environment FOLDER."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev setup", description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    cache.say(f"installing the locked Python packages into {folder}, which takes 1 to 2 minutes the first time")
    prepare(folder)
    _install(folder, ["--require-hashes", "-r", str(LOCK)], what="Python packages")
    _install(folder, ["--no-build-isolation", "--editable", str(ROOT)], what="this checkout")
    (folder / "installed").touch()
    return 0


def prepare(folder: Path, *options: str) -> None:
    """Make the environment `folder`, without `installed`; what is in it stays only if it was whole.

    `options` are more of venv's.
    """
    installed = folder / "installed"
    if installed.exists():
        installed.unlink()
    else:
        options = (*options, "--clear")
    command = [sys.executable, "-m", "venv", *options, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{folder} cannot be made an environment:\n{done.stdout}")


def _install(folder: Path, wanted: Sequence[str], *, what: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *PIP_FLAGS, "--no-deps"]
    done = progress.follow([*pip, *wanted], what=what)
    if done.returncode != 0:
        raise SetupError(f"pip failed; what it downloaded is kept for the next run. It said:\n{done.stdout}")
