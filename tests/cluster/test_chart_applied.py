"""Rendered objects of the chart on a real API server, in namespaces that enforce Pod Security `restricted`.

The API server only warns about deployments, so each pod that they would make is made as a pod, too.
"""

from __future__ import annotations

import pytest
from support import applied_charts, charts
from tarsy_dev.controlplane import Administrator, KubectlError


def test_installation_is_accepted_as_rendered_and_its_pods_are_restricted(
    plane: Administrator, restricted: str
) -> None:
    applied_charts.apply(plane, "everything", namespace=restricted)


def test_a_pod_that_may_more_is_refused(plane: Administrator, restricted: str) -> None:
    """That the namespaces of these tests do enforce it."""
    values = {"pods": {"securityContext": {"allowPrivilegeEscalation": True}}}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        plane.kubectl(
            "create",
            "--dry-run=server",
            "-f",
            "-",
            namespace=restricted,
            input=charts.text(applied_charts.pods(charts.render(values, namespace=restricted))),
        )
