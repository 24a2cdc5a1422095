"""The base of temporary errors in all rooms."""

from __future__ import annotations


class TemporaryError(Exception):
    """Something that TARSy needs cannot be reached or cannot serve at the moment; a later attempt may work."""
