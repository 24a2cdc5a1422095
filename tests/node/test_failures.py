"""Failures around running investigations, on a real node: none of them is lost, and each of them completes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.installation import NAMESPACE, OPERATOR, Installation
from tarsy_dev.node import addresses, machine

pytestmark = pytest.mark.timeout(900)

MANY = 50
"""The most investigations that one pod runs at once."""
DATABASE = "tarsy-postgres-0"


@pytest.fixture(scope="module")
def installation(
    node: machine.Machine, images: object, helm: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A release with one operator, for all tests here."""
    around = Installation(node, mode="single", folder=tmp_path_factory.mktemp("failures"))
    around.surround()
    around.install()
    around.give_token()
    around.add_chain()
    yield around
    around.shell(f"helm uninstall tarsy --namespace {NAMESPACE} --wait; kubectl delete namespace {NAMESPACE}")


def test_fifty_concurrent_investigations_stay_within_the_memory_of_one_pod(
    installation: Installation, record_property: Callable[[str, object], None]
) -> None:
    """And no probe takes a busy operator for one that hangs."""
    before = operator(installation)
    with held(installation, "model", namespace="model"):
        names = installation.investigate("many", count=MANY)
        for name in names:
            installation.kubectl("wait", f"inv/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    after = operator(installation)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(after) == restarts(before)
    peaks = {part: peak(installation, part) for part in ("operator", "mcp", "postgres")}
    print("peak of memory in MiB:", {part: size >> 20 for part, size in peaks.items()})
    for part, size in peaks.items():
        record_property(f"{part} memory", size)


def test_operator_that_is_killed_for_its_memory_goes_on_after_a_restart(installation: Installation) -> None:
    before = operator(installation)
    names = installation.investigate("memory", count=5)
    (process,) = processes(before, "tarsy")
    exhaust_memory(process)
    after = wait_for_restart(installation, before)
    ended = after["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


def test_operator_that_hangs_is_restarted_by_its_liveness_probe(installation: Installation) -> None:
    before = operator(installation)
    names = installation.investigate("hung", count=5)
    (process,) = processes(before, "tarsy")
    os.kill(process, signal.SIGSTOP)
    wait_for_restart(installation, before)
    events = installation.kubectl("get", "events", "-o", "json")
    assert "Liveness probe failed" in events
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


def test_operator_that_is_terminated_in_the_middle_of_calls_ends_within_its_grace(installation: Installation) -> None:
    before = operator(installation)
    name = before["metadata"]["name"]
    keep = json.dumps({"metadata": {"finalizers": ["tests.tarsy.dev/keep"]}})
    installation.kubectl("patch", "pod", name, f"--patch={keep}")  # to read its end
    try:
        with held(installation, "model", namespace="model"):
            names = installation.investigate("terminated", count=5)
            installation.kubectl("delete", "pod", name, "--wait=false")
            ended = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
            installation.kubectl("wait", f"pod/{name}", ended, "--timeout=60s")
        state = installation.object_of("pod", name)["status"]["containerStatuses"][0]["state"]
    finally:
        installation.kubectl("patch", "pod", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}')
    assert state["terminated"]["exitCode"] == 0, "it ended by itself, and was not killed"
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


def test_database_whose_pod_is_deleted_keeps_its_volume(installation: Installation) -> None:
    claim = installation.object_of("pvc", f"data-{DATABASE}")["metadata"]["uid"]
    stored = count_stored(installation)
    names = installation.investigate("database", count=5)
    installation.kubectl("delete", "pod", DATABASE)
    installation.kubectl("rollout", "status", "statefulset/tarsy-postgres", "--timeout=120s", timeout=130)
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    assert installation.object_of("pvc", f"data-{DATABASE}")["metadata"]["uid"] == claim
    assert count_stored(installation) == stored + len(names)


def test_restart_of_the_api_server_and_of_coredns_loses_nothing(
    installation: Installation, node: machine.Machine
) -> None:
    names = installation.investigate("outage", count=5)
    node.restart("kube-apiserver")
    installation.kubectl("delete", "pod", "--selector=k8s-app=kube-dns", namespace="kube-system")
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    names = installation.investigate("after-outage", count=1)
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


def test_drain_of_the_node_loses_nothing(installation: Installation) -> None:
    before = operator(installation)
    names = installation.investigate("drained", count=5)
    drain = ("drain", addresses.NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s")
    try:
        installation.node.kubectl(*drain, timeout=250)
    finally:
        installation.node.kubectl("uncordon", addresses.NODE)
    installation.rolled_out()
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    assert operator(installation)["metadata"]["uid"] != before["metadata"]["uid"]


def test_tokens_are_rotated_as_the_docs_say(installation: Installation) -> None:
    """The webhook's by a restart, the providers' keys without one."""
    former = installation.object_of("secret", "tarsy-webhook")["data"]["token"]
    token, key = secrets.token_hex(24), secrets.token_hex(24)
    for secret, string_data in (("tarsy-webhook", {"token": token}), ("tarsy-llm-keys", {"GOOGLE_API_KEY": key})):
        patch = json.dumps({"stringData": string_data})
        installation.kubectl("patch", "secret", secret, "--type=merge", f"--patch={patch}")
    installation.kubectl("rollout", "restart", "deployment/tarsy")
    installation.rolled_out()
    code = f"""
        import base64, urllib.error, urllib.request
        url = "http://tarsy:8080/api/v1/webhooks/alertmanager"
        for token in (base64.b64decode("{former}").decode(), "{token}"):
            headers = {{"Authorization": "Bearer " + token}}
            try:
                urllib.request.urlopen(urllib.request.Request(url, data=b"[]", headers=headers, method="POST"))
            except urllib.error.HTTPError as error:
                print(error.code)
    """
    refused, accepted = installation.run("deployment/tarsy", code).split()
    assert refused == "401"
    assert accepted == "400", "no notification, from a known sender"
    installation.give_token()
    installation.fire(alertname="TokensRotated", namespace="shop", pod="web-0")
    chosen = ("--field-selector=spec.alertType=kubernetes", "-o", "jsonpath={.items[*].metadata.name}")
    deadline = time.monotonic() + 60
    while not (names := [name for name in installation.kubectl("get", "inv", *chosen).split() if name != "first"]):
        assert time.monotonic() < deadline, "the alert made no investigation"
        time.sleep(0.5)
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


@pytest.mark.timeout(1500)
def test_operator_with_expired_account_token_continues_with_the_next_token(installation: Installation) -> None:
    """The kubelet replaces a token of ten minutes, the shortest that there is, after eight."""
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    pod = "/spec/template/spec"
    patch = [
        {"op": "replace", "path": f"{pod}/automountServiceAccountToken", "value": False},
        {"op": "add", "path": f"{pod}/volumes/-", "value": {"name": "short", "projected": {"sources": sources}}},
        {
            "op": "add",
            "path": f"{pod}/containers/0/volumeMounts/-",
            "value": {"name": "short", "mountPath": path, "readOnly": True},
        },
    ]
    installation.kubectl("patch", "deployment/tarsy", "--type=json", f"--patch={json.dumps(patch)}")
    installation.rolled_out()
    read = f"""
        import base64, json
        claims = open("{path}/token").read().split(".")[1]
        print(json.loads(base64.urlsafe_b64decode(claims + "=="))["exp"])
    """
    expiry = float(installation.run("deployment/tarsy", read))
    time.sleep(max(0.0, expiry + 5 - time.time()))
    assert float(installation.run("deployment/tarsy", read)) > expiry
    names = installation.investigate("expired", count=3)
    for name in names:
        installation.kubectl("wait", f"inv/{name}", "--for=condition=Finished", "--timeout=120s")
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    assert restarts(operator(installation)) == 0


def operator(installation: Installation) -> dict[str, Any]:
    """The operator's one pod that is not about to end."""
    (pod,) = [
        each
        for each in installation.objects("pods", OPERATOR)
        if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] == "Running"
    ]
    return pod


def restarts(pod: dict[str, Any]) -> int:
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count


def wait_for_restart(installation: Installation, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until the pod's container was restarted and is ready; return the pod."""
    name = before["metadata"]["name"]
    deadline = time.monotonic() + 300
    while restarts(pod := installation.object_of("pod", name)) == restarts(before):
        assert time.monotonic() < deadline, pod["status"]
        time.sleep(1)
    installation.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s", timeout=130)
    return installation.object_of("pod", name)


def processes(pod: dict[str, Any], word: str) -> list[int]:
    """The processes of a pod whose command has a word, by their numbers on this machine."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_text().split("\0")
            if pod["metadata"]["uid"] in (path / "cgroup").read_text() and any(word in part for part in command):
                pids.append(int(path.name))
    return pids


@contextlib.contextmanager
def held(installation: Installation, app: str, *, namespace: str) -> Iterator[None]:
    """Stop the processes of an app for a while: what is asked of it stays without an answer."""
    (pod,) = installation.objects("pods", f"app={app}", namespace=namespace)
    stopped = processes(pod, "tarsy_dev")
    assert stopped
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            os.kill(process, signal.SIGCONT)


def memory_files(process: int) -> tuple[Path, Path, Path]:
    """The files of a process's cgroup: its use, its peak and its limit of memory."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            folder = Path("/sys/fs/cgroup/memory", path.lstrip("/"))
            names = ("usage_in_bytes", "max_usage_in_bytes", "limit_in_bytes")
            return folder / f"memory.{names[0]}", folder / f"memory.{names[1]}", folder / f"memory.{names[2]}"
    folder = Path("/sys/fs/cgroup", path.lstrip("/"))
    return folder / "memory.current", folder / "memory.peak", folder / "memory.max"


def peak(installation: Installation, part: str) -> int:
    """The most memory that a part of the release has used so far, with the kernel's cache of its files, in bytes."""
    (pod,) = installation.objects("pods", f"app.kubernetes.io/component={part}")
    word = {"operator": "tarsy", "mcp": "kubernetes-mcp-server", "postgres": "postgres"}[part]
    _, most, _ = memory_files(processes(pod, word)[0])
    return int(most.read_text())


def exhaust_memory(process: int) -> None:
    """Lower the limit of the process's cgroup to what it uses until the kernel kills it."""
    used, _, limit = memory_files(process)
    deadline = time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError):
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < deadline, "it lives with what it has"
            with contextlib.suppress(OSError):  # so much cannot be taken from it
                limit.write_text(str(int(used.read_text()) - 1024 * 1024))
            with contextlib.suppress(OSError):
                limit.write_text(used.read_text().strip())
            time.sleep(0.05)


def count_stored(installation: Installation) -> int:
    """The number of investigations in the database."""
    code = """
        import asyncio, asyncpg, pathlib
        async def main():
            connection = await asyncpg.connect(pathlib.Path("/etc/tarsy/database/uri").read_text().strip())
            print(await connection.fetchval("SELECT count(*) FROM investigations"))
        asyncio.run(main())
    """
    return int(installation.run("deployment/tarsy", code))
