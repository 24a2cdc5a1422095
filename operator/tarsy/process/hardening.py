"""Protection of the process's memory against programs beside it.

A stdio MCP server is a child of the same user, and Linux lets a user read the environment and the memory of its own
processes in /proc: our DATABASE_URL, keys and tokens, although the child's own environment has none of them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

_PR_SET_DUMPABLE = 4

log = logging.getLogger(__name__)


def close_to_others() -> None:
    """Make this process undumpable: others of the same user read neither its environment nor its memory in /proc.

    To be called before the first child is started. Where it cannot be done a log line says so. Root, and who else may
    trace any process, reads on.
    """
    problem = _set_undumpable()
    if problem:
        log.warning(
            "MCP servers that TARSy starts can read its environment: %s", problem, extra={"action": "not_hardened"}
        )


def _set_undumpable() -> str:
    """Make the process undumpable; return the problem, or ""."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no prctl"
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(argument) for argument in (0, 0, 0, 0)]
    if libc.prctl(ctypes.c_int(_PR_SET_DUMPABLE), *arguments) == 0:
        return ""
    return f"prctl failed: {os.strerror(ctypes.get_errno())}"
