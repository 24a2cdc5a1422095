"""What `make test-kind` needs an engine for is not seen here; what it applies is, and what it says without one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support import charts
from tarsy_dev import tools
from tarsy_dev.controlplane import Administrator

KIND = tools.ROOT / "dev" / "kind"


@pytest.mark.parametrize("client", [None, "exit 1"], ids=["no docker", "no engine"])
def test_without_an_engine_it_says_that_it_did_not_run_and_ends_well(tmp_path: Path, client: str | None) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    if client is not None:
        (tmp_path / "docker").write_text(f"#!/bin/bash\n{client}\n")
        (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        ["bash", KIND / "test.sh"], env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("test-kind DID NOT RUN: ")


def test_what_it_applies_is_taken_and_its_pods_are_restricted(plane: Administrator) -> None:
    objects = list(yaml.safe_load_all((KIND / "world.yaml").read_text()))
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"]
    plane.kubectl("apply", "-f", str(KIND / "world.yaml"))
    for name, template in charts.pod_templates(objects).items():
        (space,) = (
            one["metadata"]["namespace"] for one in objects if f"{one['kind']}/{one['metadata']['name']}" == name
        )
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "as-a-pod"}, "spec": template["spec"]}
        made = plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=space, input=charts.text([pod]))
        assert "created" in made
    plane.kubectl("delete", "namespace", *names, "--wait=false")


def test_its_values_are_the_charts_and_lead_to_what_stands_beside_it() -> None:
    values = yaml.safe_load((KIND / "values.yaml").read_text())
    rendered = charts.render(values)
    images = {
        container["image"]
        for template in charts.pod_templates(rendered).values()
        for container in template["spec"]["containers"]
    }
    assert images == {"tarsy:kind", "postgres:18"}
    world = list(yaml.safe_load_all((KIND / "world.yaml").read_text()))
    model = charts.one(world, "Service", "model")
    url = values["platform"]["llm_providers"]["google-default"]["base_url"]
    assert url == f"http://model.{model['metadata']['namespace']}.svc:{model['spec']['ports'][0]['port']}"
    service = charts.one(rendered, "Service", "tarsy")["spec"]["ports"][0]["port"]
    sends = charts.one(world, "ConfigMap", "alertmanager")["data"]["alertmanager.yml"]
    assert f"http://tarsy.tarsy.svc:{service}/api/v1/webhooks/alertmanager" in sends
