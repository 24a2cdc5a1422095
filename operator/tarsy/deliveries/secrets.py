"""The secrets of receivers, read for each message from the environment or from a file."""

from __future__ import annotations

from collections.abc import Mapping

from tarsy.config.load import secret_files
from tarsy.config.model import deliveries
from tarsy.deliveries import requests


def read(settings: deliveries.Receiver, key: str, environment: Mapping[str, str]) -> str:
    """Return the secret that `<key>_file` or `<key>_env` names. Raises UndeliveredError."""
    path, variable = getattr(settings, f"{key}_file"), getattr(settings, f"{key}_env")
    if path is not None:
        try:
            value = secret_files.read_text(path)
        except secret_files.UnreadableError as error:
            raise requests.UndeliveredError(f"{key}_file {path}: {error}") from error
        named = f"{key}_file {path}"
    else:
        value, named = environment.get(variable or "", "").strip(), f"{key}_env {variable}"
    if not value:
        raise requests.UndeliveredError(f"{named}: it is empty or not set")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise requests.UndeliveredError(f"{named}: it has characters that none has")
    return value
