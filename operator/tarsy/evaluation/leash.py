"""A program that runs another one for as long as its own standard input is open.

Whoever holds the other end of that pipe may be killed at any moment: the kernel closes the pipe then, so the program
ends too, and what it left is removed. This works wherever there are pipes; `PR_SET_PDEATHSIG` is Linux's alone.

It is run as a file, with options in JSON and the command as its arguments, and imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

END_SECONDS = 15.0
"""The time that a program has to end by itself."""


async def start(
    command: Sequence[str],
    *,
    log: IO[bytes],
    environment: Mapping[str, str],
    removes: Path,
    end: signal.Signals = signal.SIGTERM,
    user: int | None = None,
    group: int | None = None,
) -> asyncio.subprocess.Process:
    """Start a command; it ends with this process, by the signal `end`, or when `stop` is called.

    Its exit code is that of the returned process. If this process dies, the directory `removes` is removed after it.
    Root may name the user and the group that it runs as.
    """
    options = json.dumps({"end": end.value, "removes": str(removes), "user": user, "group": group})
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", __file__, options, *command),
        env=dict(environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C ends this process, which then ends its commands
    )


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a started command, and wait for its end."""
    assert process.stdin  # noqa: S101 - it is a pipe
    process.stdin.close()
    await process.wait()


def main(options: str, command: Sequence[str]) -> int:
    """Run the command until it has ended, or until standard input has; return its exit code."""
    chosen = json.loads(options)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        user=chosen["user"],
        group=chosen["group"],
        extra_groups=None if chosen["group"] is None else [],
    )
    has_ended = threading.Event()

    def end_with_input() -> None:
        while os.read(0, 1):  # not sys.stdin: the interpreter cannot end while a thread waits in it
            pass
        has_ended.set()
        child.send_signal(chosen["end"])
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end_with_input, daemon=True).start()
    status = child.wait()
    if has_ended.is_set():
        shutil.rmtree(chosen["removes"], ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
