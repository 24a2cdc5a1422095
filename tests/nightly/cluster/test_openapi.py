"""Description of the API, held against its answers: schemathesis asks it, as it is served, for all that its description
allows and more.

A description is no better than what it is tried on: the API here has a database, an API server, chains, and
investigations of each kind, whose ids are asked for besides made-up ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import apis, manifests, queue, stories
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

LIMITS = platforms.API(requests_per_second=100_000, burst=1_000_000)
"""Limits so high that no caller is told to come later: a request that is right in form has to be looked at."""
DESTROYED = 20
"""Investigations that are there to be cancelled, and others to be purged."""
ALERT_TYPE = "KubePodCrashLooping"
SETTINGS = """
warnings = false
request-timeout = 120

[dictionaries.ids]
values = {ids}

[dictionaries.cancelled]
values = {cancelled}

[dictionaries.purged]
values = {purged}

[dictionaries.executions]
values = ["one"]

[dictionaries.numbers]
values = [1, 2]

[dictionaries.types]
values = {types}

[dictionaries.namespaces]
values = {namespaces}

[parameters]
"query.namespace" = {{ dictionary = "namespaces", probability = 0.8 }}
"path.namespace" = {{ dictionary = "namespaces", probability = 0.8 }}
"path.identity" = {{ dictionary = "ids", probability = 0.8 }}
"path.n" = {{ dictionary = "numbers", probability = 0.5 }}
"query.execution" = {{ dictionary = "executions", probability = 0.5 }}
"body.alert_type" = {{ dictionary = "types", probability = 0.5 }}

[checks]
# What is right in form may still be about an investigation that runs, or that is not there, or not any longer.
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "410"]

[[operations]]
# Of a notification's alerts, one that cannot be read is told as ignored, and costs the others nothing.
include-operation-id = ["notifyOfAlerts", "notifyOfGrafanaAlerts", "putGrafanaAlerts"]
checks.negative_data_rejection.enabled = false

[[operations]]
# Nor need the namespace be one that is served.
include-operation-id = ["notifyOfAlertsIn", "notifyOfGrafanaAlertsIn", "putGrafanaAlertsIn"]
checks.negative_data_rejection.enabled = false
checks.positive_data_acceptance.enabled = false

[[operations]]
# An alert type or a stage may be unknown, a namespace may not be served, and a key may be another alert's.
include-operation-id = ["postAlert", "submitAlert", "retryInvestigation", "matchChain"]
checks.positive_data_acceptance.enabled = false

[[operations]]
# A cursor may be of another query, a namespace may not be there, a search may have no word, a page be too far.
include-operation-id = ["listInvestigations", "listSessions", "listAudit", "listChains", "listBudgets"]
checks.positive_data_acceptance.enabled = false

[[operations]]
# An execution may be one of another investigation.
include-operation-id = "listMessages"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-operation-id = ["cancelInvestigation", "cancelSession"]
parameters = {{ "path.identity" = {{ dictionary = "cancelled", probability = 0.8 }} }}

[[operations]]
# A hold is a conflict, and a purged one is unknown.
include-operation-id = ["deleteInvestigation", "restoreInvestigation", "holdInvestigation", "releaseInvestigation"]
checks.positive_data_acceptance.enabled = false
parameters = {{ "path.identity" = {{ dictionary = "purged", probability = 0.8 }} }}
"""


@dataclass(frozen=True, kw_only=True)
class World:
    """Ids of investigations."""

    ids: list[str]
    """One that has ended and has its object, one whose object is gone, one that runs, one that waits."""
    cancelled: list[str]
    """They run or wait, and may be cancelled; one has ended."""
    purged: list[str]
    """They have ended, and may be purged; one runs."""


@pytest.fixture
async def world(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> World:
    """A chain, and investigations in all states."""

    async def admitted(name: str, uid: str | None = None) -> str:
        subject = queue.subject(name)
        metadata = subject.metadata.model_copy(
            update={"namespace": cluster.served.own, "uid": uid or str(uuid.uuid4())}
        )
        return str(await queue.admit(database, subject.model_copy(update={"metadata": metadata})))

    async def finished(name: str, uid: str | None = None) -> str:
        identity = await admitted(name, uid)
        await _investigate(database, finished=True)
        return identity

    await create(plane, cluster, manifests.chain(ALERT_TYPE))
    ended = await finished("ended", await create(plane, cluster, manifests.investigation("ended")))
    gone = await finished("gone")
    purged = [await finished(f"purged-{number}") for number in range(DESTROYED)]
    runs = await admitted("runs")
    await _investigate(database, finished=False)
    waits = await admitted("waits", await create(plane, cluster, manifests.investigation("waits")))
    cancelled = [await admitted(f"cancelled-{number}") for number in range(DESTROYED)]
    return World(ids=[ended, gone, runs, waits], cancelled=[*cancelled, gone], purged=[*purged, runs])


@pytest.fixture
def identity(world: World) -> str:
    """The id of one that has ended."""
    return world.ids[0]


async def create(plane: Administrator, cluster: client.Cluster, manifest: dict[str, Any]) -> str:
    """Create an object; its uid."""
    made = await asyncio.to_thread(plane.create, manifest, namespace=cluster.served.own)
    return str(made["metadata"]["uid"])


async def _investigate(database: databases.Database, *, finished: bool) -> None:
    """Work on the next one that waits, with all that a transcript has, to its end or not quite."""
    writing = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log", "k8s.pods_get", text="I look.", thinking="What do its logs say?")
    log = (
        stories.stage_started(),
        stories.started(),
        asked,
        stories.ran(asked),
        stories.fell_back(call_number=1),
        stories.answers("web-0 has no database", call_number=1),
        stories.ended(),
        stories.stage_ended(),
        stories.run_ended(final_analysis="web-0 has no database"),
    )
    await writing.commit(*(log if finished else log[:5]))


@pytest.fixture
async def url(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[str]:
    """The API, of which tokens are asked."""
    parts = apis.parts(
        cluster=cluster,
        database=database,
        token="the webhook's",
        mask=platforms.AlertMasking().masker(NO_SECRETS).text,
        settings=LIMITS,
    )
    async with apis.listening(parts) as base_url:
        yield base_url


Tried = Callable[..., Awaitable[None]]


@pytest.fixture
def tried(url: str, world: World, editor: str, namespace: str, tmp_path: Path) -> Tried:
    """Run schemathesis against the API as a caller with all rights, the same each time; any finding is an error."""
    settings = tmp_path / "schemathesis.toml"
    known_ids = dataclasses.asdict(world) | {"types": [ALERT_TYPE], "namespaces": [namespace]}
    settings.write_text(
        SETTINGS.format(**{name: json.dumps(values) for name, values in known_ids.items()}), encoding="utf-8"
    )
    command = ["-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{url}/openapi.json"]
    always = ["--generation-deterministic", "--suppress-health-check=all", "--no-color"]
    token = ["--header", f"Authorization: Bearer {editor}"]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}

    async def ask(*options: str) -> None:
        asking = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*command, *always, *token, *options),
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asking.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                asking.kill()
        print(output.decode(errors="replace"))
        assert asking.returncode == 0

    return ask


async def done(database: databases.Database) -> set[str]:
    """Return the audited actions on investigations."""
    return {action for (action,) in await queue.rows(database, "SELECT DISTINCT action FROM audit")}


@pytest.mark.timeout(3600)
async def test_api_behaves_as_its_openapi_document_describes(tried: Tried, database: databases.Database) -> None:
    """TARSY_EXAMPLES=1000 has each operation asked a thousand times."""
    examples = os.environ.get("TARSY_EXAMPLES", "60")
    await tried(f"--max-examples={examples}")
    # Only what was deleted before can be restored, which not every series of examples does.
    # The same holds for feedback that is withdrawn.
    assert await done(database) - {"restore", "feedback/withdraw"} == {
        *("create", "retry", "chat", "chat/cancel", "cancel", "feedback"),
        *("delete", "hold", "release", "purge", "export", "session-code"),
    }


def get(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join((b"GET " + target + b" HTTP/1.1", b"Host: tarsy", *headers, b"Connection: close", b"", b""))


BEARER = b"Authorization: Bearer EDITOR"
ONE = b"/api/v1/investigations/"


HOSTILE = [
    (get(ONE + b"%00", BEARER), 404),
    (get(ONE + b"%ED%A0%80", BEARER), 404),
    (get(ONE + b"a" * 60_000, BEARER), 404),
    (get(ONE + b"\xff", BEARER), 400),
    (get(b"ID/timeline?after=9223372036854775808", BEARER), 422),
    (get(b"ID/timeline?after=" + b"9" * 50_000, BEARER), 422),
    (get(b"ID/timeline?after=-1", BEARER), 422),
    (get(b"ID/timeline?" + b"&".join(b"%d=" % number for number in range(9_000)), BEARER), 422),
    (get(b"ID?%ff=%ff", BEARER), 422),
    (get(b"ID", b"Authorization: Bearer \xff\xfe"), 401),
    (get(b"ID", b"Authorization: Bearer", b"Authorization: Bearer"), 401),
    (get(b"ID", BEARER, b"Content-Length: 99999999999999999999"), 422),
    (get(b"ID", BEARER, b"Transfer-Encoding: chunked"), 422),
    (get(b"ID", BEARER, b"X: \x00"), 400),
    (b"CONNECT tarsy:80 HTTP/1.1\r\nHost: tarsy\r\nConnection: close\r\n\r\n", 404),
    (b"OPTIONS * HTTP/1.1\r\nHost: tarsy\r\nConnection: close\r\n\r\n", 404),
    (b"GET /healthz\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
]
"""Requests, with ID for an investigation's path, and the statuses that they are answered with."""


async def test_a_hostile_request_is_answered_with_a_short_problem(url: str, identity: str, editor: str) -> None:
    port = int(url.rpartition(":")[2])
    for request, status in HOSTILE:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.replace(b"ID", ONE + identity.encode(), 1).replace(b"EDITOR", editor.encode()))
        async with patience.limit():
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        exchange = (request[:200], head, body)
        assert int(head.split()[1]) == status, exchange
        assert b"content-type: application/problem+json" in head, exchange
        assert json.loads(body)["status"] == status
        assert len(body) < 5_000, exchange
