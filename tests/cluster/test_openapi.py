"""What the API says of itself holds: schemathesis asks it, as it is served, whatever its description allows and not.

A description is no better than what it is tried on: the API here has a database, an API server, chains, and
investigations of each kind, whose ids are asked for beside made-up ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import apis, manifests, queue, stories
from tarsy import process
from tarsy.api import app
from tarsy.kube import client
from tarsy.store import database as databases
from tarsy_dev.controlplane import ControlPlane

TOKEN = "the token"
ALERT_TYPE = "KubePodCrashLooping"
SETTINGS = f"""
warnings = false

[dictionaries.ids]
values = {{ids}}

[dictionaries.types]
values = ["{ALERT_TYPE}"]

[parameters]
"path.identity" = {{{{ dictionary = "ids", probability = 0.8 }}}}
"body.alert_type" = {{{{ dictionary = "types", probability = 0.5 }}}}

[checks]
# What is right in form may still be of an unknown alert type, of an investigation that runs, or of none.
positive_data_acceptance.enabled = false

[[operations]]
# Of a notification's alerts, one that cannot be read is told as ignored, and costs the others nothing.
include-operation-id = "notifyOfAlerts"
checks.negative_data_rejection.enabled = false
"""


@pytest.fixture
async def ids(plane: ControlPlane, cluster: client.Cluster, database: databases.Database) -> list[str]:
    """Ids of investigations: one that has ended and has its object, one whose object is gone, one that waits."""

    async def admitted(name: str, uid: str) -> str:
        subject = queue.subject(name)
        metadata = subject.metadata.model_copy(update={"namespace": cluster.namespace, "uid": uid})
        return str(await queue.admit(database, subject.model_copy(update={"metadata": metadata})))

    await kubectl(plane, cluster, manifests.chain(ALERT_TYPE))
    ended = await admitted("ended", await kubectl(plane, cluster, manifests.investigation("ended")))
    await _investigate(database)
    gone = await admitted("gone", str(uuid.uuid4()))
    await _investigate(database)
    waits = await admitted("waits", await kubectl(plane, cluster, manifests.investigation("waits")))
    return [ended, gone, waits]


async def kubectl(plane: ControlPlane, cluster: client.Cluster, manifest: object) -> str:
    """Create an object; its uid."""
    made = await asyncio.to_thread(
        plane.kubectl, "create", "-f", "-", "-o", "json", input=json.dumps(manifest), namespace=cluster.namespace
    )
    return str(json.loads(made)["metadata"]["uid"])


async def _investigate(database: databases.Database) -> None:
    """Work on the next one that waits, with all that a transcript has."""
    writing = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", "k8s.pods_get", text="I look.", thinking="What do its logs say?")
    for entry in (
        stories.stage_started(),
        stories.started(),
        asked,
        stories.ran(asked),
        stories.fell_back(turn=1),
        stories.answers("web-0 has no database", turn=1),
        stories.ended(),
        stories.stage_ended(),
        stories.run_ended(final_analysis="web-0 has no database"),
    ):
        await writing.commit(entry)


@pytest.fixture
async def url(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[str]:
    """The API, with a token."""
    parts = apis.parts(cluster=cluster, database=database, token=TOKEN, mask=process.ALERT_MASKER.text)
    async with apis.served(parts) as session:
        yield str(session._base_url)


async def tried(url: str, folder: Path, ids: list[str], *options: str) -> None:
    """Have schemathesis ask the API, the same each time; what it finds fails the test."""
    settings = folder / "schemathesis.toml"
    settings.write_text(SETTINGS.format(ids=json.dumps(ids)), encoding="utf-8")
    command = ["-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{url}/openapi.json"]
    always = ["--generation-deterministic", "--suppress-health-check=all", "--no-color"]
    token = f"Authorization: Bearer {TOKEN}"
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    asking = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        *always,
        *options,
        "--header",
        token,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        told, _ = await asking.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            asking.kill()
    assert asking.returncode == 0, told.decode(errors="replace")


async def test_the_api_is_what_it_says(url: str, ids: list[str], tmp_path: Path) -> None:
    await tried(url, tmp_path, ids, "--max-examples=5", "--phases=examples,coverage,fuzzing")


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_the_api_is_what_it_says_however_long_one_asks(url: str, ids: list[str], tmp_path: Path) -> None:
    """TARSY_EXAMPLES=1000 has each operation asked a thousand times."""
    examples = os.environ.get("TARSY_EXAMPLES", "60")
    await tried(url, tmp_path, ids, f"--max-examples={examples}")


@pytest.fixture
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that gives nothing of its own with its requests."""
    async with aiohttp.ClientSession(url, skip_auto_headers=["Content-Type", "User-Agent"]) as opened:
        yield opened


ALLOWED = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
DESCRIPTION = app.describe()


def operations(identity: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each operation: its method, its path about that investigation, and what is said of it."""
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            filled = path
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    own = identity if parameter["name"] == "identity" else parameter["schema"]["examples"][0]
                    filled = filled.replace(f"{{{parameter['name']}}}", str(own))
            yield method.upper(), filled, operation


def queries(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]


async def asked(
    session: aiohttp.ClientSession,
    method: str,
    path: str,
    body: bytes | io.BytesIO | None = None,
    *,
    headers: dict[str, str],
) -> dict[str, Any]:
    """The problem that this is answered with."""
    async with session.request(method, path, data=body, headers=headers) as response:
        assert response.content_type == "application/problem+json", (method, path, await response.text())
        problem: dict[str, Any] = await response.json(content_type=None)
        assert problem["status"] == response.status
        return problem


async def test_nothing_is_taken_that_is_not_described(session: aiohttp.ClientSession, ids: list[str]) -> None:
    for method, path, operation in operations(ids[0]):
        problem = await asked(session, method, f"{path}?nonsense=1&x%00=", headers=ALLOWED)
        assert (problem["status"], [fault["place"] for fault in problem["errors"]]) == (
            422,
            ["query.nonsense", "query.x\x00"],
        )
        there_is = problem["errors"][0]["message"]
        for parameter in queries(operation):
            assert parameter["name"] in there_is
            if "array" not in json.dumps(parameter["schema"]):
                given = f"{path}?{parameter['name']}=1&{parameter['name']}=2"
                problem = await asked(session, method, given, headers=ALLOWED)
                assert (problem["status"], problem["errors"][0]["place"]) == (422, f"query.{parameter['name']}")
        if "requestBody" not in operation:
            problem = await asked(session, method, path, b'{"reason": "x"}', headers=ALLOWED)
            assert (problem["status"], problem["errors"][0]["place"]) == (422, "body")


async def test_a_body_names_the_fields_that_are_unknown_and_those_there_are(
    session: aiohttp.ClientSession, ids: list[str]
) -> None:
    for path, body, place, fields in (
        ("/api/v1/alerts", b'{"alert_type": "X", "data": "d", "servrity": "high"}', "servrity", "runbook, severity"),
        (f"/api/v1/investigations/{ids[0]}/chat", b'{"question": "Why?", "runn": 0}', "runn", "question"),
    ):
        problem = await asked(session, "POST", path, body, headers=ALLOWED)
        (fault,) = problem["errors"]
        assert (problem["status"], fault["place"]) == (422, place)
        assert fault["message"].endswith(fields)
        many = json.dumps({f"x{number}" * 100: number for number in range(1000)}).encode()
        problem = await asked(session, "POST", path, io.BytesIO(many), headers=ALLOWED)
        assert (problem["status"], len(problem["errors"])) == (422, 10)
        assert problem["detail"].endswith("more")
        assert len(json.dumps(problem)) < 10_000


async def test_whoever_may_not_call_is_told_nothing_else(session: aiohttp.ClientSession, ids: list[str]) -> None:
    """Whatever else is wrong with the request."""
    credentials: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Bearer another"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Idempotency-Key": "x" * 999},
    )
    for method, path, operation in operations(ids[0]):
        if not operation["security"]:
            continue
        wrong = "&".join(f"{parameter['name']}={'x' * 10_000}" for parameter in queries(operation))
        for given, headers in itertools.product(
            (path, f"{path}?nonsense=1&{wrong}", path.replace(ids[0], "x")), credentials
        ):
            problem = await asked(session, method, given, b"no json", headers=headers)
            assert (problem["status"], "errors" in problem) == (401, False), (method, given, headers)


async def test_a_path_says_by_which_methods_it_is_served(session: aiohttp.ClientSession, ids: list[str]) -> None:
    served: dict[str, set[str]] = {}
    for method, path, _ in operations(ids[0]):
        served.setdefault(path, set()).add(method)
    for path, methods in served.items():
        for method in {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"} - methods:
            async with session.request(method, path, headers=ALLOWED) as response:
                assert response.status == 405
                assert set(response.headers["Allow"].split(", ")) == methods


def get(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join((b"GET " + target + b" HTTP/1.1", b"Host: tarsy", *headers, b"Connection: close", b"", b""))


BEARER = f"Authorization: Bearer {TOKEN}".encode()
ONE = b"/api/v1/investigations/"


HOSTILE = [
    (get(ONE + b"%00", BEARER), 404),
    (get(ONE + b"a%2Fb", BEARER), 404),
    (get(ONE + b"%ED%A0%80", BEARER), 404),
    (get(ONE + b"%", BEARER), 404),
    (get(ONE + b"a" * 60_000, BEARER), 404),
    (get(ONE + b"\xff", BEARER), 400),
    (get(b"ID/timeline?after=9223372036854775808", BEARER), 422),
    (get(b"ID/timeline?after=%ED%A0%80", BEARER), 422),
    (get(b"ID/timeline?after=1.5", BEARER), 422),
    (get(b"ID/timeline?after=" + b"9" * 50_000, BEARER), 422),
    (get(b"ID/timeline?after=", BEARER), 422),
    (get(b"ID/timeline?after=-1", BEARER), 422),
    (get(b"ID/timeline?" + b"&".join(b"%d=" % number for number in range(9_000)), BEARER), 422),
    (get(b"ID?%ff=%ff", BEARER), 422),
    (get(b"ID", b"Authorization: Bearer \xff\xfe"), 401),
    (get(b"ID", b"Authorization: Bearer", b"Authorization: Bearer"), 401),
    (get(b"ID", BEARER, b"Content-Length: 99999999999999999999"), 422),
    (get(b"ID", BEARER, b"Content-Length: 1, 2"), 400),
    (get(b"ID", BEARER, b"Transfer-Encoding: chunked"), 422),
    (get(b"ID", BEARER, b"X: \x00"), 400),
    (b"CONNECT tarsy:80 HTTP/1.1\r\nHost: tarsy\r\nConnection: close\r\n\r\n", 404),
    (b"OPTIONS * HTTP/1.1\r\nHost: tarsy\r\nConnection: close\r\n\r\n", 404),
    (b"GET /healthz\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
]
"""Requests, with ID for an investigation's path, and the statuses that they are answered with."""


async def test_a_hostile_request_is_answered_with_a_short_problem(url: str, ids: list[str]) -> None:
    port = int(url.rpartition(":")[2])
    for request, status in HOSTILE:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.replace(b"ID", ONE + ids[0].encode(), 1))
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        told = (request[:200], head, body)
        assert int(head.split()[1]) == status, told
        assert b"content-type: application/problem+json" in head, told
        assert json.loads(body)["status"] == status
        assert len(body) < 5_000, told
