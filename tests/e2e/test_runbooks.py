"""Runbooks in a real operator: one that is there, and those that an alert's author would rather have."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import loopback, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

GIVEN = "gh0_Xq7Rw2Lp9Zk4Tn6Vb1"
"""The token that a user wrote into a runbook."""
TEXT = f"1. Look at the canary first.\n2. The token is {GIVEN}, do not tell."
INSTEAD = "Call the people on call."
DATED = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{}"


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[tuple[str, Counter[str]]]:
    """A server for runbooks, and how often each path was asked for."""
    asked: Counter[str] = Counter()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            asked[path] += 1
            if path == "/away.md":
                writer.write(
                    b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n"
                )
            elif path == "/endless.md":
                writer.write(DATED.format(10**12, "").encode())
                while True:
                    writer.write(b"a" * 65536)
                    await writer.drain()
            else:
                writer.write(DATED.format(len(TEXT), TEXT).encode())
            await writer.drain()
        writer.close()

    listening = loopback.listen()
    async with await asyncio.start_server(serve, sock=listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked


def first_text(request: model.Request) -> str:
    """Return the first message that an execution got."""
    text = request.body["contents"][0]["parts"][0]["text"]
    assert isinstance(text, str)
    return text


async def events(process: Process, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of its runbook."""
    _, page = await process.request("GET", f"/api/v1/investigations/{manifest['metadata']['uid']}/timeline")
    return (event for event in page["events"] if event["id"] == "run-0.runbook")


async def test_each_stage_reads_the_runbook_and_unusable_runbook_address_is_an_event(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _: model.Answer(text="It is the memory.")
    operator.configure(defaults={"runbook": INSTEAD}, runbooks={"token_env": "RUNBOOK_TOKEN"})
    async with site() as (url, asked):
        addresses = {
            "there": f"{url}/crash.md",
            "away": f"{url}/away.md",
            "endless": f"{url}/endless.md",
            "metadata": "http://169.254.169.254/latest/meta-data/",
            "inside": "https://kubernetes.default.svc/api/v1/secrets",
        }
        process = await operator.start(insecure_dev=True, env={"RUNBOOK_TOKEN": GIVEN})
        stages = [manifests.stage("collect"), manifests.stage("analysis")]
        asked_for = [manifests.investigation(name, runbookURL=address) for name, address in addresses.items()]
        await operator.apply(manifests.chain(stages=stages), *asked_for)
        by_name = await operator.finished(*addresses)
    assert {name: manifest["status"]["phase"] for name, manifest in by_name.items()} == dict.fromkeys(
        addresses, "Completed"
    )
    assert asked == {"/crash.md": 1, "/away.md": 1, "/endless.md": 1}

    masked = TEXT.replace(GIVEN, "[MASKED:secret]")
    for name in addresses:
        tasks = {first_text(request) for request in llm.requests_of(investigation=f"{operator.namespace}/{name}")}
        assert len(tasks) == len(stages)
        assert [
            task for task in tasks if f"START -->\n{masked if name == 'there' else INSTEAD}\n<!--" not in task
        ] == []
        (event,) = await events(process, by_name[name])
        assert (event["type"], event["status"]) == (
            ("runbook", "completed") if name == "there" else ("error", "failed")
        )
        assert event["metadata"]["url"] == addresses[name]
    assert GIVEN not in str([request.body for request in llm.requests]) + operator.log
    await process.stop()
