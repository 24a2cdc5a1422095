"""Thought signatures: opaque to the client, and checked when they come back.

A signature vouches for the call that it was issued with, by a keyed hash, instead of being remembered: a model that was
restarted in the middle of an investigation still knows its own, and one that was moved to another call is not genuine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

_SECRET = b"the scripted model's, and worth nothing"
_NONCE = 12


def issue(content: bytes) -> bytes:
    """Return a fresh signature of something."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + _seal(nonce, content)


def genuine(signature: bytes, content: bytes) -> bool:
    """Tell whether a signature is, byte for byte, one that was issued for this content."""
    nonce, seal = signature[:_NONCE], signature[_NONCE:]
    return hmac.compare_digest(seal, _seal(nonce, content))


def of_call(name: str, args: Mapping[str, Any]) -> bytes:
    """Return what the signature of a call covers; the order of the arguments is not part of it."""
    return json.dumps([name, args], sort_keys=True).encode()


def _seal(nonce: bytes, content: bytes) -> bytes:
    return hmac.digest(_SECRET, nonce + content, hashlib.sha256)
