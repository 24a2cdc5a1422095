"""Requests that two HTTP parsers could read in two ways: refused before anything of them is served."""

from __future__ import annotations

from collections.abc import Iterator

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.serve import framing

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


def connection() -> tuple[h11.Connection, framing.Lines]:
    made = h11.Connection(h11.SERVER)
    lines = made._receive_buffer = framing.Lines()
    return made, lines


def received(made: h11.Connection, data: bytes, *, step: int) -> Iterator[h11.Event]:
    """The events of `data`, its bytes received `step` at a time; 0 is all at once."""
    for at in range(0, len(data), step or len(data)):
        made.receive_data(data[at : at + (step or len(data))])
        while not isinstance(event := made.next_event(), type):
            yield event


AMBIGUOUS = {
    "both lengths": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both Content-Length"),
    "both, in capitals": (HEAD + b"TRANSFER-ENCODING: chunked\r\nCONTENT-LENGTH: 0\r\n\r\n", "both Content-Length"),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxx", ""),
    "a list of lengths": (HEAD + b"Content-Length: 5, 6\r\n\r\nxxxxx", ""),
    "a signed length": (HEAD + b"Content-Length: +5\r\n\r\nxxxxx", ""),
    "a length of a base": (HEAD + b"Content-Length: 0x5\r\n\r\nxxxxx", ""),
    "an empty length": (HEAD + b"Content-Length:\r\n\r\n", ""),
    "a folded length": (HEAD + b"Content-Length:\r\n 5\r\n\r\nxxxxx", "folded"),
    "a folded encoding": (HEAD + b"Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", "folded"),
    "a folded header": (HEAD + b"X: a\r\n b\r\n\r\n", "folded"),
    "a fold at the start": (b"POST /a HTTP/1.1\r\n X: a\r\nHost: x\r\n\r\n", "folded"),
    "another encoding": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", ""),
    "identity": (HEAD + b"Transfer-Encoding: identity\r\n\r\n", ""),
    "two encodings": (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""),
    "an encoding with a parameter": (HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", ""),
    "an encoding in HTTP/1.0": (b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"),
    "a space before the colon": (HEAD + b"Content-Length : 5\r\n\r\nxxxxx", ""),
    "a space before the colon of the encoding": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", ""),
    "a vertical tab": (HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", ""),
    "a NUL": (HEAD + b"Content-Length: 5\x00\r\n\r\nxxxxx", ""),
    "bare LF everywhere": (b"GET /a HTTP/1.1\nHost: x\n\n", "LF without CR"),
    "bare LF in one line": (HEAD + b"X: a\nContent-Length: 5\r\n\r\nxxxxx", "LF without CR"),
    "bare LF at the end": (HEAD + b"\n", "LF without CR"),
    "bare LF at first": (b"\n" + HEAD + b"\r\n", "LF without CR"),
    "bare CR": (HEAD + b"X: a\rContent-Length: 5\r\n\r\nxxxxx", ""),
    "bare LF in a trailer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\r\n", "LF without CR"),
    "bare LF for a trailer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\n", "LF without CR"),
    "a folded trailer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n", "folded"),
    "bare LF in a chunk's size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;\nx\r\nx\r\n0\r\n\r\n", "bare CR or LF"),
    "bare CR in a chunk's size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;\rx\r\nx\r\n0\r\n\r\n", "bare CR or LF"),
    "a signed chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n+1\r\nx\r\n0\r\n\r\n", ""),
    "a chunk of a base": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n", ""),
    "a chunk that is longer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n", ""),
    "no Host": (b"GET /a HTTP/1.1\r\n\r\n", ""),
    "two Hosts": (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", ""),
}


@pytest.mark.parametrize(("request_bytes", "problem"), AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("step", [0, 1])
def test_ambiguous_request_is_refused_and_nothing_behind_it_is_read(
    request_bytes: bytes, problem: str, step: int
) -> None:
    made, lines = connection()
    data = request_bytes + SMUGGLED
    targets: list[bytes] = []
    with pytest.raises(h11.RemoteProtocolError):
        targets.extend(event.target for event in received(made, data, step=step) if isinstance(event, h11.Request))
    assert made.their_state is h11.ERROR
    assert b"/smuggled" not in targets
    assert problem in lines.problem


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize(
    ("data", "expected"),
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
def test_unambiguous_request_is_read_whatever_its_body_holds(data: bytes, expected: list[type], step: int) -> None:
    made, _ = connection()
    assert list(dict.fromkeys(type(event) for event in received(made, data, step=step))) == expected


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"X", b"Content-Length", b"Transfer-Encoding", b"Expect"]),
        st.sampled_from([b": ", b":", b" : ", b":\r\n "]),
        st.sampled_from([b"chunked", b"5", b"0", b"a", b""]),
        st.sampled_from([b"\r\n", b"\n", b"\r"]),
    )
)


@given(HEADERS, st.sampled_from([b"1.0", b"1.1"]))
def test_lines_read_what_h11_reads_or_refuse_it(headers: list[tuple[bytes, ...]], version: bytes) -> None:
    data = b"POST /a HTTP/" + version + b"\r\nHost: x\r\n" + b"".join(b"".join(one) for one in headers) + b"\r\n"
    made, _ = connection()
    plain = h11.Connection(h11.SERVER)
    for one in (made, plain):
        one.receive_data(data)
    try:
        event = made.next_event()
    except h11.RemoteProtocolError:
        return
    assert event == plain.next_event()
    if isinstance(event, h11.Request):
        names = [name for name, _ in event.headers]
        assert not {b"content-length", b"transfer-encoding"} <= set(names)
        assert data.count(b"\n") == data.count(b"\r\n")
