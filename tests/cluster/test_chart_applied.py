"""What the chart renders, on a real API server, in namespaces that enforce Pod Security `restricted`.

Deployments are only warned about, so each pod that they would make is made as a pod, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import yaml
from support import chart_values, charts
from support.charts import Object
from tarsy_dev import chart, tools
from tarsy_dev.controlplane import ControlPlane, KubectlError


@pytest.fixture
def restricted(plane: ControlPlane) -> Iterator[str]:
    """A namespace whose pods must satisfy `restricted`."""
    name = f"test-{secrets.token_hex(4)}"
    # Labelled from the start: what admits pods learns of a later label some time after that was answered.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    plane.kubectl("create", "-f", "-", input=json.dumps(made))
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s", namespace=name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


def pods(objects: list[Object]) -> list[Object]:
    """The pods that these objects would make, as pods, without what would have a controller make more."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name.lower().replace("/", "-"),
                "annotations": template["metadata"].get("annotations", {}),
            },
            "spec": template["spec"],
        }
        for name, template in charts.pod_templates(objects).items()
    ]


@pytest.mark.parametrize(
    "file",
    # Seconds each: the one that has everything stands for the rest, but in `make test-slow`.
    [pytest.param(path, marks=[] if path.stem == "everything" else [pytest.mark.slow]) for path in charts.FILES],
    ids=lambda path: path.stem,
)
def test_what_an_installation_renders_is_taken_and_its_pods_are_restricted(
    file: Path, plane: ControlPlane, restricted: str
) -> None:
    objects = charts.render(charts.values(file.stem), namespace=restricted)
    apart = [one for one in objects if one["kind"] != "Pod"]
    told = plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", namespace=restricted, input=charts.text(apart)
    )
    assert told.count("serverside-applied") == len(apart)
    made = plane.kubectl(
        "create", "--dry-run=server", "-f", "-", namespace=restricted, input=charts.text(pods(objects))
    )
    assert made.count(" created ") == len(charts.pod_templates(objects))


PROMETHEUS_KINDS = ("PodMonitor", "PrometheusRule")
NAMES = "jsonpath={.items[*].metadata.name}"


@pytest.mark.slow
@hypothesis.settings(
    max_examples=8,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(drawn=chart_values.values())
def test_whatever_the_schema_takes_a_cluster_takes(plane: ControlPlane, namespace: str, drawn: Object) -> None:
    try:
        objects = charts.render(drawn, namespace=namespace)
    except chart.RefusedError as error:
        if "values don't go together" not in str(error):
            raise
        hypothesis.reject()
    # Pods need what is there already, and the Prometheus operator's kinds are not installed here.
    asked = [one for one in objects if one["kind"] not in ("CustomResourceDefinition", "Pod", *PROMETHEUS_KINDS)]
    missing = set(drawn.get("namespaces", ())) - set(plane.kubectl("get", "namespaces", "-o", NAMES).split())
    for name in sorted(missing):
        plane.create_namespace(name)
    told = plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=namespace, input=charts.text(asked))
    assert told.count(" created ") == len(asked)


def test_a_pod_that_may_more_is_refused(plane: ControlPlane, restricted: str) -> None:
    """That the namespaces of these tests do enforce it."""
    values = {"pods": {"securityContext": {"allowPrivilegeEscalation": True}}}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        plane.kubectl(
            "create",
            "--dry-run=server",
            "-f",
            "-",
            namespace=restricted,
            input=charts.text(pods(charts.render(values, namespace=restricted))),
        )


@pytest.mark.slow
def test_the_manifests_are_taken_by_kubectl_and_by_kustomize(plane: ControlPlane) -> None:
    """All but what stands in namespace tarsy, which a dry run does not make."""
    built = list(yaml.load_all(plane.kubectl("kustomize", str(chart.MANIFESTS)), Loader=yaml.CSafeLoader))
    written = list(yaml.load_all((chart.MANIFESTS / "install.yaml").read_text(), Loader=yaml.CSafeLoader))

    def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
        return {(one["kind"], one["metadata"]["name"]): one for one in objects}

    assert by_name(built) == by_name(written)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(chart.MANIFESTS / "install.yaml"))
    plane.kubectl("apply", "--server-side", "-f", str(tools.ROOT / "manifests/chains"), namespace="tarsy")
    found = json.loads(plane.kubectl("get", "deployments,chains", "-o", "json", namespace="tarsy"))["items"]
    assert {one["metadata"]["name"] for one in found} >= {"tarsy", "tarsy-mcp", "kubernetes-agent-chain"}
    plane.kubectl("delete", "namespace", "tarsy", "--wait=false")
