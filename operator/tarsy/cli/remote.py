"""Requests to the API, for commands: the standard library's, because a command is to begin at once."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib import parse

import click

SECONDS = 30.0
ANSWER_MAX = 64 * 1024 * 1024  # bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The refusal of redirects: the API sends none, and the token would go along."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class API:
    """The API, with a person's token."""

    def __init__(self, url: str, *, token: str) -> None:
        """`token` is "" for an operator that serves its own machine without one."""
        if parse.urlsplit(url).scheme not in ("http", "https"):
            raise click.ClickException(f"--api: {url} is no URL: write one with http or https")
        self._url = url.rstrip("/")
        self._token = token
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that is answered; a ClickException says why there is none, in the API's words where it has some."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=payload, headers=headers, method=method)  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                return json.loads(response.read(ANSWER_MAX))
        except urllib.error.HTTPError as error:
            raise click.ClickException(f"{error.code}: {_detail(error)}") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise click.ClickException(f"{self._url} cannot be asked: {why}") from error


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(ANSWER_MAX))["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
