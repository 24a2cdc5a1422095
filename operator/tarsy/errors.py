"""Errors that every room knows: which of them are temporary."""

from __future__ import annotations


class TemporaryError(Exception):
    """Something that TARSy stands on cannot be reached or cannot serve just now; the same may work later."""
