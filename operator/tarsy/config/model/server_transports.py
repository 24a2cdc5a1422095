"""The transports of MCP servers in the platform file: programs that TARSY starts, and addresses."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from tarsy.config.model.fields import URL, Duration, Headers, Part, Variable, Word


class StdioTransport(Part):
    """A server that TARSY starts itself and speaks to over its standard streams."""

    type: Literal["stdio"]
    command: Word
    """The name of a program on the operator's PATH, or its path."""
    args: list[str] = []
    """The arguments of the program."""
    env: dict[str, str] = {}
    """Added to HOME, LOGNAME, PATH, SHELL, TERM and USER, the only variables that are inherited."""


class _Remote(Part):
    """A server that runs elsewhere. Requests go only to the host of its address, so secrets do too."""

    url: URL
    """The address of the server, with the path."""
    headers: Headers = {}
    """The headers of each request. Give secrets by `{{.VAR}}` and do not write them here."""
    bearer_token_env: Variable | None = None
    """The environment variable with a token, which is sent as `Authorization: Bearer`."""
    bearer_token_file: Path | None = None
    """A file with the token, such as a mounted Secret; it takes precedence over `bearer_token_env`."""
    ca_file: Path | None = None
    """A file with the certificate authorities, in PEM, for the server's certificate; None is those of the system."""
    certificate_file: Path | None = None
    """A file with the client certificate in PEM, for a server that asks for one; it needs `key_file`."""
    key_file: Path | None = None
    """A file with the key of the client certificate in PEM, without a passphrase."""
    verify: bool = True
    """False accepts any certificate. Anyone on the network path can then read the requests, tokens included."""
    timeout: Duration = Field(default="5m", validate_default=True)
    """The time limit of one request; tool calls are also limited by `limits.tool_call`."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        is_tls = self.url.lower().startswith("https:")
        for key in ("ca_file", "certificate_file", "key_file"):
            if getattr(self, key) is not None and not is_tls:
                raise ValueError(f"{key}: the url has to begin with https")
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "certificate_file"
            raise ValueError(f"{missing}: missing: a certificate and its key go together")
        if self.ca_file is not None and not self.verify:
            raise ValueError("ca_file: of no use without verify")
        has_user = "@" in urllib.parse.urlsplit(self.url).netloc
        has_token = self.bearer_token_env is not None or self.bearer_token_file is not None
        if has_token and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers: the bearer token is sent as Authorization: set only one of them")
        if has_user and (has_token or any(name.lower() == "authorization" for name in self.headers)):
            raise ValueError("url: its user is sent as Authorization, as is another setting: set only one of them")
        return self


class HTTPTransport(_Remote):
    """A server that runs elsewhere, over streamable HTTP."""

    type: Literal["http"]


class SSETransport(_Remote):
    """A server that runs elsewhere, over HTTP with server-sent events, the predecessor of streamable HTTP."""

    type: Literal["sse"]


RemoteTransport: TypeAlias = HTTPTransport | SSETransport
Transport = Annotated[StdioTransport | HTTPTransport | SSETransport, Field(discriminator="type")]
