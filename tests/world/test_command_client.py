"""The commands' HTTP client against a server that cuts, refuses and forgets."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tarsy.cli.client import changes, failures, kubectl, port_forward, remote, sessions

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """Serve what `answer` writes for each request; the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def write(handler: http.server.BaseHTTPRequestHandler, body: bytes, *, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def api(url: str) -> remote.API:
    return remote.API(lambda: url, token=lambda: "t", is_local=True)


def test_a_stream_that_is_cut_goes_on_after_its_last_event() -> None:
    asked: list[str | None] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Last-Event-ID"))
        number = len(asked)
        if number == 2:
            write(handler, b'{"detail": "away"}', status=503)
            return
        end = b"event: subscription.ended\ndata: {}\n\n" if number == 3 else b"event: x\nid: 99\ndata: {"
        write(handler, b'event: x\nid: %d\ndata: {"n": %d}\n\n' % (number, number) + end)

    reasons: list[str] = []
    with served(answer) as url:
        events = list(api(url).events("/events", last_id="0", interrupted=reasons.append))

    assert [(event.id, event.type) for event in events] == [("1", "x"), ("3", "x"), ("", "subscription.ended")]
    assert asked == ["0", "1", "1"]
    assert reasons == ["503: away"]


def test_an_expired_token_is_read_again_once() -> None:
    tokens = ["first", "second", "third"]
    good = {"first"}

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        is_known = (handler.headers["Authorization"] or "").removeprefix("Bearer ") in good
        write(handler, b'{"detail": "who?"}' if not is_known else b"{}", status=200 if is_known else 401)

    def renew() -> bool:
        tokens.pop(0)
        return True

    with served(answer) as url:
        client = remote.API(lambda: url, token=lambda: tokens[0], renew=renew, hint=lambda: "the hint", is_local=True)
        client.get("/")
        good.symmetric_difference_update({"first", "second"})
        client.get("/")
        good.clear()
        with pytest.raises(failures.Refused, match="401: who\\?\nthe hint"):
            client.get("/")
    assert tokens == ["third"]


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, failures.Misuse, 2),
        (403, failures.Refused, 7),
        (404, failures.NotFound, 2),
        (409, failures.Failure, 1),
        (422, failures.Misuse, 2),
        (503, failures.Unreachable, 5),
    ],
)
def test_api_error_keeps_its_message_and_its_locations(status: int, kind: type[failures.Failure], code: int) -> None:
    problem = {"detail": "it is wrong", "errors": [{"place": "body.dat", "message": "unknown field"}]}
    body = json.dumps(problem).encode()
    with served(lambda handler: write(handler, body, status=status)) as url, pytest.raises(kind) as raised:
        api(url).get("/")

    assert raised.value.exit_code == code
    assert raised.value.message == f"{status}: it is wrong\n  body.dat: unknown field"


def test_a_redirect_is_not_followed_and_a_proxy_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    elsewhere = "http://127.0.0.1:1/"
    with (
        served(lambda handler: write(handler, b"", status=302, Location=elsewhere)) as url,
        pytest.raises(failures.Failure, match="302"),
    ):
        api(url).get("/")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": '])
def test_server_that_answers_no_json_is_not_reachable(body: bytes) -> None:
    with served(lambda handler: write(handler, body)) as url, pytest.raises(failures.Unreachable):
        api(url).get("/")


KUBECTL = """#!/bin/sh
case "$*" in
  *"get services"*) echo tarsy ;;
  *port-forward*)
    if [ -e refused ]; then
      echo 'Error from server (Forbidden): User "jane" cannot create pods/portforward' >&2
      exit 1
    fi
    echo $$ > pid
    echo "Forwarding from 127.0.0.1:$PORT -> 8080"
    exec sleep 60 ;;
esac
"""


def test_a_port_forward_that_has_ended_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PORT", "4000")
    forward = port_forward.Forward(kubectl.Kubectl(), "tarsy")
    try:
        assert forward.url() == forward.url() == "http://127.0.0.1:4000"
        first = (tmp_path / "pid").read_text()
        os.kill(int(first), signal.SIGTERM)
        os.waitid(os.P_PID, int(first), os.WEXITED | os.WNOWAIT)
        monkeypatch.setenv("PORT", "4001")
        assert forward.url() == "http://127.0.0.1:4001"
        assert (tmp_path / "pid").read_text() != first
    finally:
        forward.close()
    (tmp_path / "refused").touch()
    with pytest.raises(failures.Refused, match="cannot create pods/portforward"):
        forward.url()


WATCHED = """#!/bin/sh
object() {
  echo '{"metadata": {"uid": "u", "name": "web", "namespace": "n", "creationTimestamp": "2026-11-21T03:17:40Z"},'\\
    '"spec": {"alertType": "Crash"}, "status": {"phase": "'"$1"'"}}'
}
case "$*" in
  *watch=true*)
    echo watch >> calls
    case $(grep -c watch calls) in
      1) echo '{"type": "ERROR", "object": {"code": 410}}' ;;
      2) echo '{"type": "MODI' ;;
      3) echo 'The connection to the server was refused' >&2; exit 1 ;;
      *) echo '{"type": "MODIFIED", "object": '"$(object Failed)"'}' | tr -d '\\n'; echo ;;
    esac ;;
  *fieldSelector*) echo '{"metadata": {"resourceVersion": "7"}, "items": ['"$(object Running)"']}' ;;
  *) object Running ;;
esac
"""


def test_a_watch_that_expires_is_cut_or_refused_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubectl").write_text(WATCHED)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    session = sessions.Session(namespace_option="n", api_url="http://127.0.0.1:1")

    views = [view for view in changes.Follower(session, timeout=60).views("web", None, may_be_absent=False) if view]

    assert [views[0]["phase"], views[-1]["phase"]] == ["Running", "Failed"]
    assert (tmp_path / "calls").read_text() == "watch\n" * 4
    assert "The cluster does not answer, retrying: The connection to the server was refused" in capsys.readouterr().err
    assert changes.report_end(session, views[-1]) == 1
