"""Where runbooks may be fetched from, and who asks for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tarsy.config.model.fields import Part, Variable, is_url

TOKEN_DOMAIN = "raw.githubusercontent.com"  # noqa: S105 - where it goes to
"""The only host that gets the token: GitHub's, for files as they are."""
LOOPBACK = ("localhost", "127.0.0.1")
"""The hosts that are allowed with `--insecure-dev` only."""
_REMEDY = "list the private repositories that runbooks may come from, as org/repo or org/*"
TEXT_MAX = 64 * 1024
"""Characters of a runbook that stands in the file."""
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)+(?![0-9]+\Z){_LABEL}")


_REPOSITORY = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38})/(?:\*|(?!\.{1,2}\Z)[a-z0-9._-]{1,100})")


def _repository(value: str) -> str:
    name = value.lower()  # GitHub's names are the same in capitals
    if not _REPOSITORY.fullmatch(name):
        raise ValueError("not a repository of GitHub: write one such as org/repo, or org/* for all of an owner")
    return name


def _domain(value: str) -> str:
    name = value.lower()
    if name not in LOOPBACK and not _NAME.fullmatch(name):
        raise ValueError("not a host's whole name: write one such as github.com, without scheme, port, path or *")
    return name


def _no_address(value: str) -> str:
    if is_url(value.strip()):
        raise ValueError("this is an address: a text is wanted; addresses come with alerts")
    return value


Text = Annotated[str, Field(max_length=TEXT_MAX), AfterValidator(_no_address)]
"""A runbook itself."""

Domain = Annotated[str, AfterValidator(_domain)]
"""A host's whole name: none of the hosts below it, and no address."""


Repository = Annotated[str, AfterValidator(_repository)]
"""A repository of GitHub, `org/repo`, or all of one owner, `org/*`; in small letters."""


class Runbooks(Part):
    """Where runbooks may be fetched from that an alert names, by its annotation `runbook_url` or `spec.runbookURL`."""

    allowed_domains: Annotated[list[Domain], Field(max_length=100)] = ["github.com", TOKEN_DOMAIN]
    """The hosts that may be asked, or redirect to, by their whole names; [] is none, so that nothing is fetched."""
    token_env: Variable | None = None
    """The environment variable that holds a token for private repositories; raw.githubusercontent.com alone gets it."""
    token_file: Path | None = None
    """A file that holds the token, such as a mounted Secret; it goes before `token_env`."""

    token_repositories: Annotated[list[Repository], Field(max_length=1000)] = []
    """The repositories of GitHub that are read with the token, `org/repo` or `org/*`; [] is none. The author
    of an alert may have any file of these read."""

    @property
    def warnings(self) -> list[str]:
        """Settings that have no effect, one sentence each."""
        has_token = self.token_env is not None or self.token_file is not None
        if has_token and not self.token_repositories:
            return [f"runbooks.token_repositories is empty: the token is sent nowhere; {_REMEDY}"]
        if self.token_repositories and not has_token:
            return ["runbooks.token_repositories has no effect: name a token by runbooks.token_file or token_env"]
        return []

    @model_validator(mode="after")
    def _token_has_a_place(self) -> Runbooks:
        if self.token_env is not None or self.token_file is not None:
            key = "token_env" if self.token_file is None else "token_file"
            if TOKEN_DOMAIN not in self.allowed_domains:
                raise ValueError(f"{key}: {TOKEN_DOMAIN} alone gets the token, and is not among allowed_domains")
        return self
