"""A namespace that enforces Pod Security `restricted`, and what the chart renders in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pytest
from support import charts
from support.charts import Object
from tarsy_dev.controlplane import Administrator


@pytest.fixture
def restricted(plane: Administrator) -> Iterator[str]:
    """A namespace whose pods must satisfy `restricted`."""
    name = f"test-{secrets.token_hex(4)}"
    # Labelled from the start: what admits pods learns of a later label some time after that was answered.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    plane.kubectl("create", "-f", "-", input=json.dumps(made))
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=240s", namespace=name)
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


def apply(plane: Administrator, name: str, *, namespace: str) -> None:
    """Render the chart with the values of that file, and have all objects and pods of it taken by the API server."""
    objects = charts.render(charts.values(name), namespace=namespace)
    apart = [manifest for manifest in objects if manifest["kind"] != "Pod"]
    output = plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", namespace=namespace, input=charts.text(apart)
    )
    assert output.count("serverside-applied") == len(apart)
    made = plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=namespace, input=charts.text(pods(objects)))
    assert made.count(" created ") == len(charts.pod_templates(objects))
