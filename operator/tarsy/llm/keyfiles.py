"""Key files of Google's service accounts, as far as they can be judged before anybody is asked for a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarsy.config.load import secret_files
from tarsy.config.model import providers
from tarsy.config.model.fields import is_url

ENVIRONMENT = "GOOGLE_APPLICATION_CREDENTIALS"
"""Names the file that the environment offers, of whatever kind."""
_WANTED = ("client_email", "private_key", "token_uri")


class KeyFileError(Exception):
    """A file is no key file of a service account; the message says why, and shows nothing of it."""


def problem(settings: providers.VertexAIProvider, environment: Mapping[str, str]) -> str:
    """Why the provider's credentials cannot be used, as far as files tell; "" where they do not."""
    try:
        if settings.credentials_file is not None:
            read(settings.credentials_file)
        elif named := environment.get(ENVIRONMENT):
            _json(Path(named), of=ENVIRONMENT)
    except KeyFileError as error:
        return str(error)
    return ""


def read(path: Path) -> dict[str, Any]:
    """The key file of a service account, whose key is one."""
    credentials = _json(path, of="credentials_file")
    if credentials.get("type") != "service_account":
        raise KeyFileError("credentials_file: not the key of a service account, whose type is service_account")
    if missing := [key for key in _WANTED if not isinstance(credentials.get(key), str)]:
        raise KeyFileError(f"credentials_file: it has no {missing[0]}")
    if not is_url(credentials["token_uri"]):
        raise KeyFileError("credentials_file: its token_uri is no http or https URL")
    from cryptography import exceptions
    from google.auth import crypt  # a tenth of a second, for those who have such a file

    try:
        crypt.RSASigner.from_string(credentials["private_key"])  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm, exceptions.InternalError) as error:
        raise KeyFileError("credentials_file: its private_key is no RSA key in PEM") from error
    return credentials


def _json(path: Path, *, of: str) -> dict[str, Any]:
    try:
        document = json.loads(secret_files.read(path))
    except secret_files.UnreadableError as error:
        raise KeyFileError(f"{of}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise KeyFileError(f"{of}: no file of JSON") from error
    if not isinstance(document, dict):
        raise KeyFileError(f"{of}: not an object of JSON")
    return document
