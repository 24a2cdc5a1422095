"""The error of a process that cannot start."""

from __future__ import annotations


class StartError(Exception):
    """The process cannot start with its settings; the message says why."""
