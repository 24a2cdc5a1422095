"""The chart as helm installs, upgrades, rolls back and uninstalls it on a real API server; its pods are processes.

Namespaces enforce Pod Security `restricted`, so each pod that is made is one that it lets pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import kubelet, manifests
from tarsy.kube import client
from tarsy_dev import chart, controlplane, mcp_server, model, patience
from tarsy_dev import postgres as launcher

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
CRDS = ("agentchains.tarsy.dev", "alertinvestigations.tarsy.dev")


@pytest.fixture
def plane(tmp_path: Path, programs: dict[str, Path]) -> Iterator[controlplane.ControlPlane]:
    """A control plane of the test's own, without our kinds; its pods are left to the test."""
    with controlplane.ControlPlane(folder=tmp_path / "plane", audited=True) as running:
        running.kill("kwok")
        yield running


@pytest.fixture
async def node(
    plane: controlplane.ControlPlane, admin: client.Cluster, tmp_path: Path
) -> AsyncIterator[kubelet.Kubelet]:
    """What runs the pods."""
    node = kubelet.Kubelet(plane, admin, folder=tmp_path / "pods")
    running = asyncio.create_task(node.run())
    yield node
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class Release:
    """The release `tarsy` of a namespace, with what has to be there before it: Secrets, and a database."""

    def __init__(self, node: kubelet.Kubelet, helm: Path, *, namespace: str, values: Mapping[str, Any]) -> None:
        self._plane = node.plane
        self._helm = helm
        self.namespace = namespace
        self._values = values
        node.namespaces.add(namespace)

    async def prepare(self, database_url: str) -> None:
        """Make the namespace restricted, and the Secrets that the chart's default values name."""
        await self.restrict()
        await self.bring_secrets(database_url)

    async def restrict(self) -> None:
        await self.kubectl("label", "namespace", self.namespace, RESTRICTED)

    async def bring_secrets(self, database_url: str) -> None:
        for name, key, text in (
            ("tarsy-database", "uri", database_url),
            ("tarsy-webhook", "token", "the webhook's token"),
            ("tarsy-llm-keys", "MODEL_KEY", "any"),
        ):
            await self.kubectl("create", "secret", "generic", name, f"--from-literal={key}={text}")

    async def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run helm on the release, with these values over the test's own where it takes values."""
        folder = self._plane.folder
        command: list[str | Path] = [self._helm, *arguments, "--namespace", self.namespace]
        if arguments[0] in ("install", "upgrade"):
            path = folder / f"{self.namespace}.values.json"
            path.write_text(json.dumps({**self._values, **(values or {})}))
            command += [chart.CHART, "--values", path]
        env = {"HELM_CACHE_HOME": "cache", "HELM_CONFIG_HOME": "config", "HELM_DATA_HOME": "data"}
        env = {name: str(folder / "helm" / place) for name, place in env.items()}
        env |= {"KUBECONFIG": str(self._plane.kubeconfig(namespace=self.namespace)), "HOME": str(folder)}
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    async def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's name for it
        return await asyncio.to_thread(
            self._plane.kubectl, *arguments, input=input, namespace=self.namespace, timeout=150
        )

    @property
    def _deployments(self) -> list[str]:
        """The Deployments of the operator's parts."""
        parts = ("api", "controller", "worker") if self._values.get("mode") == "split" else ()
        return [f"deployment/tarsy-{part}" for part in parts] or ["deployment/tarsy"]

    async def rolled_out(self) -> None:
        """Wait until its pods are those of its newest revision, and ready."""
        for deployment in self._deployments:
            await self.kubectl("rollout", "status", deployment, "--timeout=120s")

    async def restart_worker(self) -> None:
        await self.kubectl("rollout", "restart", self._deployments[-1])

    async def objects(self, kinds: str, *, component: str | None = None) -> dict[str, str]:
        """Names to uids; of a component of the chart, where one is named. `operator` is all of its parts."""
        wanted = "operator, api, controller, worker" if component == "operator" else component
        chosen = [f"--selector=app.kubernetes.io/component in ({wanted})"] if component else []
        items = json.loads(await self.kubectl("get", kinds, *chosen, "-o", "json"))["items"]
        return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in items}

    async def investigate(self, name: str, *, alert_type: str = "survival") -> None:
        made = manifests.investigation(name, alertType=alert_type)
        await self.kubectl("create", "-f", "-", input=json.dumps(made))

    async def finished(self, name: str) -> dict[str, Any]:
        """Its status."""
        await self.kubectl("wait", f"inv/{name}", "--for=condition=Finished", "--timeout=120s")
        found: dict[str, Any] = json.loads(await self.kubectl("get", "inv", name, "-o", "json"))["status"]
        return found


@pytest.fixture
def values(llm: model.Server, toolbox: mcp_server.Server) -> dict[str, Any]:
    """Values for model and tools of the test's."""
    provider = {"type": "google", "model": "gemini-2.5-flash", "base_url": llm.url}
    return {
        "mcp": {"enabled": False},
        "chains": {"survival": manifests.chain("survival")["spec"]},
        "platform": {
            "defaults": {"llm_provider": "scripted"},
            "llm_providers": {"scripted": provider | {"api_key_file": "/etc/tarsy/keys/MODEL_KEY"}},
            "mcp_servers": {"tools": {"transport": {"type": "http", "url": toolbox.url}}},
            "agents": {"KubernetesAgent": {"mcp_servers": ["tools"]}},
        },
    }


@pytest.fixture
async def release(
    node: kubelet.Kubelet, helm: Path, namespace: str, database_url: str, values: dict[str, Any]
) -> Release:
    """A release that is not installed yet; its database is empty."""
    release = Release(node, helm, namespace=namespace, values=values)
    await release.prepare(database_url)
    return release


async def test_an_installation_waits_for_its_secrets_and_holds_up_nobody(
    node: kubelet.Kubelet, helm: Path, namespace: str, database_url: str, values: dict[str, Any], llm: model.Server
) -> None:
    """Neither helm, which tells at its end which Secrets it needs, nor who waits for the pods."""
    release = Release(node, helm, namespace=namespace, values=values)
    await release.restrict()
    assert "It needs these Secrets" in await release.helm("install", "tarsy")
    waits = "Waiting: DATABASE_URL_FILE: the file that it names: No such file or directory"
    async with patience.limit():
        while not any(waits in node.log(name[4:]) for name in await release.objects("pods", component="migrate")):
            pass  # each is an answer of the API server
    await release.bring_secrets(database_url)
    await release.rolled_out()
    await release.kubectl("wait", "job/tarsy-migrate-0-1-0", "--for=condition=Complete", "--timeout=60s")
    await release.kubectl("wait", "chains", "--all", "--for=condition=Ready", "--timeout=60s")  # as helm would, too
    await release.helm("uninstall", "tarsy", "--wait")
    await release.helm("install", "tarsy", "--wait", "--timeout=120s")
    llm.script = lambda _turn: model.Answer(text="root cause")
    await release.investigate("it")
    assert (await release.finished("it"))["phase"] == "Completed"


@pytest.mark.parametrize("mode", ["single", "split"])
async def test_all_that_is_done_with_a_release_keeps_objects_and_running_investigations(
    node: kubelet.Kubelet,
    helm: Path,
    namespace: str,
    database_url: str,
    values: dict[str, Any],
    llm: model.Server,
    toolbox: mcp_server.Server,
    postgres: launcher.Access,
    mode: str,
) -> None:
    """An installation, an alert, a reload of the platform file, an upgrade to what is there and to more, a rollback.

    Each part of the operator has what the chart gives its pod, and nothing else: in split mode keys are the worker's.
    """
    release = Release(node, helm, namespace=namespace, values=values | {"mode": mode})
    await release.prepare(database_url)
    llm.script = lambda _turn: model.Answer(text="root cause")
    await release.helm("install", "tarsy")
    await release.rolled_out()
    await release.kubectl("wait", "chains", "--all", "--for=condition=ProvidersUsable", "--timeout=60s")
    await release.investigate("before")
    assert (await release.finished("before"))["phase"] == "Completed"
    assert "Phase:          Succeeded" in await release.helm("test", "tarsy"), "it posts an alert as Alertmanager does"

    pods = await release.objects("pods", component="operator")
    async with model.serve(lambda _turn: model.Answer(text="found by the later one")) as later:
        await reload(release, values["platform"], later.url)
        assert len(later.requests) == 1
    assert await release.objects("pods", component="operator") == pods, "a change of the file restarts nothing"

    def looks_and_hangs(turn: model.Turn) -> model.Reply:
        if turn.iteration == 0:
            return model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "web-0"}),))
        return model.Hang()

    llm.script = looks_and_hangs
    asked = len(llm.requests)
    await release.investigate("meanwhile")
    await llm.wait_for(lambda requests: len(requests) >= asked + 2)
    kept, pods = await release.objects("inv,chain"), await release.objects("pods", component="operator")

    await release.helm("upgrade", "tarsy")
    await release.rolled_out()
    assert await release.objects("pods", component="operator") == pods, "to what is there restarts nothing"

    await release.helm("upgrade", "tarsy", values={"logLevel": "DEBUG"})
    await release.rolled_out()
    await llm.wait_for(lambda requests: len(requests) >= asked + 3)
    # As a newer version would have left it that has only added something.
    newer = "UPDATE alembic_version SET version_num = 'newer', serves = '{newer}' || serves"
    postgres.execute(newer, database=database_url.rpartition("/")[2])
    await release.helm("rollback", "tarsy", "1")
    await release.rolled_out()
    await release.kubectl("wait", "job/tarsy-migrate-0-1-0", "--for=condition=Complete", "--timeout=60s")
    await llm.wait_for(lambda requests: len(requests) >= asked + 4)
    assert await release.objects("inv,chain") == kept

    llm.script = lambda _turn: model.Answer(text="root cause")
    await release.restart_worker()  # whose model hangs
    status = await release.finished("meanwhile")
    assert (status["phase"], status["usage"]["toolCalls"]) == ("Completed", 1)
    assert len(toolbox.calls) == 1, "what is committed is not sent again"


async def reload(release: Release, platform: dict[str, Any], url: str) -> None:
    """Have the platform file name one more provider and an agent that asks it, and an investigation run by them."""
    provider = platform["llm_providers"]["scripted"] | {"base_url": url}
    more = {
        "llm_providers": platform["llm_providers"] | {"later": provider},
        "agents": platform["agents"] | {"LaterAgent": {"llm_provider": "later"}},
    }
    await release.helm("upgrade", "tarsy", values={"platform": platform | more})
    waits = manifests.chain("later", name="later", stages=[manifests.stage("analysis", agent="LaterAgent")])
    await release.kubectl("create", "-f", "-", input=json.dumps(waits))
    await release.kubectl("wait", "chain/later", "--for=condition=Ready", "--timeout=60s")
    await release.investigate("later", alert_type="later")
    assert (await release.finished("later"))["phase"] == "Completed"


async def test_two_releases_stand_side_by_side_and_one_that_goes_leaves_kinds_and_objects(
    release: Release,
    node: kubelet.Kubelet,
    helm: Path,
    postgres: launcher.Access,
    values: dict[str, Any],
    llm: model.Server,
) -> None:
    llm.script = lambda _turn: model.Answer(text="root cause")
    await release.helm("install", "tarsy")
    await asyncio.to_thread(node.plane.create_namespace, "second")
    second = Release(node, helm, namespace="second", values=values | {"crds": {"enabled": False}})
    await second.prepare(postgres.create_database("second"))
    await second.helm("install", "tarsy")
    await asyncio.gather(release.rolled_out(), second.rolled_out())
    await release.investigate("kept")
    assert (await release.finished("kept"))["phase"] == "Completed"
    kept = await release.objects("inv,chain")

    await release.helm("uninstall", "tarsy", "--wait")
    assert await release.objects("inv,chain") == kept
    assert await release.objects("deployments,roles,rolebindings,configmaps,services", component="operator") == {}
    listed = await release.kubectl("get", "crds,clusterroles,clusterrolebindings", "-o", "name")
    assert all(name in listed for name in CRDS)
    assert f"{release.namespace}:tarsy" not in listed
    await second.investigate("other")
    assert (await second.finished("other"))["phase"] == "Completed"

    await release.helm("install", "tarsy")
    await release.rolled_out()
    await release.investigate("again")
    assert (await release.finished("again"))["phase"] == "Completed"
    assert (await release.objects("inv,chain")).items() > kept.items()
