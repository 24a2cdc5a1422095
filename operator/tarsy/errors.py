"""What every room has to know of errors: which of them are for now."""

from __future__ import annotations


class TemporaryError(Exception):
    """Something that TARSy stands on cannot be reached or cannot serve just now; the same may work later."""
