"""The image that the Dockerfile makes, as a registry has it and as a container sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from packaging import requirements
from support.archives import Image
from tarsy_dev import tools
from tarsy_dev.node import builds, machine

LOCK = (tools.ROOT / "requirements" / "runtime.txt").read_text()
_LOOK = """
import importlib.metadata, json, os, pathlib, shutil, subprocess
print("user", os.getuid(), os.getgid())
for program in ("cc", "gcc", "make", "pip", "npm", "node", "curl"):
    print(program, shutil.which(program))
for place in ("/", "/opt/tarsy", "/usr/local"):
    try:
        pathlib.Path(place, "written").touch()
        print("wrote to", place)
    except OSError:
        pass
for folder in ("/root/.cache", "/var/lib/apt/lists", "/var/cache/apt/archives"):
    path = pathlib.Path(folder)
    print(folder, len(list(path.rglob("*.*"))) if os.access(path, os.R_OK) else 0)
print(json.dumps({one.name: one.version for one in importlib.metadata.distributions()}))
bill = json.loads(pathlib.Path("/opt/tarsy/sbom.cdx.json").read_text())
print(json.dumps({one["name"]: one["version"] for one in bill["components"]}))
for command in (["tarsy", "--version"], ["kubernetes-mcp-server", "--version"]):
    print(command[0], subprocess.run(command, capture_output=True).returncode)
"""


def test_a_registry_has_less_than_300_mb_with_labels_and_a_user_that_is_a_number(images: Mapping[str, Image]) -> None:
    image = images[builds.TARSY]
    assert image.size < 300_000_000
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == ["tarsy"]
    assert image.config["Labels"]["org.opencontainers.image.title"] == "TARSy"
    assert image.config["Labels"]["org.opencontainers.image.version"] == "0.1.0"


def test_a_container_has_the_locked_packages_no_compiler_no_cache_and_nothing_that_it_may_write(
    node: machine.Machine, images: Mapping[str, Image], namespaces: Callable[[str], str]
) -> None:
    namespace = namespaces("image")
    node.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    confined = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,  # the tree itself is to be closed to its user
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,  # as the chart has it: of the image's user alone, Kubernetes takes no group
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "look",
        "image": builds.TARSY,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _LOOK],
        "securityContext": confined,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "look", "namespace": namespace},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    node.kubectl("create", "-f", "-", input=json.dumps(pod))
    node.kubectl("wait", "pod/look", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s", namespace=namespace)
    seen = node.kubectl("logs", "look", namespace=namespace).splitlines()
    *seen, packages, listed, tarsy, server = seen
    assert seen == [
        "user 65532 65532",
        *(f"{program} None" for program in ("cc", "gcc", "make", "pip", "npm", "node", "curl")),
        *(f"{folder} 0" for folder in ("/root/.cache", "/var/lib/apt/lists", "/var/cache/apt/archives")),
    ]
    assert [tarsy, server] == ["tarsy 0", "kubernetes-mcp-server 0"]
    installed = {re.sub("[-_.]+", "-", name).lower(): version for name, version in json.loads(packages).items()}
    assert installed.pop("tarsy") == "0.1.0"
    lock = (requirements.Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if not line.startswith(" "))
    locked = {
        requirement.name: str(requirement.specifier)
        for requirement in lock
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"})
    }
    assert {name: f"=={version}" for name, version in installed.items()} == locked
    npm = json.loads((tools.NODE / "package-lock.json").read_text())["packages"]
    version = npm["node_modules/kubernetes-mcp-server"]["version"]
    assert json.loads(listed) == installed | {"kubernetes-mcp-server": version}, "the bill of materials"
