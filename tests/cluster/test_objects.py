"""Our calls on the two kinds, and the kinds themselves, on a real API server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from support import manifests
from tarsy.kube import client, objects
from tarsy.resources import base, chains, investigations
from tarsy_dev import patience, proxy
from tarsy_dev.controlplane import Administrator, KubectlError

NOW = datetime(2026, 11, 22, 0, 14, 47, 535061, tzinfo=UTC)


def manifest(namespace: str, **spec: str) -> dict[str, Any]:
    alert = {"alertData": "wéb-0 restarts <&>\n🚨"}
    return manifests.investigation(namespace=namespace, **alert | spec)


def a_status(sequence: int, *, finished: bool = False) -> investigations.Status:
    ends = ["Finished", "Complete"] if finished else ["Reconciling"]
    return investigations.Status(
        sequence=sequence,
        observed_generation=1,
        phase="Completed" if finished else "Running",
        conditions=[
            base.Condition(type=kind, status="True", reason="Because", last_transition_time=NOW, observed_generation=1)
            for kind in ("Accepted", *ends)
        ],
        chain=investigations.ChainReference(name="pod-crash", namespace="tarsy", generation=1),
        progress="2/2" if finished else "1/2",
        current_stage=None if finished else "analysis",
        stages=[
            investigations.StageStatus(name="collect", phase="Completed", start_time=NOW, completion_time=NOW),
            investigations.StageStatus(name="analysis", phase="Running", start_time=NOW, iterations=2, tokens=1200),
        ],
        usage=investigations.Usage(input_tokens=1000, output_tokens=200, total_tokens=1200),
        duration="1m32s",
    )


async def apply(cluster: client.Cluster, uid: str, status: investigations.Status) -> str:
    return await objects.apply_status(cluster, namespace=cluster.served.own, name="web-crash", uid=uid, status=status)


def on_the_wire(status: investigations.Status) -> Any:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def read_status(plane: Administrator, namespace: str) -> Any:
    """The status as the API server has it."""
    return json.loads(plane.kubectl("get", "inv", "web-crash", "-o", "json", namespace=namespace))["status"]


async def test_object_is_created_once_and_found_afterwards(cluster: client.Cluster) -> None:
    assert await objects.get_investigation(cluster, namespace=cluster.served.own, name="web-crash") is None
    asked = manifest(cluster.served.own, fingerprint="6eb8c03418906421", startsAt="2026-11-21T20:26:18.109994018Z")
    first = await objects.create_investigation(cluster, asked)
    again = await objects.create_investigation(cluster, manifest(cluster.served.own, alertType="another"))
    assert not first.existed
    assert again.existed
    assert again.investigation == first.investigation
    assert again.investigation.spec.alert_type == "kubernetes"
    assert again.investigation.spec.alert_data == asked["spec"]["alertData"]
    assert again.investigation.metadata.uid
    assert again.investigation.metadata.generation == 1
    assert (
        await objects.get_investigation(cluster, namespace=cluster.served.own, name="web-crash") == first.investigation
    )


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({"alertTyp": "x"}, "alertTyp", id="an unknown field"),
        pytest.param({"alertData": ""}, "alertData", id="no alert"),
        pytest.param({"alertData": "x" * (investigations.ALERT_DATA_MAX + 1)}, "alertData", id="too large an alert"),
        pytest.param({"author": "x" * (investigations.AUTHOR_MAX + 1)}, "author", id="too long an author"),
        pytest.param({"startsAt": "yesterday"}, "startsAt", id="a time that is none"),
        pytest.param({"startsAt": "0000-01-01T00:00:00Z"}, "startsAt", id="a time before all that can be kept"),
    ],
)
async def test_an_object_against_the_schema_is_refused_with_the_field_at_fault(
    cluster: client.Cluster, spec: dict[str, str], complaint: str
) -> None:
    with pytest.raises(objects.RefusedError, match=complaint):
        await objects.create_investigation(cluster, manifest(cluster.served.own, **spec))


async def test_object_in_a_missing_namespace_is_refused(admin: client.Cluster) -> None:
    with pytest.raises(objects.RefusedError, match="not found"):
        await objects.create_investigation(admin, manifest("nowhere"))


@pytest.mark.parametrize(
    "change",
    [{"alertType": "another"}, {"alertData": "another"}, {"fingerprint": "added"}, {"startsAt": None}],
    ids=["changed", "replaced", "added", "taken away"],
)
async def test_a_spec_cannot_be_changed(plane: Administrator, cluster: client.Cluster, change: dict[str, Any]) -> None:
    await objects.create_investigation(cluster, manifest(cluster.served.own, startsAt="2026-11-21T20:26:18Z"))
    (field,) = change
    with pytest.raises(KubectlError, match=f"{field} cannot be changed: delete the investigation and create another"):
        plane.kubectl(
            "patch",
            "inv",
            "web-crash",
            "--type=merge",
            "-p",
            json.dumps({"spec": change}),
            namespace=cluster.served.own,
        )


async def test_status_is_written_completely(plane: Administrator, cluster: client.Cluster) -> None:
    made = await objects.create_investigation(cluster, manifest(cluster.served.own))
    assert read_status(plane, cluster.served.own)["observedGeneration"] == -1
    for status in (a_status(1), a_status(1), a_status(7, finished=True)):
        assert await apply(cluster, made.investigation.metadata.uid, status) == "written"
        assert read_status(plane, cluster.served.own) == on_the_wire(status)


async def test_a_status_never_lands_on_an_object_that_was_made_again_under_its_name(
    plane: Administrator, cluster: client.Cluster
) -> None:
    first = await objects.create_investigation(cluster, manifest(cluster.served.own))
    assert await apply(cluster, first.investigation.metadata.uid, a_status(1)) == "written"
    plane.kubectl("delete", "inv", "web-crash", namespace=cluster.served.own)
    assert await apply(cluster, first.investigation.metadata.uid, a_status(2)) == "gone"
    second = await objects.create_investigation(cluster, manifest(cluster.served.own))
    assert not second.existed
    assert await apply(cluster, first.investigation.metadata.uid, a_status(2)) == "gone"
    assert "sequence" not in read_status(plane, cluster.served.own)


async def test_status_older_than_the_current_status_is_not_written(
    plane: Administrator, cluster: client.Cluster
) -> None:
    made = await objects.create_investigation(cluster, manifest(cluster.served.own))
    await apply(cluster, made.investigation.metadata.uid, a_status(7, finished=True))
    assert await apply(cluster, made.investigation.metadata.uid, a_status(6)) == "older"
    assert read_status(plane, cluster.served.own) == on_the_wire(a_status(7, finished=True))


async def test_a_status_against_the_schema_is_a_refusal_and_not_taken_for_another_object(
    cluster: client.Cluster,
) -> None:
    made = await objects.create_investigation(cluster, manifest(cluster.served.own))
    wrong = a_status(1).model_copy(update={"phase": "Paused"})
    with pytest.raises(objects.RefusedError, match=r"status\.phase"):
        await apply(cluster, made.investigation.metadata.uid, wrong)


def misspelt(field: str) -> str:
    """How the API server refuses the strategy `rect` at a place of the stage."""
    choices = ", ".join(f'"{strategy}"' for strategy in get_args(chains.IterationStrategy))
    return rf'spec.stages\[0\].{field}: Unsupported value: "rect": supported values: {choices}'


EITHER = "give either agent"
REPLICAS = "replicas goes with agent"
SYNTHESIS = "synthesis goes with several agents"


@pytest.mark.parametrize(
    ("stage", "complaint"),
    [
        pytest.param({}, EITHER, id="no agent at all"),
        pytest.param({"agent": "A", "agents": [{"name": "B"}]}, EITHER, id="agent and agents"),
        pytest.param({"agents": [{"name": "B"}], "replicas": 2}, REPLICAS, id="agents and replicas"),
        pytest.param({"agent": "A", "replicas": 11}, "replicas", id="eleven replicas"),
        pytest.param({"agent": "A", "synthesis": {}}, SYNTHESIS, id="synthesis of one"),
        pytest.param({"agent": "A", "iterationStrategy": "rect"}, misspelt("iterationStrategy"), id="a strategy"),
        pytest.param(
            {"agents": [{"name": "A"}, {"name": "A", "iterationStrategy": "rect"}]},
            misspelt(r"agents\[1\].iterationStrategy"),
            id="a strategy of one of several",
        ),
        pytest.param(
            {"agent": "A", "replicas": 2, "synthesis": {"iterationStrategy": "rect"}},
            r'stages\[0\].synthesis.iterationStrategy: Unsupported value: "rect": supported values: "synthesis", ',
            id="a strategy of a synthesis",
        ),
    ],
)
async def test_stage_with_missing_ambiguous_or_invalid_agents_is_refused(
    plane: Administrator, cluster: client.Cluster, stage: dict[str, Any], complaint: str
) -> None:
    refused = manifests.chain(stages=[{"name": "analysis"} | stage])
    with pytest.raises(KubectlError, match=complaint):
        plane.create(refused, namespace=cluster.served.own)


async def test_the_largest_chain_is_within_the_api_servers_budget(
    plane: Administrator, cluster: client.Cluster
) -> None:
    """Rules are priced by the largest object that they may meet."""
    stages = [
        {
            "name": f"stage-{number}",
            "agents": [{"name": f"Agent{n}", "mcpServers": ["s"] * 20} for n in range(10)],
            "synthesis": {"agent": "A" * 253},
        }
        for number in range(20)
    ]
    chain = manifests.chain(stages=stages)
    plane.create(chain, namespace=cluster.served.own)
    (listed_chain,) = await objects.list_chains(cluster, namespace=cluster.served.own)
    assert sum(len(stage.members) for stage in listed_chain.spec.stages) == 200


async def test_text_of_the_cluster_that_the_store_cannot_hold_is_replaced(
    plane: Administrator, cluster: client.Cluster
) -> None:
    for made in (
        manifests.chain("a\x00"),
        manifests.investigation(alertType="a\x00", fingerprint="\x00", labels={"\x00": "y"}),
    ):
        plane.create(made, namespace=cluster.served.own)
    (chain,) = await objects.list_chains(cluster, namespace=cluster.served.own)
    investigation = await objects.get_investigation(cluster, namespace=cluster.served.own, name="web-crash")
    assert investigation is not None
    assert chain.spec.alert_types == [investigation.spec.alert_type] == ["a\ufffd"]
    assert (investigation.spec.fingerprint, investigation.spec.labels) == ("\ufffd", {"\ufffd": "y"})


def a_kubeconfig(plane: Administrator, namespace: str, *, port: int, path: Path) -> Path:
    """The administrator's kubeconfig for another port of this machine."""
    config = json.loads(plane.kubeconfig(namespace=namespace).read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path.write_text(json.dumps(config))
    return path


async def test_unreachable_api_server_is_reported_down_and_used_again_when_back(
    plane: Administrator, namespace: str, tmp_path: Path
) -> None:
    async def read() -> object:
        return await objects.get_investigation(far, namespace=namespace, name="web-crash")

    async with patience.limit(), proxy.serve("127.0.0.1", int(plane.url.rpartition(":")[2])) as between:
        config = a_kubeconfig(plane, namespace, port=between.port, path=tmp_path / "config")
        far = await client.connect(config)
        assert await read() is None
        between.refuse()
        between.cut()
        for away in (read, lambda: objects.create_investigation(far, manifest(namespace))):
            with pytest.raises(client.ClusterDownError, match="cannot be reached"):
                await away()
        between.accept()
        assert await read() is None
        between.blackhole()
        with pytest.raises(client.ClusterDownError, match=r"cannot be reached: \w"):
            await read()
        between.heal()
        between.cut()
        assert await read() is None
        await far.close()


async def test_rights_that_are_missing_are_not_a_refusal_of_the_object(
    plane: Administrator, cluster: client.Cluster, namespace: str
) -> None:
    """They may come back, as after a rotated token or a repaired role; a refused object is given up."""
    made = await objects.create_investigation(cluster, manifest(namespace))
    token = plane.kubectl("create", "token", "default", namespace=namespace).strip()
    what = f'cannot create resource "{investigations.PLURAL}"'
    for user, user_token, answer in (("nobody", token, f"403: .*{what}"), ("unknown", "rotated", "401: Unauthorized")):
        unable = await client.connect(plane.kubeconfig(namespace=namespace, user=user, token=user_token))
        with pytest.raises(client.ClusterDownError, match=answer):
            await objects.create_investigation(unable, manifest(namespace))
        with pytest.raises(client.ClusterDownError, match=answer[:3]):
            await apply(unable, made.investigation.metadata.uid, a_status(1))
        await unable.close()


async def test_kubectl_get_describe_and_wait_work_on_investigations(
    plane: Administrator, cluster: client.Cluster
) -> None:
    def kubectl(*args: str) -> str:
        return plane.kubectl(*args, namespace=cluster.served.own)

    made = await objects.create_investigation(cluster, manifest(cluster.served.own))
    await apply(cluster, made.investigation.metadata.uid, a_status(1).model_copy(update={"headline": "OOM."}))
    header, row = (line.split() for line in kubectl("get", "inv").splitlines())
    assert header == ["NAME", "ALERT", "CHAIN", "PHASE", "GROUNDED", "PROGRESS", "SUMMARY", "AGE"]
    assert row[:-1] == ["web-crash", "kubernetes", "pod-crash", "Running", "1/2", "OOM."]  # GROUNDED is blank
    header, row = (line.split() for line in kubectl("get", "ainv", "-o", "wide").splitlines())
    assert {"ALERTNAME", "TARGET", "ALERTS", "STAGE", "REASON", "DURATION", "TOKENS"} <= set(header)
    assert {"kubernetes", "pod-crash", "Running", "1/2", "OOM.", "analysis", "1m32s", "1200"} <= set(row)
    assert "web-crash" in kubectl("get", "tarsy")
    output = kubectl("explain", "inv.spec")
    assert "alertType\t<string> -required-" in output
    assert "The alert, as opaque text for the agents." in output

    with pytest.raises(KubectlError, match="timed out"):
        kubectl("wait", "inv/web-crash", "--for=condition=Finished", "--timeout=0.1s")
    await apply(cluster, made.investigation.metadata.uid, a_status(2, finished=True))
    assert "condition met" in kubectl("wait", "inv/web-crash", "--for=condition=Finished", "--timeout=60s")
