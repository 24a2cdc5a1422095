"""MCP servers that run elsewhere, of real SDKs: over both protocols, with headers, tokens and certificates."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support import certificates, waiting
from support.masking import NO_SECRETS
from support.remotes import call, owned, served, transport
from tarsy.config.load import reload
from tarsy.config.model import platforms
from tarsy.config.redact import secret_values
from tarsy.masking import known_secrets
from tarsy.process.runtime import platform_file
from tarsy.tools.servers import connection, pool
from tarsy_dev import mcp_server, proxy

TOKEN = "c4nary-Qw7x-token"

KINDS = pytest.mark.parametrize("kind", ["http", "sse"])


class Heads:
    """Notes the headers of all requests on their way to a server; with `redirect` none gets there."""

    def __init__(self, *, wants: str = "", redirect: str = "", status: int = 307) -> None:
        self.seen: list[tuple[str, Mapping[str, str]]] = []
        self._wants = wants
        self._redirect = redirect
        self._status = status

    def __call__(self, app: ASGIApp) -> ASGIApp:
        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.seen.append((scope["method"], headers))
            status = self._status if self._redirect else 401
            if self._redirect or (self._wants and headers.get("authorization") != self._wants):
                location = [(b"location", self._redirect.encode())] if self._redirect else []
                await send({"type": "http.response.start", "status": status, "headers": location})
                await send({"type": "http.response.body", "body": b""})
                return
            await app(scope, receive, send)

        return served


@KINDS
async def test_calls_run_in_parallel_and_a_cancelled_call_leaves_the_others_running(kind: str) -> None:
    async with served(kind) as there, owned(transport(kind, there.url)) as (server, box):
        client = await server.client()
        assert len(box.specs) == 7
        ended = asyncio.create_task(call(box, "slow", seconds=60))
        await there.wait_for(lambda calls: len(calls) == 1)
        ended.cancel()
        outputs = await asyncio.gather(*(call(box, "slow", seconds=0.2) for _ in range(4)))
        assert [output.text for output in outputs] == ["waited 0.2 s"] * 4
        assert (await call(box, "flood", size=3_000_000)).text.startswith("all work")
        assert (await call(box, "flaky")).failed
        assert await server.client() is client


@KINDS
async def test_credentials_are_sent_with_each_request(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = Heads(wants=f"Bearer {TOKEN}")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    monkeypatch.setenv("MCP_TOKEN", TOKEN)
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.0)
    async with served(kind, around=heads) as there:
        for auth in ({"bearer_token_env": "MCP_TOKEN"}, {"bearer_token_file": str(file), "bearer_token_env": "NONE"}):
            heads.seen.clear()
            async with owned(transport(kind, there.url, headers={"X-Scope": "shop"}, **auth)) as (server, box):
                assert (await call(box, "lookup")).text == "web-0 exists"
                assert server.problem == ""
                await waiting.until(lambda: any(method == "OPTIONS" for method, _ in heads.seen))
            assert {method for method, _ in heads.seen} >= {"OPTIONS", "POST"}
            assert {(head["x-scope"], head["authorization"]) for _, head in heads.seen} == {("shop", f"Bearer {TOKEN}")}


@KINDS
async def test_user_and_password_in_server_address_are_sent_as_basic_authorization(kind: str) -> None:
    heads = Heads(wants="Basic dTpjNG5hcnktUXc3eA==")
    async with served(kind, around=heads) as there:
        url = there.url.replace("//", "//u:c4nary-Qw7x@")
        async with owned(transport(kind, url)) as (server, box):
            assert server.problem == ""
            assert (await call(box, "lookup")).text == "web-0 exists"


@KINDS
async def test_token_that_a_server_repeats_is_masked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TOKEN", TOKEN)
    async with served(kind) as there:
        settings = transport(kind, there.url, bearer_token_env="MCP_TOKEN", headers={"X-Api-Key": f"{TOKEN}-2"})
        loaded = platforms.Platform(mcp_servers={"tools": platforms.MCPServer(transport=settings)})
        secrets = known_secrets.KnownSecrets(secret_values.collect(loaded, {"MCP_TOKEN": TOKEN}))
        async with owned(settings, secrets=secrets) as (_, box):
            for secret in (TOKEN, f"{TOKEN}-2", base64.b64encode(TOKEN.encode()).decode()):
                assert (await call(box, "lookup", name=secret)).text == "[MASKED:secret] exists"


@KINDS
async def test_changed_bearer_token_is_used_by_new_connections(kind: str, tmp_path: Path) -> None:
    heads, file, token = Heads(), tmp_path / "tarsy.yaml", tmp_path / "token"
    token.write_text("token-one", encoding="utf-8")
    async with served(kind, around=heads) as there:
        settings = {"type": kind, "url": there.url, "bearer_token_file": str(token)}
        file.write_text(json.dumps({"mcp_servers": {"tools": {"transport": settings}}}), encoding="utf-8")
        watch = reload.Watch(file, environment={}, other_files=platform_file.files_beside)
        now = platform_file.PlatformFile(watch, unusable=lambda _: {})
        servers = pool.Pool(
            platforms.Platform(mcp_servers={"tools": now.platform.mcp_servers["tools"]}), secrets=NO_SECRETS
        )

        async def prepare(loaded: platforms.Platform, _: platform_file.Unusable) -> platform_file.Prepared:
            tools = servers.prepare(loaded.model_copy(update={"mcp_servers": {"tools": loaded.mcp_servers["tools"]}}))
            await asyncio.wait_for(tools.wait_tried(), 60)
            return platform_file.Prepared(exchange=lambda: servers.exchange(tools))

        now.prepare(prepare)
        owners = asyncio.create_task(servers.run())
        async with servers.tools.toolbox(["tools"], lambda _: True) as before:
            token.write_text("token-two", encoding="utf-8")
            for _ in range(2):
                await now.refresh()
            async with servers.tools.toolbox(["tools"], lambda _: True) as after:
                for box, used in ((before, "token-one"), (after, "token-two"), (before, "token-one")):
                    heads.seen.clear()
                    assert (await call(box, "lookup")).text == "web-0 exists"
                    assert {head["authorization"] for _, head in heads.seen} == {f"Bearer {used}"}
        owners.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owners


@KINDS
async def test_server_cannot_be_reached_without_what_it_wants(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(kind, around=Heads(wants=f"Bearer {TOKEN}")) as there:
        async with owned(transport(kind, there.url)) as (server, box):
            assert server.problem.startswith("cannot be reached: ")
            assert box.problems == (f"MCP server 'tools' {server.problem}",)
        for named, value, problem in (
            ("bearer_token_env", "MCP_TOKEN", "bearer_token_env: the variable MCP_TOKEN is not set"),
            ("bearer_token_file", "/nowhere/token", "bearer_token_file: No such file or directory"),
            (
                "bearer_token_file",
                "/dev/null",
                "bearer_token_file: not a file: a pipe or a device cannot be read again and again",
            ),
        ):
            async with owned(transport(kind, there.url, **{named: value})) as (server, _):
                assert server.problem == f"cannot be reached: {problem}"
        monkeypatch.setenv("MCP_TOKEN", f"{TOKEN}\nX: y")
        async with owned(transport(kind, there.url, bearer_token_env="MCP_TOKEN")) as (server, _):
            assert server.problem == "cannot be reached: bearer_token_env: the token has characters that no token has"


@KINDS
@pytest.mark.parametrize("status", [400, 401, 403, 404, 500, 503])
async def test_status_with_which_a_server_refuses_is_reported(kind: str, status: int) -> None:
    refusing = Heads(redirect="/", status=status)
    async with served(kind, around=refusing) as there, owned(transport(kind, there.url)) as (server, _):
        assert server.problem == f"cannot be reached: it answered with status {status}"


@KINDS
@pytest.mark.parametrize("status", [303, 307])
async def test_a_redirect_to_another_origin_gets_neither_secret_nor_message(kind: str, status: int) -> None:
    stranger, own = Heads(), "X-Key"
    async with served(kind, around=stranger) as elsewhere:
        away = Heads(redirect=elsewhere.url, status=status)
        async with served(kind, around=away) as there:
            settings = transport(kind, there.url, headers={own: TOKEN, "Authorization": f"Bearer {TOKEN}"})
            async with owned(settings) as (server, _):
                assert server.problem.startswith("cannot be reached: ")
                assert TOKEN not in server.problem
        assert any(head.get("x-key") == TOKEN for _, head in away.seen)
        assert stranger.seen == []


def moved(app: ASGIApp) -> ASGIApp:
    """Sends everybody from `/old` to the path where the server is."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/old"):
            location = scope["path"].removesuffix("/old").encode()
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return served


@KINDS
async def test_a_redirect_within_the_origin_is_followed(kind: str) -> None:
    async with served(kind, around=moved) as there, owned(transport(kind, f"{there.url}/old")) as (server, box):
        assert server.problem == ""
        assert (await call(box, "lookup")).text == "web-0 exists"


class Endpoint:
    """A server that names another origin for messages to go to."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, _: ASGIApp) -> ASGIApp:
        async def served(scope: Scope, _: Receive, send: Send) -> None:
            assert scope["type"] != "websocket"
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = f"event: endpoint\ndata: {self._url}\n\n".encode()
            await send({"type": "http.response.body", "body": body})

        return served


async def test_a_server_that_wants_messages_elsewhere_gets_none() -> None:
    stranger = Heads()
    async with served("sse", around=stranger) as elsewhere, served("sse", around=Endpoint(elsewhere.url)) as there:
        async with owned(transport("sse", there.url, headers={"X-Key": TOKEN})) as (server, _):
            assert server.problem == "cannot be reached: its address for messages has another origin"
        assert stranger.seen == []


@KINDS
async def test_server_certificate_of_known_authority_is_trusted_and_ours_is_sent(kind: str, tmp_path: Path) -> None:
    authority = certificates.Authority(tmp_path)
    theirs, ours = authority.signed("server"), authority.signed("client")
    tls = mcp_server.TLS(certificate=theirs.certificate, key=theirs.key, clients=authority.certificate)
    us = {"certificate_file": str(ours.certificate), "key_file": str(ours.key)}
    async with served(kind, tls=tls) as there:
        async with owned(transport(kind, there.url, ca_file=str(authority.certificate), **us)) as (server, box):
            assert server.problem == ""
            assert (await call(box, "lookup")).text == "web-0 exists"
        async with owned(transport(kind, there.url, verify=False, **us)) as (server, box):
            assert (await call(box, "lookup")).text == "web-0 exists"
        async with owned(transport(kind, there.url, **us)) as (server, _):
            assert "certificate verify failed" in server.problem
        async with owned(transport(kind, there.url, ca_file=str(authority.certificate))) as (server, _):
            assert server.problem.startswith("cannot be reached: ")


async def test_problem_of_a_tls_file_is_reported_by_its_key(tmp_path: Path) -> None:
    authority = certificates.Authority(tmp_path)
    first, other = authority.signed("one"), authority.signed("other", passphrase=b"s3cret")
    empty = tmp_path / "empty"
    empty.write_text("", encoding="utf-8")
    certificate, key = str(first.certificate), str(first.key)
    for keys, problem in (
        ({"ca_file": "/nowhere/ca"}, "ca_file: No such file or directory"),
        ({"ca_file": str(empty)}, "ca_file: it cannot be used: NO_CERTIFICATE_OR_CRL_FOUND"),
        ({"certificate_file": "/nowhere", "key_file": key}, "certificate_file: No such file or directory"),
        ({"certificate_file": certificate, "key_file": "/nowhere"}, "key_file: No such file or directory"),
        (
            {"certificate_file": str(other.certificate), "key_file": str(other.key)},
            "key_file: it needs a passphrase, and no setting has one",
        ),
        (
            {"certificate_file": str(other.certificate), "key_file": key},
            "certificate_file: it cannot be used: KEY_VALUES_MISMATCH",
        ),
    ):
        async with owned(transport("http", "https://127.0.0.1:1/mcp", **keys)) as (server, _):
            assert server.problem == f"cannot be reached: {problem}"


async def test_ended_event_stream_is_noticed_at_once_and_opened_again() -> None:
    async with served("sse") as there, proxy.serve("127.0.0.1", int(there.url.split(":")[2][:-4])) as between:
        url = f"http://127.0.0.1:{between.port}/sse"
        async with owned(transport("sse", url)) as (server, box):
            first = await server.client()
            between.cut()
            await waiting.until(lambda: server.state.state != "connected")
            assert await asyncio.wait_for(server.client(), 60) is not first
            assert (await call(box, "lookup")).text == "web-0 exists"
