"""Protection of the process's memory against other programs of the same user.

A stdio MCP server is a child process of the same user. Linux lets a user read the environment and memory of all its
processes in /proc: our DATABASE_URL, keys and tokens, although the child's own environment has none of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

_PR_SET_DUMPABLE = 4

log = logging.getLogger(__name__)


def make_undumpable() -> None:
    """Make this process undumpable: other processes of its user cannot read its environment and memory in /proc.

    Call it before the first child is started. A failure is logged. Root, and users with the right to trace processes,
    can still read them.
    """
    problem = ""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = [ctypes.c_ulong(argument) for argument in (0, 0, 0, 0)]
        if libc.prctl(ctypes.c_int(_PR_SET_DUMPABLE), *arguments) != 0:
            problem = f"prctl failed: {os.strerror(ctypes.get_errno())}"
    else:
        problem = f"{sys.platform} has no prctl"
    if problem:
        log.warning(
            "MCP servers that TARSy starts can read its environment: %s", problem, extra={"action": "not_hardened"}
        )
