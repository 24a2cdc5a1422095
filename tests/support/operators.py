"""The operator as a real process, on a real cluster and database, with a model and tools that the test programs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import asyncpg
import pytest
from support import installed, scrapes
from tarsy.kube import calls, client
from tarsy_dev import children, mcp_server, model, nursery, patience, tools
from tarsy_dev.controlplane import Administrator

T = TypeVar("T")

WRITING = ["restart", "label", "unannotated"]
"""Those of the tools that agents are offered although they may write."""
UNHURRIED = dict.fromkeys(("iteration", "first_byte", "idle", "tool_call"), "15m")
"""Limits for models and tools that a test holds: how long it does so depends on the machine."""
TOKEN = "the webhook's token"
LEASE = timedelta(minutes=10)
"""A busy machine must not decide whether a claim is lost; `Operator.let_leases_pass` ends those of killed processes."""
NO_HEARTBEAT = timedelta(hours=1)
"""A lease whose first heartbeat comes after the patience of a test: what a worker hears before, it is told at once."""
AT_FAILPOINT = 137
"""The status of a process that ended at a failpoint."""
_FOR_TOKEN = ("/api/v1/webhooks/", "/api/v1/alerts")
"""Where that token is good; for all else a person's is asked for."""
_METRICS = re.compile(r"metrics on 127\.0\.0\.1:(\d+)")
_LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")


class Process:
    """One operator process."""

    def __init__(self, child: children.Child, *, editor: str) -> None:
        """`editor` is a token that is good for all that people do."""
        self._child = child
        self.editor = editor
        self.url = ""

    @property
    def log(self) -> str:
        return self._child.log.read_text()

    @property
    def pid(self) -> int:
        return self._child.pid

    async def serve(self, *, waits: bool) -> None:
        """Wait until it answers, and unless it `waits` for something, until it has begun.

        Its tools and its watch may be there later.
        """
        port = await self._until(lambda: _LISTENING.search(self.log), what="the line that names its port")
        self.url = f"http://127.0.0.1:{port[1]}"
        path, status = ("/healthz", 200) if waits else ("/no-such-page", 404)
        await self._until(lambda: _status(int(port[1]), path) == status, what=path)

    async def kill(self) -> None:
        """End it as a crash would."""
        await asyncio.to_thread(self._child.end, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until it has ended by itself."""
        await asyncio.to_thread(self._child.process.wait, patience.PATIENCE)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._child.process.send_signal(number)

    async def logged(self, text: str) -> None:
        """Wait until its log has `text`."""
        await self._until(lambda: text in self.log or None, what=f"{text!r} in its log")

    async def stopped(self) -> None:
        """Wait until a SIGSTOP has stopped it."""
        stat = Path(f"/proc/{self._child.pid}/stat")
        await self._until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T" or None, what="a stop")

    async def stop(self) -> None:
        """End it as Kubernetes would; it has to end by itself, and well."""
        await asyncio.to_thread(self._child.end)
        assert self._child.process.returncode == 0, self._child.story()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Call the API, without a token as the webhook or as an account that may do everything. Status, JSON."""
        token = token if token is not None else TOKEN if path.startswith(_FOR_TOKEN) else self.editor
        sent_headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience.PATIENCE)) as session,
            session.request(
                method, f"{self.url}{path}", data=io.BytesIO(body) if body else None, headers=sent_headers
            ) as response,
        ):
            return response.status, await response.json(content_type=None)

    async def notify(self, body: bytes) -> Any:
        """Post a notification, again while others are being taken, as Alertmanager does; the receipt."""
        while True:
            status, receipt = await self.request("POST", "/api/v1/webhooks/alertmanager", body=body)
            if status == 200:
                return receipt
            assert status == 503, receipt
            await asyncio.sleep(0.1)

    async def scrape(self) -> str:
        """Its metrics, as text."""
        return await scrapes.text(await self.metrics_url())

    async def metrics_url(self) -> str:
        """The address of its metrics."""
        port = await self._until(lambda: _METRICS.search(self.log), what="the line with the port of its metrics")
        return f"http://127.0.0.1:{port[1]}"

    async def _until(self, ready: Callable[[], T | None], *, what: str) -> T:
        return await asyncio.to_thread(self._child.wait_until, ready, what=what)


def _status(port: int, path: str) -> int | None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _has_finished(manifest: dict[str, Any]) -> bool:
    conditions = manifest.get("status", {}).get("conditions", [])
    return any((condition["type"], condition["status"]) == ("Finished", "True") for condition in conditions)


_KINDS = {
    "AgentChain": ("tarsy.dev/v1alpha1", "agentchains"),
    "AlertInvestigation": ("tarsy.dev/v1alpha1", "alertinvestigations"),
    "Deployment": ("apps/v1", "deployments"),
}
"""Groups and plurals."""


class Operator:
    """Operator processes of one configuration, one after the other or side by side, and kubectl beside them."""

    def __init__(
        self,
        *,
        plane: Administrator,
        admin: client.Cluster,
        accounts: installed.Installed,
        editor: str,
        env: dict[str, str],
        platform: dict[str, Any],
        folder: Path,
        nursed: nursery.Nursery,
    ):
        self.namespace = admin.served.own
        self._admin = admin
        self.accounts = accounts
        """Those that its processes run as."""
        self.database_url = env["DATABASE_URL"]
        self._plane = plane
        self.editor = editor
        self._env = env
        self._platform = platform
        self._folder = folder
        self._nursery = nursed
        self._children: list[children.Child] = []

    def configure(self, **sections: Mapping[str, Any]) -> None:
        """Have these laid over the platform file's sections, for processes that start from now on."""
        for section, added in sections.items():
            self._platform[section] = {**self._platform.get(section, {}), **added}

    async def start(
        self,
        *,
        lease: timedelta = LEASE,
        role: str = "all",
        queue: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        api: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        providers: Mapping[str, Any] | None = None,
        budgets: Mapping[str, Any] | None = None,
        as_installed: bool = False,
        waits: bool = False,
        insecure_dev: bool = False,
        metrics: str | None = "127.0.0.1:0",
    ) -> Process:
        """Start one more, with `env` added to its environment, and wait until it has begun, or, if it `waits`, answers.

        It runs as the account that the chart gives its role, unless `env` has another kubeconfig.
        It comes from the nursery; `as_installed`, the program itself is run, which costs 4 s of a processor: for what
        is tested of the start, and for an `env` that imports depend on.
        With `insecure_dev` its API needs no token, and its runbooks may come from this machine.
        `providers` are the platform file's beside `scripted`, as far as they differ from that; None is left out.
        """
        number = len(self._children)
        milliseconds = lease // timedelta(milliseconds=1)
        leases = {"lease": f"{milliseconds}ms", "heartbeat": f"{milliseconds // 5}ms"}
        config = self._folder / f"tarsy-{number}.yaml"
        settings = {
            "queue": {**leases, **(queue or {})},
            "limits": {**UNHURRIED, **(limits or {})},
            "api": {**(api or {})},
        }
        if budgets:
            settings["budgets"] = dict(budgets)  # the former version knows no such section
        known_providers = self._platform["llm_providers"]
        more = {
            name: {key: value for key, value in {**known_providers["scripted"], **fields}.items() if value is not None}
            for name, fields in (providers or {}).items()
        }
        written = self._platform | {"llm_providers": known_providers | more} | settings
        config.write_text(json.dumps(written))  # which is YAML too
        arguments = ["operator", "--config", str(config), "--role", role, "--listen", "127.0.0.1:0"]
        if metrics is not None:
            arguments += ["--metrics-listen", metrics]
        name, log = f"operator {number}", self._folder / f"operator-{number}.log"
        kubeconfig = await self.accounts.kubeconfig(role)
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), **self._env, **(env or {})}
        if insecure_dev:
            arguments.append("--insecure-dev")
            del environment["TARSY_WEBHOOK_TOKEN"]
        if as_installed:
            tarsy = Path(sys.executable).with_name("tarsy")
            child = children.start([tarsy, *arguments], name=name, log=log, cwd=tools.ROOT, env=environment)
        else:
            child = self._nursery.start(arguments, name=name, log=log, cwd=tools.ROOT, env=environment)
        self._children.append(child)
        process = Process(child, editor=self.editor)
        try:
            await process.serve(waits=waits)
        except children.ChildError:
            if child.process.returncode != AT_FAILPOINT:  # which it may have met before it was seen to serve
                raise
        return process

    async def let_leases_pass(self, owner: uuid.UUID | None = None) -> None:
        """Let the claims and duties of processes pass now, or those of one of them: each that has any was killed."""
        connection = await asyncpg.connect(self.database_url)
        try:
            for table, column in (("work", "lease_until"), ("leaders", "until")):
                await connection.execute(
                    f"UPDATE {table} SET {column} = clock_timestamp() "  # noqa: S608 - names of ours
                    f"WHERE {column} IS NOT NULL AND owner = coalesce($1, owner)",
                    owner,
                )
        finally:
            await connection.close()

    async def owners(self) -> set[uuid.UUID]:
        """Return what the claims and duties of its processes are owned by, once a process has told that it runs."""
        connection = await asyncpg.connect(self.database_url)
        try:
            return {row["process"] for row in await connection.fetch("SELECT process FROM catalogue")}
        finally:
            await connection.close()

    @property
    def log(self) -> str:
        """Return the logs of all of them so far."""
        return "".join(child.log.read_text() for child in self._children)

    async def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        """Run kubectl in the operator's namespace."""
        return await asyncio.to_thread(self._plane.kubectl, *args, input=input, namespace=self.namespace)

    async def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply these manifests, one after the other, on the server's side; kubectl would cost 0.12 s of a processor.

        An API server that has just been started, or has just been given our kinds, may refuse requests at first.
        """
        query = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
        for manifest in manifests:
            path = f"{self._path(manifest['kind'])}/{manifest['metadata']['name']}"
            kind = "application/apply-patch+yaml"
            await self._ask("PATCH", path, query=query, body=manifest, content_type=kind)

    async def finished(self, *names: str) -> dict[str, Any]:
        """Wait until these investigations, or all, have finished; the objects by their names."""
        by_name: dict[str, Any] = {}
        try:
            async with patience.limit():
                while True:
                    items = (await self._ask("GET", self._path("AlertInvestigation")))["items"]
                    by_name = {manifest["metadata"]["name"]: manifest for manifest in items}
                    wanted = names or by_name.keys()
                    if wanted and all(_has_finished(by_name.get(name, {})) for name in wanted):
                        for manifest in items:
                            del manifest["metadata"]["managedFields"]  # as kubectl shows it
                        return by_name
                    await asyncio.sleep(0.1 + 0.02 * len(by_name))  # to look is work, too
        except patience.TooLong as error:
            phases = {name: manifest.get("status", {}).get("phase") for name, manifest in by_name.items()}
            raise patience.TooLong(f"{error}: the end of investigations, whose phases are {phases}") from None

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask the API server as the administrator."""
        async with patience.limit():
            while True:
                with contextlib.suppress(client.ClusterDownError):
                    async with calls.errors():
                        return await calls.request(self._admin, method, path, **options)
                await asyncio.sleep(0.1)

    def _path(self, kind: str) -> str:
        """The path of the objects of a kind in the operator's namespace."""
        group, plural = _KINDS[kind]
        return f"/apis/{group}/namespaces/{self.namespace}/{plural}"

    async def event(self, name: str, reason: str, *, telling: str = "") -> dict[str, Any]:
        """Wait until Kubernetes has an Event of that reason about an investigation; it. A status comes before it."""
        about = f"--field-selector=involvedObject.name={name},reason={reason}"
        async with patience.limit():
            while True:
                items = json.loads(await self.kubectl("get", "events", about, "-o", "json"))["items"]
                if matching := [listed_event for listed_event in items if telling in listed_event["message"]]:
                    (event,) = matching
                    return dict(event)

    def end(self) -> None:
        """End what still runs, and show all logs: pytest prints them if the test failed."""
        for child in self._children:
            if child.process.poll() is None:
                child.end(signal.SIGKILL)
            print(f"--- {child.name}\n{child.log.read_text()}")


@pytest.fixture(scope="session")
def nursed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nursery.Nursery]:
    """Where the run's operators come from."""
    with nursery.Nursery(log=tmp_path_factory.mktemp("nursery") / "nursery.log") as running:
        yield running


@pytest.fixture
def unreachable(plane: Administrator, namespace: str, tmp_path: Path) -> str:
    """The path of a kubeconfig whose API server is not there."""
    (nobody,) = children.free_ports(1)
    path = tmp_path / "unreachable"
    text = plane.kubeconfig(namespace=namespace).read_text()
    path.write_text(text.replace(plane.url, f"https://127.0.0.1:{nobody}"))
    return str(path)


@pytest.fixture
async def llm() -> AsyncIterator[model.Server]:
    """A model that answers what the test sets as its `script`."""
    async with model.serve() as server:
        yield server


@pytest.fixture
async def toolbox() -> AsyncIterator[mcp_server.Server]:
    """The MCP server `tools` of the platform file."""
    async with mcp_server.serve() as server:
        yield server


@pytest.fixture
async def operator(
    plane: Administrator,
    admin: client.Cluster,
    chart_accounts: installed.Installed,
    editor: str,
    migrated_url: str,
    tmp_path: Path,
    llm: model.Server,
    toolbox: mcp_server.Server,
    nursed: nursery.Nursery,
) -> AsyncIterator[Operator]:
    """An operator that has not been started; its namespace and its database, which is migrated, are empty."""
    provider = {"type": "google", "model": "gemini-2.5-flash", "base_url": llm.url, "api_key_env": "MODEL_KEY"}
    operator = Operator(
        plane=plane,
        admin=admin,
        accounts=chart_accounts,
        editor=editor,
        env={"DATABASE_URL": migrated_url, "TARSY_WEBHOOK_TOKEN": TOKEN, "MODEL_KEY": "any"},
        platform={
            "defaults": {"llm_provider": "scripted"},
            "llm_providers": {"scripted": provider},
            "mcp_servers": {"tools": {"transport": {"type": "http", "url": toolbox.url}, "write_tools": WRITING}},
            "agents": {"KubernetesAgent": {"mcp_servers": ["tools"]}},
            "ingest": {"default_alert_type": "kubernetes"},
        },
        folder=tmp_path,
        nursed=nursed,
    )
    yield operator
    operator.end()
