"""`tarsy tools accept`, and what system/warnings say of stopped tools: whose they are to change."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from click.testing import CliRunner
from tarsy.cli.main import main
from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states
from tarsy.views import system_warnings

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
KEY = "mcp_servers.kube.tool_hashes.get"
CHANGED = f"{KEY} says {A}, the server offers {B}: change it there"
GET = {"tool": "get", "pinned_hash": A, "offered_hash": B, "platform_key": KEY}
LIST = {"tool": "list", "pinned_hash": A, "offered_hash": C, "platform_key": ""}


class Told:
    """An API that tells of one server, and takes some tools."""

    def __init__(self, *stopped: dict[str, str], state: str = "connected", takes: tuple[str, ...] = ("list",)) -> None:
        problem = "" if state == "connected" else "cannot be reached: refused"
        process = {"state": state, "problem": problem, "stopped": list(stopped)}
        self.servers = {"items": [{"name": "kube", "processes": [process]}]}
        self.takes = takes
        self.asked: list[Any] = []

    def accepted(self, body: Any) -> Any:
        self.asked.append(body["tools"])
        wanted = {name: value for name, value in body["tools"].items() if name in self.takes}
        return {"tools": [{"tool": name, "before": A, "hash": value} for name, value in wanted.items()]}


@contextmanager
def served(api: Told) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(api.servers)

        def do_POST(self) -> None:
            self._answer(api.accepted(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _answer(self, body: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def accept(api: Told, *names: str) -> tuple[int, str, str]:
    with served(api) as url:
        options = [word for name in names for word in ("--tool", name)]
        ended = CliRunner().invoke(main, ["tools", "accept", "kube", "--api", url, *options])
    return ended.exit_code, ended.stdout, ended.stderr


def test_tools_of_the_platform_file_keep_no_others_from_being_confirmed() -> None:
    api = Told(GET, LIST)
    assert accept(api) == (1, f"kube.list: {A} -> {C}\n", f"kube.get: {CHANGED}\n")
    assert accept(api, "list") == (0, f"kube.list: {A} -> {C}\n", "")
    assert api.asked == [{"list": C}, {"list": C}]
    assert accept(api, "get") == (1, "", f"kube.get: {CHANGED}\n")
    assert len(api.asked) == 2, "what would be refused is not asked for"


def test_accept_reports_that_no_tool_is_stopped() -> None:
    assert accept(Told()) == (0, "kube: no tool is stopped.\n", "")
    late = Told(LIST, takes=())  # the worker has not looked again
    assert accept(late) == (0, "kube: no tool is stopped any more.\n", "")
    assert accept(late, "list") == (1, "", "Error: not stopped any more: list\n")
    assert accept(Told(LIST), "fine") == (1, "", "Error: not stopped: fine. Stopped tools of kube: list\n")


def test_stopped_tools_of_a_server_that_is_not_connected_are_unknown() -> None:
    why = "Error: kube is not connected (cannot be reached: refused): its stopped tools are not known\n"
    assert accept(Told(state="unreachable")) == accept(Told(state="unreachable"), "list") == (1, "", why)
    assert accept(Told(LIST, state="unreachable"))[0] == 0, "it was known before"


def test_warning_shows_where_each_stopped_tool_is_accepted() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    stopped = (
        component_states.StoppedTool(tool="get", pinned=A, offered=B, written=KEY),
        component_states.StoppedTool(tool="list", pinned=A, offered=C),
    )
    detail = component_states.Server(stopped=stopped)
    report = catalogue.AnyReport(
        kind="server", name="kube", state="connected", since=noon, detail=detail, process=UUID(int=1), host="a"
    )
    by_tool = {note.name: note.message for note in system_warnings.process_warnings([report]) if note.kind == "tool"}
    assert by_tool["kube.get"] == f"a: {CHANGED}"
    assert "tarsy tools accept kube" in by_tool["kube.list"]
