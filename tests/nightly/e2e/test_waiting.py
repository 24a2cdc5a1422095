"""Processes that start with nothing there: they answer, name what is left, and work once all of it has come."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import accounts, manifests, waiting
from support.operators import TOKEN
from tarsy.kube import client, discovery, objects, rights
from tarsy.store.base import databases, schema, tables
from tarsy_dev import model, patience, proxy, tools
from tarsy_dev import postgres as launcher
from tarsy_dev.controlplane import Administrator

if TYPE_CHECKING:
    from support.operators import Operator, Process

CRDS = str(tools.ROOT / "crds")
NO_FILE = "the file that it names: No such file or directory"
ROLES = ("api", "controller", "worker")
WEBHOOK = "/api/v1/webhooks/alertmanager"


@pytest.fixture
async def without_kinds(own_plane: Administrator, admin: client.Cluster) -> None:
    """The control plane has no CRDs of ours until the test applies them."""

    async def are_gone() -> bool:
        with contextlib.suppress(client.ClusterDownError, objects.RefusedError):
            return await discovery.unserved_kinds(admin) == [*discovery.KINDS]
        return False

    own_plane.kubectl("delete", "-f", CRDS)
    await waiting.seen(are_gone)  # the API server's lists forget them later


async def says(process: Process, wanted: str) -> None:
    """Wait until `/readyz` names exactly this, "" for nothing; a watch without an answer is asked for after 70 s."""
    missing = None
    try:
        async with patience.limit():
            while missing != wanted:
                status, answer = await process.request("GET", "/readyz", token="")
                assert (status, answer["status"]) in ((200, "ready"), (503, 503))
                missing = str(answer.get("detail", "")).removeprefix("not ready: ")
                await asyncio.sleep(0.1)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: /readyz says {missing!r}, not {wanted!r}") from None


class World:
    """Three processes, one of each role, and what they miss."""

    def __init__(self, processes: dict[str, Process]) -> None:
        self.processes = processes

    async def lacks(self, *left: tuple[str, str]) -> None:
        """Wait until each process names what of this it needs: roles, and what they miss."""
        for role, process in self.processes.items():
            named = [f"{what} ({role})" for roles, what in left if role in roles.split()]
            await says(process, "; ".join(named))
            assert (await process.request("GET", "/healthz"))[0] == 200


async def test_processes_that_start_with_nothing_there_name_what_is_left_until_an_investigation_runs(
    operator: Operator,
    plane: Administrator,
    admin: client.Cluster,
    postgres: launcher.Access,
    llm: model.Server,
    without_kinds: None,
    tmp_path: Path,
) -> None:
    llm.script = model.answers("root cause")
    name = f"late_{secrets.token_hex(4)}"
    token = await accounts.create(admin, "operator")
    kubeconfig = plane.kubeconfig(namespace=admin.served.own, user="operator", token=token)
    database_file, token_file = tmp_path / "url", tmp_path / "token"
    async with contextlib.AsyncExitStack() as stack:
        between = await stack.enter_async_context(proxy.serve("127.0.0.1", postgres.port))
        between.refuse()
        url = f"postgresql://{name}:x@127.0.0.1:{between.port}/{name}"
        env = {
            "KUBECONFIG": str(kubeconfig),
            "DATABASE_URL": "",
            "TARSY_WEBHOOK_TOKEN": "",
            "DATABASE_URL_FILE": str(database_file),
            "TARSY_WEBHOOK_TOKEN_FILE": str(token_file),
        }
        world = World({role: await operator.start(role=role, env=env, waits=True) for role in ROLES})
        no_url = ("api controller worker", f"DATABASE_URL_FILE: {NO_FILE}")
        no_token = ("api", f"TARSY_WEBHOOK_TOKEN_FILE: {NO_FILE}")
        no_kinds = ("api controller", "the CRDs agentchains, alertinvestigations")
        no_rights = [
            ("api", "the right to create, delete, get alertinvestigations"),
            ("controller", "the right to delete, get, list, watch alertinvestigations"),
            ("controller", "the right to patch alertinvestigations/status"),
            ("api", "the right to list agentchains"),
            ("controller", "the right to list, watch agentchains"),
            ("controller", "the right to patch agentchains/status"),
            ("controller", "the right to create events"),
            ("api controller", "the right to get namespaces"),
            ("controller", "the right to get namespaces kube-system"),
            ("api", "the right to create tokenreviews"),
            ("api", "the right to create subjectaccessreviews"),
        ]
        api = world.processes["api"]
        await world.lacks(no_url, no_token, no_kinds, *no_rights)
        await _check_waiting(world)

        database_file.write_text("\n")
        no_url = ("api controller worker", "DATABASE_URL_FILE: the file that it names is empty")
        await world.lacks(no_url, no_token, no_kinds, *no_rights)
        database_file.write_text(f"{url}\n")
        await world.lacks(no_token, ("api controller worker", "the database"), no_kinds, *no_rights)
        between.accept()
        await asyncio.to_thread(postgres.create_database, name)
        owned = databases.Database(postgres.url(name))
        stack.push_async_callback(owned.close)
        async with owned.begin() as connection:
            await connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        unmigrated = "the database's schema, which does not exist yet: `tarsy migrate` creates it"
        await world.lacks(no_token, ("api controller worker", unmigrated), no_kinds, *no_rights)
        await schema.migrate(owned)
        closed = ("api controller worker", f"rights in the database: {_closed(schema.RIGHTS)}")
        await world.lacks(no_token, closed, no_kinds, *no_rights)
        await _grant(owned, name, "SELECT, INSERT, UPDATE, DELETE")
        no_watch = ("controller", "the watch")
        await world.lacks(no_token, no_kinds, *no_rights, no_watch)
        token_file.write_text(TOKEN)
        await world.lacks(no_kinds, *no_rights, no_watch)
        await asyncio.to_thread(plane.kubectl, "apply", "-f", CRDS)
        await world.lacks(*no_rights, no_watch)
        await accounts.empower(admin, "operator", rights.ALL)
        await world.lacks()

        await asyncio.to_thread(plane.kubectl, "delete", "-f", CRDS)
        await world.lacks(no_kinds, no_watch)
        await asyncio.to_thread(plane.kubectl, "apply", "-f", CRDS)
        await world.lacks()
        await accounts.empower(admin, "operator", [])
        await world.lacks(*no_rights)
        await accounts.empower(admin, "operator", rights.ALL)
        await _grant(owned, name, "UPDATE", taken=True)
        await world.lacks(("api controller worker", f"rights in the database: {_closed(['UPDATE'])}"))
        await _grant(owned, name, "UPDATE")
        await world.lacks()

        await operator.apply(manifests.chain())
        status, _ = await api.request("POST", WEBHOOK, body=manifests.notification())
        assert status == 200
        by_name = await operator.finished()
        assert [manifest["status"]["phase"] for manifest in by_name.values()] == ["Completed"]
        for process in world.processes.values():
            await process.stop()


def _closed(rights: Iterable[str]) -> str:
    """How it is told that all tables lack these rights, of which the version's is only read."""
    ours = list(tables.metadata.tables)
    lists = {right: ["alembic_version", *ours] if right == "SELECT" else ours for right in rights}
    named = {right: f"{', '.join(names[:3])} and {len(names) - 3} more" for right, names in lists.items()}
    return "; ".join(f"{right} on {names}" for right, names in named.items())


async def _grant(database: databases.Database, user: str, what: str, *, taken: bool = False) -> None:
    how = (
        f"REVOKE {what} ON ALL TABLES IN SCHEMA public FROM"
        if taken
        else f"GRANT {what} ON ALL TABLES IN SCHEMA public TO"
    )
    async with database.begin() as connection:
        await connection.exec_driver_sql(f"{how} {user}")


async def _check_waiting(world: World) -> None:
    """Missing parts are to be asked for again; a process without an API has no other path there."""
    api = world.processes["api"]
    status, answer = await api.request("POST", WEBHOOK, body=manifests.notification())
    assert (status, answer["detail"]) == (
        503,
        "the process is starting; /readyz names the parts that it waits for. Ask again later",
    )
    for role in ("controller", "worker"):
        status, answer = await world.processes[role].request("GET", "/api/v1/investigations")
        assert (status, answer["detail"]) == (404, "GET /api/v1/investigations: Not Found")
    for process in world.processes.values():
        assert process.log.count("action=not_ready") == 1, "what has not changed is said once"
