"""Masking in tests: a process that knows no secrets."""

from __future__ import annotations

from tarsy.masking import known_secrets, masker

NO_SECRETS = known_secrets.KnownSecrets()
"""Nothing is ever added to it."""
MASK = masker.Masker(groups=["security"]).text
"""The masking of instructions, as the API applies it."""
