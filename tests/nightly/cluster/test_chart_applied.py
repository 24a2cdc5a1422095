"""Rendered objects of the chart for any values, and the manifests, on a real API server."""

from __future__ import annotations

import json

import hypothesis
import yaml
from support import chart_values, charts
from support.charts import Object
from tarsy_dev import chart, tools
from tarsy_dev.controlplane import Administrator

PROMETHEUS_KINDS = ("PodMonitor", "PrometheusRule")

NAMES = "jsonpath={.items[*].metadata.name}"


@hypothesis.settings(
    max_examples=8,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(drawn=chart_values.values())
def test_chart_values_accepted_by_the_schema_are_accepted_by_a_cluster(
    plane: Administrator, namespace: str, drawn: Object
) -> None:
    try:
        objects = charts.render(drawn, namespace=namespace)
    except chart.RefusedError as error:
        if "values don't go together" not in str(error):
            raise
        hypothesis.reject()
    # Pods need what is there already, and the Prometheus operator's kinds are not installed here.
    asked = [
        manifest
        for manifest in objects
        if manifest["kind"] not in ("CustomResourceDefinition", "Pod", *PROMETHEUS_KINDS)
    ]
    missing = set(drawn.get("namespaces", ())) - set(plane.kubectl("get", "namespaces", "-o", NAMES).split())
    for name in sorted(missing):
        plane.create_namespace(name)
    output = plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=namespace, input=charts.text(asked))
    assert output.count(" created ") == len(asked)


def test_the_manifests_are_taken_by_kubectl_and_by_kustomize(plane: Administrator) -> None:
    """All but what stands in namespace tarsy, which a dry run does not make."""
    built = list(yaml.load_all(plane.kubectl("kustomize", str(chart.MANIFESTS)), Loader=yaml.CSafeLoader))
    written = list(yaml.load_all((chart.MANIFESTS / "install.yaml").read_text(), Loader=yaml.CSafeLoader))

    def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
        return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in objects}

    assert by_name(built) == by_name(written)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(chart.MANIFESTS / "install.yaml"))
    plane.kubectl("apply", "--server-side", "-f", str(tools.ROOT / "manifests/chains"), namespace="tarsy")
    listed = json.loads(plane.kubectl("get", "deployments,chains", "-o", "json", namespace="tarsy"))["items"]
    assert {manifest["metadata"]["name"] for manifest in listed} >= {"tarsy", "tarsy-mcp", "kubernetes-agent-chain"}
    plane.kubectl("delete", "namespace", "tarsy", "--wait=false")
