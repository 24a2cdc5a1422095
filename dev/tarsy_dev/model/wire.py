"""The protocol of a provider, as the server needs it: one module a provider, one line in `server.WIRES`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tarsy_dev.model import script


class Wire(Protocol):
    """A provider's protocol, without its sockets: parsed JSON in, bytes of a body out."""

    @property
    def name(self) -> str:
        """The name of the protocol in the log."""

    @property
    def routes(self) -> tuple[str, ...]:
        """The paths that it answers POSTs on, as aiohttp's router has them."""

    def parse(
        self, *, path: Mapping[str, str], headers: Mapping[str, str], body: Any
    ) -> tuple[script.Turn, script.HttpError | None]:
        """Read a request; `body` is None if it was no JSON.

        The turn holds what could be read, for the log; the error is the refusal that the real server would answer, if
        it would.
        """

    def content_type(self, *, streaming: bool) -> str:
        """The content type of an answer."""

    def pieces(self, *, model_call: script.Turn, answer: script.Answer) -> Iterator[bytes]:
        """The body of an answer, cut where the real server would flush it; in two if it is not streamed."""

    def flood(self, *, model_call: script.Turn, megabytes: float | None) -> Iterator[bytes]:
        """The body of an answer of very much text; None: without end."""

    def garbage(self, *, model_call: script.Turn, text: str) -> bytes:
        """A body around something that is not the protocol's."""

    def error(self, error: script.HttpError, *, within_stream: bool) -> bytes:
        """An error: the whole body, or a piece of a stream that has begun."""
