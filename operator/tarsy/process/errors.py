"""The error of a process that cannot start."""

from __future__ import annotations


class StartError(Exception):
    """The process cannot start as it was told to; the message says why."""
