"""The watch and what an API server may answer while it is away, or what a proxy may answer in its place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tarsy.kube import client, watch
from tarsy.resources import base, chains, investigations
from tarsy_dev import patience

PATH = f"/apis/{base.API_VERSION}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
KINDS = {
    f"{base.GROUP}/{base.VERSION}": (chains.PLURAL, investigations.PLURAL),
    "v1": ("namespaces", "events"),  # these are kopf's own
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "admissionregistration.k8s.io/v1": ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
}


def answer(body: object, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    """An HTTP answer; a body that is not bytes is JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def failure(code: int) -> bytes:
    """An answer of the API server that refuses a request."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "it refuses"}
    return answer(status, f"{code} No")


def page(more: str = "") -> bytes:
    """A page of a list without objects."""
    return answer({"kind": "List", "metadata": {"resourceVersion": "5", "continue": more}, "items": []})


def discovery(path: str) -> bytes:
    """The answer to a request for what the API server serves."""
    groups = [version.split("/") for version in KINDS if "/" in version]
    match path:
        case "/api":
            return answer({"versions": ["v1"]})
        case "/apis":
            versions = [{"name": name, "version": {"groupVersion": f"{name}/{v}", "version": v}} for name, v in groups]
            return answer(
                {
                    "groups": [
                        {"name": each["name"], "versions": [each["version"]], "preferredVersion": each["version"]}
                        for each in versions
                    ]
                }
            )
    resources = [
        {"name": plural, "singularName": plural[:-1], "kind": plural, "namespaced": True, "verbs": ["list", "watch"]}
        for plural in KINDS[path.removeprefix("/apis/").removeprefix("/api/")]
    ]
    return answer({"groupVersion": path, "resources": resources})


class APIServer:
    """Lists no objects, and watches in silence; the requests about investigations get other answers first."""

    def __init__(self, *, lists: list[bytes], watches: list[bytes]) -> None:
        self.lists, self.watches = lists, watches

    @contextlib.asynccontextmanager
    async def serve(self, folder: Path) -> AsyncIterator[Path]:
        """Serve on loopback; a kubeconfig."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        config = {
            "current-context": "a",
            "clusters": [
                {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}}
            ],
            "users": [{"name": "a", "user": {"token": "t"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "shop"}}],
        }
        (folder / "config").write_text(json.dumps(config))
        try:
            yield folder / "config"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                url = urlsplit(request.split()[1])
                is_watch = "watch" in parse_qs(url.query)
                special = self.watches if is_watch else self.lists
                if url.path.endswith(f"/{investigations.PLURAL}") and special:
                    writer.write(special.pop(0))
                elif "/namespaces/" not in url.path:
                    writer.write(discovery(url.path))
                else:
                    writer.write(STREAM if is_watch else page())
                await writer.drain()


@pytest.mark.parametrize("kind", ["lists", "watches"])
@pytest.mark.parametrize(
    "strange",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        answer(b"<html>sign in</html>", content_type="text/html"),
        answer("Störung".encode("latin-1"), "503 Service Unavailable", "text/html"),
        answer(b"<html>", "408 Request Timeout", "text/html"),
    ],
    ids=["no HTTP", "page", "no UTF-8", "timeout"],
)
async def test_answer_that_is_not_of_an_api_server_is_asked_for_again(
    kind: str, strange: bytes, tmp_path: Path
) -> None:
    answers: dict[str, list[bytes]] = {"lists": [], "watches": []} | {kind: [strange]}
    await opens(APIServer(**answers), tmp_path)
    assert not answers[kind]


async def test_list_with_expired_next_page_starts_again(tmp_path: Path) -> None:
    """etcd forgets a list after five minutes, as in an outage between two of its pages."""
    lists = [page("more"), failure(410)]
    await opens(APIServer(lists=lists, watches=[]), tmp_path)
    assert not lists


async def opens(api_server: APIServer, folder: Path) -> None:
    """Watch until all watches are open."""
    async with api_server.serve(folder) as kubeconfig:
        cluster = await client.connect(kubeconfig)
        watcher = watch.Watcher(cluster, investigation_seen=print, chain_seen=print)
        watching = asyncio.create_task(watcher.run())
        opened = asyncio.create_task(watcher.opened.wait())
        try:
            await asyncio.wait([watching, opened], return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert opened.done()
            assert watcher.cut_for() == 0
        finally:
            opened.cancel()
            watching.cancel()
            await asyncio.wait([watching, opened])
            await cluster.close()


WATCH = """
import asyncio, sys
from pathlib import Path
from tarsy.kube import client, watch

async def main():
    cluster = await client.connect(Path(sys.argv[1]), served=[f"shop-{number}" for number in range(5)])
    await watch.Watcher(cluster, investigation_seen=print, chain_seen=print).run()

asyncio.run(main())
"""


async def test_watch_that_fails_ends_the_process_also_while_another_watch_of_kopf_hangs(tmp_path: Path) -> None:
    """kopf waits for its other watches, which may wait for credentials that none renews any more."""
    async with APIServer(lists=[failure(410)], watches=[]).serve(tmp_path) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WATCH, str(kubeconfig), stderr=asyncio.subprocess.PIPE
        )
        try:
            async with patience.limit():
                _, errors = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert process.returncode == 1
    assert b"WatchError: kopf ended by itself" in errors
