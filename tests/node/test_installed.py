"""The product as users install it: its image, its chart by Helm, the commands of the docs, a real Alertmanager.

One release of each mode serves all tests of that mode, in the order in which they stand here; the last one ends it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.installation import NAMESPACE, OPERATOR, Installation
from tarsy_dev import controlplane

pytestmark = [pytest.mark.kind, pytest.mark.timeout(900)]

KINDS = ("agentchains.tarsy.dev", "alertinvestigations.tarsy.dev")
STORM = 20
"""Investigations that run while the release is changed."""


@pytest.fixture(scope="module", params=["single", "split"])
def installation(
    request: pytest.FixtureRequest,
    cluster_with_images: controlplane.Administrator,
    helm: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """A release in one of the modes, installed by the commands of the docs, with what is around it."""
    around = Installation(cluster_with_images, mode=request.param, folder=tmp_path_factory.mktemp(request.param))
    around.surround()
    around.install()
    around.give_token()
    around.add_chain()
    yield around
    around.shell(
        f"helm uninstall tarsy --namespace {NAMESPACE} --ignore-not-found --wait; "
        f"kubectl delete namespace {NAMESPACE} --ignore-not-found; kubectl delete inv,chain --all --all-namespaces"
    )


def test_commands_of_the_docs_end_in_the_analysis_of_a_first_investigation(installation: Installation) -> None:
    assert "TARSy 0.1.0 is installed as tarsy in namespace tarsy." in installation.said
    assert "kube-system" in installation.said
    assert installation.object_of("inv", "first")["status"]["phase"] == "Completed"
    label = installation.kubectl("get", "namespace", NAMESPACE, "-o", "jsonpath={.metadata.labels}")
    assert '"pod-security.kubernetes.io/enforce":"restricted"' in label
    restarts = [
        each["status"]["containerStatuses"][0]["restartCount"] for each in installation.objects("pods", OPERATOR)
    ]
    assert set(restarts) == {0}


def test_tests_of_the_release_pass(installation: Installation) -> None:
    assert "Phase:          Succeeded" in installation.helm("test", "tarsy")


def test_alert_of_a_real_alertmanager_is_investigated_with_evidence_of_real_pods(installation: Installation) -> None:
    installation.fire(alertname="KubePodCrashLooping", namespace="shop", pod="web-0", severity="critical")
    name = made_by_alert(installation, "KubePodCrashLooping")
    installation.kubectl("wait", f"inv/{name}", "--for=condition=Complete", "--timeout=180s", timeout=190)
    status: dict[str, Any] = installation.object_of("inv", name)["status"]
    assert "SQLSTATE 28P01" in status["finalAnalysis"], "what the crashed container wrote"


def test_evicted_pod_gives_its_investigations_to_the_next(installation: Installation) -> None:
    names = installation.investigate("evicted", count=3)
    (pod, *_) = [
        each["metadata"]["name"]
        for each in installation.objects("pods", OPERATOR)
        if each["metadata"]["labels"]["app.kubernetes.io/component"] in ("operator", "worker")
    ]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    installation.node.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)
    assert pod not in {each["metadata"]["name"] for each in installation.objects("pods", OPERATOR)}


def test_upgrade_and_rollback_in_the_middle_of_a_storm_lose_no_investigation(installation: Installation) -> None:
    names = installation.investigate("storm", count=STORM)
    values = f"--reuse-values --set postgres.trial=true --set logLevel=DEBUG --values {installation.values}"
    installation.helm("upgrade", "tarsy", "helm/tarsy", values)
    installation.rolled_out()
    installation.helm("rollback", "tarsy", "1")
    installation.rolled_out()
    assert not (incomplete := installation.incomplete(names)), installation.explain(incomplete)


def test_uninstallation_leaves_what_the_docs_say(installation: Installation) -> None:
    before = {each["metadata"]["name"] for each in installation.objects("inv,chain")}
    installation.helm("uninstall", "tarsy", "--wait")
    remaining = {
        f"{each['kind']}/{each['metadata']['name']}"
        for each in installation.objects("crd,inv,chain,pvc,secrets,deployments,statefulsets,configmaps,services")
    }
    assert {f"CustomResourceDefinition/{kind}" for kind in KINDS} <= remaining
    assert {each.partition("/")[2] for each in remaining if each.startswith(("AlertInv", "AgentChain"))} == before
    assert {"PersistentVolumeClaim/data-tarsy-postgres-0", "Secret/tarsy-postgres"} <= remaining
    assert not {each for each in remaining if each.startswith(("Deployment/", "StatefulSet/", "Service/"))}


def made_by_alert(installation: Installation, alert_type: str) -> str:
    """The name of the object that an alert made."""
    deadline = time.monotonic() + 60
    chosen = f"--field-selector=spec.alertType={alert_type}"
    while not (object_name := installation.kubectl("get", "inv", chosen, "-o", "name")):
        logs = installation.kubectl("logs", "deployment/alertmanager", namespace="alertmanager")
        assert time.monotonic() < deadline, logs
    return object_name.strip().rpartition("/")[2]
