"""A leash ends its program with the process that holds it, however that ends. Pipes tell of ends; nothing is timed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tarsy.evaluation import leash

HOLDER = """
import asyncio, os, pathlib, sys
from tarsy.evaluation import leash

async def main():
    await leash.start(sys.argv[2:], log=sys.stdout.buffer, environment=os.environ, removes=pathlib.Path(sys.argv[1]))
    await asyncio.Event().wait()

asyncio.run(main())
"""
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
KIND = "import signal; print('up', flush=True); signal.pause()"


def test_a_killed_holder_takes_its_program_along_and_what_it_left(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    command = [sys.executable, "-c", HOLDER, str(left), sys.executable, "-u", "-c", KIND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"up\n"
        holder.kill()
        assert holder.stdout.read() == b""  # the program and its leash had the pipe, and have ended
    assert not left.exists()


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(leash.__file__).read_text()
    assert "END_SECONDS = 15.0" in source
    (tmp_path / "leash.py").write_text(source.replace("END_SECONDS = 15.0", "END_SECONDS = 0.0"))
    monkeypatch.setattr(leash, "__file__", str(tmp_path / "leash.py"))


@pytest.mark.usefixtures("impatient")
async def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as output, os.fdopen(writing, "wb") as log:
        command = [sys.executable, "-c", DEAF]
        process = await leash.start(command, log=log, environment=os.environ, removes=tmp_path / "none")
        assert await asyncio.to_thread(output.readline) == b"up\n"
        await leash.stop(process)
        assert process.returncode == 128 + signal.SIGKILL
