"""The sources of runbooks, and the token for private repositories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tarsy.config.model.fields import Part, Variable, is_url, require

TOKEN_DOMAIN = "raw.githubusercontent.com"  # noqa: S105 - a host, and no password
"""The only host that gets the token: GitHub's host for raw files."""
LOOPBACK = ("localhost", "127.0.0.1")
"""The hosts that are allowed with `--insecure-dev` only."""
_REMEDY = "list the private repositories that runbooks may come from, as org/repo or org/*"
TEXT_MAX = 64 * 1024
"""The maximum length of a runbook in the platform file, in characters."""
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)+(?![0-9]+\Z){_LABEL}")


_REPOSITORY = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38})/(?:\*|(?!\.{1,2}\Z)[a-z0-9._-]{1,100})")


def _repository(value: str) -> str:
    name = value.lower()  # GitHub's names are case-insensitive
    if not _REPOSITORY.fullmatch(name):
        raise ValueError("not a repository of GitHub: write one such as org/repo, or org/* for all of an owner")
    return name


def _domain(value: str) -> str:
    name = value.lower()
    if name not in LOOPBACK and not _NAME.fullmatch(name):
        raise ValueError("not a host's whole name: write one such as github.com, without scheme, port, path or *")
    return name


Text = Annotated[
    str,
    Field(max_length=TEXT_MAX),
    require(lambda text: not is_url(text.strip()), "this is a URL: write the text of a runbook; URLs come with alerts"),
]
"""The text of a runbook."""

Domain = Annotated[str, AfterValidator(_domain)]
"""The whole name of a host. It does not cover its subdomains, and it is no IP address."""


Repository = Annotated[str, AfterValidator(_repository)]
"""A repository of GitHub, `org/repo`, or all of one owner, `org/*`; in small letters."""


class Runbooks(Part):
    """The sources of runbooks that an alert names, by its annotation `runbook_url` or `spec.runbookURL`."""

    allowed_domains: Annotated[list[Domain], Field(max_length=100)] = ["github.com", TOKEN_DOMAIN]
    """The hosts that runbooks may be fetched from, redirects included, by their whole names; [] allows none."""
    token_env: Variable | None = None
    """The environment variable with a token for private repositories; only raw.githubusercontent.com gets it."""
    token_file: Path | None = None
    """A file that holds the token, such as a mounted Secret; it goes before `token_env`."""

    token_repositories: Annotated[list[Repository], Field(max_length=1000)] = []
    """The GitHub repositories that are read with the token, `org/repo` or `org/*`; [] is none. The author of an alert
    can make agents read any of their files."""

    @property
    def warnings(self) -> list[str]:
        """Return the settings without effect, one sentence each."""
        has_token = self.token_env is not None or self.token_file is not None
        if has_token and not self.token_repositories:
            return [f"runbooks.token_repositories is empty: the token is sent nowhere; {_REMEDY}"]
        if self.token_repositories and not has_token:
            return ["runbooks.token_repositories has no effect: name a token by runbooks.token_file or token_env"]
        return []

    @model_validator(mode="after")
    def _token_has_an_allowed_host(self) -> Runbooks:
        if self.token_env is not None or self.token_file is not None:
            key = "token_env" if self.token_file is None else "token_file"
            if TOKEN_DOMAIN not in self.allowed_domains:
                raise ValueError(f"{key}: {TOKEN_DOMAIN} alone gets the token, and is not among allowed_domains")
        return self
