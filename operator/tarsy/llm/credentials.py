"""Credentials of providers: API keys and Google's key files, read and checked before anything is requested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarsy.config.load import secret_files
from tarsy.config.model import platforms, providers
from tarsy.config.model.fields import is_url
from tarsy.llm import provider

GOOGLE_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
"""The environment variable that names a credentials file of any kind."""
LIKE_A_KEY = 16
"""Length from which a variable's name without an underscore may itself be a key (AWS has such), and is not shown."""
_ACCOUNT_FIELDS = ("client_email", "private_key", "token_uri")


def api_key(settings: providers.Provider, environment: Mapping[str, str]) -> str | None:
    """Return the provider's API key; None if it needs none. Raises UnusableError if its credentials are invalid."""
    if isinstance(settings, providers.VertexAIProvider):
        if settings.credentials_file is not None:
            service_account(settings.credentials_file)
        elif named := environment.get(GOOGLE_CREDENTIALS):
            _json_object(Path(named), setting=GOOGLE_CREDENTIALS)
        return None
    if settings.api_key_file is not None:
        try:
            key = secret_files.read_text(settings.api_key_file)
        except secret_files.UnreadableError as error:
            raise provider.UnusableError(f"api_key_file: {error}") from error
        if not key:
            raise provider.UnusableError("api_key_file: the file is empty")
        return _checked(key, setting="api_key_file")
    variable = settings.api_key_env
    if variable is None:
        return None
    if key := environment.get(variable, "").strip():
        return _checked(key, setting="api_key_env")
    if "_" not in variable and len(variable) >= LIKE_A_KEY:
        variable = "that api_key_env names"
    raise provider.UnusableError(f"environment variable {variable} is not set")


def key_files(settings: platforms.Platform, environment: Mapping[str, str]) -> set[Path]:
    """Return the files with credentials of all providers."""
    paths = (key_file(provider_settings, environment) for provider_settings in settings.llm_providers.values())
    return {path for path in paths if path is not None}


def key_file(settings: providers.Provider, environment: Mapping[str, str]) -> Path | None:
    """Return the file with the provider's credentials, if there is one."""
    if isinstance(settings, providers.VertexAIProvider):
        named = environment.get(GOOGLE_CREDENTIALS)
        return settings.credentials_file or (Path(named) if named else None)
    return settings.api_key_file


def key_digest(settings: providers.Provider, environment: Mapping[str, str]) -> bytes | None:
    """Return a digest of the file with the provider's credentials: None without one, b"" if it cannot be read."""
    path = key_file(settings, environment)
    if path is None:
        return None
    try:
        return hashlib.sha256(secret_files.read(path)).digest()
    except secret_files.UnreadableError:
        return b""


def service_account(path: Path) -> dict[str, Any]:
    """Return the service account in a key file. Raises UnusableError, which does not quote the file."""
    account = _json_object(path, setting="credentials_file")
    if account.get("type") != "service_account":
        raise provider.UnusableError(
            "credentials_file: not the key of a service account, whose type is service_account"
        )
    if missing := [field for field in _ACCOUNT_FIELDS if not isinstance(account.get(field), str)]:
        raise provider.UnusableError(f"credentials_file: it has no {missing[0]}")
    if not is_url(account["token_uri"]):
        raise provider.UnusableError("credentials_file: its token_uri is not an http or https URL")
    from cryptography import exceptions
    from google.auth import crypt  # imported only for such files: it takes a tenth of a second

    try:
        crypt.RSASigner.from_string(account["private_key"])  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm, exceptions.InternalError) as error:
        raise provider.UnusableError("credentials_file: its private_key is not an RSA key in PEM") from error
    return account


def _json_object(path: Path, *, setting: str) -> dict[str, Any]:
    try:
        document = json.loads(secret_files.read(path))
    except secret_files.UnreadableError as error:
        raise provider.UnusableError(f"{setting}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise provider.UnusableError(f"{setting}: no file of JSON") from error
    if not isinstance(document, dict):
        raise provider.UnusableError(f"{setting}: not an object of JSON")
    return document


def _checked(key: str, *, setting: str) -> str:
    """`key`, if a header can hold it."""
    if not (key.isascii() and key.isprintable()):
        raise provider.UnusableError(f"{setting}: the key has characters that no key has")
    return key
