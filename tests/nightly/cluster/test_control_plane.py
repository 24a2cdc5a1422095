from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from tarsy_dev import children
from tarsy_dev.controlplane import Administrator, ControlPlane, KubectlError


def run_pod(plane: Administrator, namespace: str, **annotations: str) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web",
            "annotations": {f"dev.tarsy.dev/{name}": text for name, text in annotations.items()},
        },
        "spec": {"containers": [{"name": "web", "image": "registry.example/web:1"}]},
    }
    plane.kubectl("create", "-f", "-", namespace=namespace, input=json.dumps(pod))


def wait_for(plane: Administrator, namespace: str, condition: str) -> None:
    plane.kubectl("wait", f"--for={condition}", "--timeout=60s", "pod/web", namespace=namespace)


def test_a_deployment_rolls_out_and_its_pods_log(plane: Administrator, namespace: str) -> None:
    plane.kubectl("create", "deployment", "web", "--image=registry.example/web:1", "--replicas=3", namespace=namespace)
    plane.kubectl("rollout", "status", "deployment/web", "--timeout=60s", namespace=namespace)
    assert "listening" in plane.kubectl("logs", "deployment/web", namespace=namespace)


def test_a_crash_looping_pod_restarts_again_and_again_and_its_log_says_why(
    plane: Administrator, namespace: str
) -> None:
    run_pod(plane, namespace, crash="true", log="starting\npanic: no such table: orders\n")
    wait_for(plane, namespace, "jsonpath={.status.containerStatuses[0].restartCount}=2")
    shown = plane.kubectl("get", "pod", "web", namespace=namespace)
    assert "CrashLoopBackOff" in shown
    assert "0/1" in shown
    backoff = "--field-selector=involvedObject.name=web,reason=BackOff"
    assert "Back-off restarting" in plane.kubectl("get", "events", backoff, namespace=namespace)
    assert plane.kubectl("logs", "web", "--tail=1", namespace=namespace) == "panic: no such table: orders\n"
    assert plane.kubectl("logs", "web", "--previous", namespace=namespace).startswith("starting\n")


def test_a_pod_without_an_image_says_so_instead_of_a_log(plane: Administrator, namespace: str) -> None:
    run_pod(plane, namespace, **{"image-error": "true"})
    wait_for(plane, namespace, "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ImagePullBackOff")
    with pytest.raises(KubectlError, match="trying and failing to pull image"):
        plane.kubectl("logs", "web", namespace=namespace)


def test_a_token_has_the_rights_of_its_service_account_only(plane: Administrator, namespace: str) -> None:
    token = plane.kubectl("create", "token", "default", namespace=namespace).strip()
    limited = plane.kubeconfig(namespace=namespace, user="limited", token=token)
    whoami = plane.kubectl("auth", "whoami", f"--kubeconfig={limited}")
    assert f"system:serviceaccount:{namespace}:default" in whoami
    with pytest.raises(KubectlError, match="forbidden"):
        plane.kubectl("get", "pods", f"--kubeconfig={limited}")


@pytest.mark.usefixtures("own_plane")
@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_a_killed_component_comes_back_on_its_port_with_its_data(
    plane: ControlPlane, namespace: str, component: str
) -> None:
    plane.kubectl("create", "configmap", "kept", namespace=namespace)
    plane.kill(component)
    with pytest.raises(KubectlError):
        plane.kubectl("get", "configmap", "kept", "--request-timeout=2s", namespace=namespace)
    plane.start_component(component)
    assert "kept" in plane.kubectl("get", "configmap", "kept", namespace=namespace)


def test_a_component_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path, programs: dict[str, Path]) -> None:
    (tmp_path / "etcd").write_text("a file where etcd wants its folder")
    with pytest.raises(children.ChildError, match=r"etcd ended with status \d+; the end of .*/etcd\.log:\n.*\S"):
        ControlPlane(folder=tmp_path).start()


def test_kinds_given_as_files_are_served_from_the_start(tmp_path: Path, programs: dict[str, Path]) -> None:
    with ControlPlane(folder=tmp_path / "plane", crds=[_widget(tmp_path)]) as plane:
        assert plane.kubectl("get", "widgets") == ""


def _widget(folder: Path) -> Path:
    path = folder / "widget.yaml"
    path.write_text(
        textwrap.dedent("""
            apiVersion: apiextensions.k8s.io/v1
            kind: CustomResourceDefinition
            metadata: {name: widgets.test.tarsy.dev}
            spec:
              group: test.tarsy.dev
              names: {kind: Widget, plural: widgets}
              scope: Namespaced
              versions:
              - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
        """)
    )
    return path
