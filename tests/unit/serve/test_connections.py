"""Requests whose body has two lengths, or none that can be read: refused before anything of them is served."""

from __future__ import annotations

from collections.abc import Iterator

import h11
import pytest
from tarsy.serve import connections

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
REFUSED = "a line of it cannot be parsed"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def received(made: h11.Connection, content: bytes, *, step: int) -> Iterator[h11.Event]:
    """The events of `data`, its bytes received `step` at a time; 0 is all at once."""
    for at in range(0, len(content), step or len(content)):
        made.receive_data(content[at : at + (step or len(content))])
        while not isinstance(event := made.next_event(), type):
            yield event


AMBIGUOUS = {
    "both lengths": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both Content-Length"),
    "both, in capitals": (HEAD + b"TRANSFER-ENCODING: chunked\r\nCONTENT-LENGTH: 0\r\n\r\n", "both Content-Length"),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxx", REFUSED),
    "a list of lengths": (HEAD + b"Content-Length: 5, 6\r\n\r\nxxxxx", REFUSED),
    "a signed length": (HEAD + b"Content-Length: +5\r\n\r\nxxxxx", REFUSED),
    "a length of a base": (HEAD + b"Content-Length: 0x5\r\n\r\nxxxxx", REFUSED),
    "an empty length": (HEAD + b"Content-Length:\r\n\r\n", REFUSED),
    "another encoding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", REFUSED),
    "identity": (HEAD + b"Transfer-Encoding: identity\r\n\r\n", REFUSED),
    "two encodings": (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", REFUSED),
    "an encoding with a parameter": (HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", REFUSED),
    "a space before the colon": (HEAD + b"Content-Length : 5\r\n\r\nxxxxx", REFUSED),
    "a space before the colon of the encoding": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", REFUSED),
    "a vertical tab": (HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", REFUSED),
    "a NUL": (HEAD + b"Content-Length: 5\x00\r\n\r\nxxxxx", REFUSED),
    "bare CR": (HEAD + b"X: a\rContent-Length: 5\r\n\r\nxxxxx", REFUSED),
    "a signed chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n+1\r\nx\r\n0\r\n\r\n", REFUSED),
    "a chunk of a base": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n", REFUSED),
    "a chunk that is longer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n", REFUSED),
    "no Host": (b"GET /a HTTP/1.1\r\n\r\n", REFUSED),
    "two Hosts": (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", REFUSED),
}


@pytest.mark.parametrize(("request_bytes", "problem"), AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("step", [0, 1])
def test_ambiguous_request_is_refused_and_nothing_after_it_is_read(
    request_bytes: bytes, problem: str, step: int
) -> None:
    made = connections._Parser(h11.SERVER)
    content = request_bytes + SMUGGLED
    targets: list[bytes] = []
    with pytest.raises(h11.RemoteProtocolError):
        targets.extend(event.target for event in received(made, content, step=step) if isinstance(event, h11.Request))
    assert b"/smuggled" not in targets
    assert problem in made.problem


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (HEAD + b"\r\n", [h11.Request, h11.EndOfMessage]),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n\n\n", [h11.Request, h11.Data, h11.EndOfMessage]),
        (
            HEAD + b"Transfer-Encoding: Chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\nX: y\r\n\r\n",
            [h11.Request, h11.Data, h11.EndOfMessage],
        ),
        (b"GET /a HTTP/1.0\r\n\r\n", [h11.Request, h11.EndOfMessage]),
    ],
)
def test_unambiguous_request_with_any_body_is_read(content: bytes, expected: list[type], step: int) -> None:
    made = connections._Parser(h11.SERVER)
    assert list(dict.fromkeys(type(event) for event in received(made, content, step=step))) == expected
