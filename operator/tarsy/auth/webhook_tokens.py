"""The tokens of webhooks: each sends alerts to some namespaces, and does nothing else.

TARSY_WEBHOOK_TOKEN is for the namespace of alerts that come without one; the tokens of `ingest.tokens` are for those
that the platform file lists. They are compared here, as digests, and never sent anywhere.

A file that lacks its token leaves out that token alone, because others depend on theirs. The token is in force as soon
as the file has it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tarsy.auth import credentials
from tarsy.config.load import secret_files
from tarsy.config.model import webhooks


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """The owner of a token of webhooks."""

    name: str
    """The origin of the token, which tells it from others: a variable, or a key of the platform file."""
    namespaces: frozenset[str]
    """The namespaces that it may send alerts to; some may not be served."""
    source: str = ""
    """The source that the platform file gives it; "" if none."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens in force."""

    owners: Mapping[bytes, Webhook]
    """By the digests of their tokens."""
    problems: Sequence[str] = ()
    """The tokens of the platform file that are not in force, each with the reason and the remedy."""

    def owner(self, token_digest: bytes) -> Webhook | None:
        """Return the owner of a token. The comparison takes the same time for each unknown token."""
        webhook = None
        for digest, owner in self.owners.items():
            if secrets.compare_digest(digest, token_digest):
                webhook = owner
        return webhook


def digest(token: bytes) -> bytes:
    """Return a digest of a token, so that no token is stored; comparisons of digests always take the same time."""
    return hashlib.sha256(token).digest()


def load(token: str, settings: webhooks.Ingest, *, default_namespace: str) -> Tokens:
    """Return the tokens in force: `token`, which is TARSY_WEBHOOK_TOKEN's, and those of the platform file.

    It reads files. `default_namespace` is that of alerts that come without one.
    """
    own = Webhook(name=webhooks.WEBHOOK_TOKEN, namespaces=frozenset((default_namespace,)))
    owners = {digest(token.encode()): own}
    problems = []
    for index, entry in enumerate(settings.tokens):
        field = f"ingest.tokens.{index}.token_file"
        try:
            key = digest(_read(entry))
        except secret_files.UnreadableError as error:
            problems.append(f"{field}: no token is in force: {entry.token_file}: {error}")
            continue
        if key in owners:
            problems.append(f"{field}: not in force: it is also the token of {owners[key].name}: make another one")
            continue
        owners[key] = Webhook(name=field, namespaces=frozenset(entry.namespaces), source=entry.source)
    return Tokens(owners=owners, problems=problems)


def _read(entry: webhooks.Token) -> bytes:
    token = secret_files.read_text(entry.token_file).encode()
    if not token:
        raise secret_files.UnreadableError("it is empty")
    if not credentials.is_token(token):
        raise secret_files.UnreadableError("it has characters that no token has, such as spaces")
    return token
