"""The image as a cluster runs it: uid 65532, a read-only root, nothing of this checkout in sight, no engine needed.

`support.image` does what the Dockerfile says; what runs here is what is found in its tree.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging import markers, requirements
from support import image as images
from support import manifests, operators
from tarsy_dev import mcp_server, model, tools
from tarsy_dev.controlplane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first time the locked packages are installed

MOUNTS = {
    "/etc/tarsy/tarsy.yaml": tools.ROOT / "config" / "tarsy.yaml",
    "/etc/tarsy/chains": tools.ROOT / "manifests" / "chains",
}
_SELF = """
import errno, json, os, pathlib, sys
told = {}
for place in sys.argv[1:]:
    try:
        (pathlib.Path(place) / "written").write_text("")
        told[place] = "written"
    except OSError as error:
        told[place] = errno.errorcode[error.errno]
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
kept = ("Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "CapBnd")
print(json.dumps({"writes": told, "status": {name: status[name].split() for name in kept}, "path": sys.path}))
"""
_IMPORTED = """
import pathlib, sys
import tarsy.cli.operator, tarsy.cli.migrate, tarsy.llm.gemini, langchain_anthropic, langchain_openai, langchain_xai
specs = [module.__spec__ for module in list(sys.modules.values()) if getattr(module, "__spec__", None)]
compiled = [spec.cached for spec in specs if spec.cached]
print(len(compiled), *[path for path in compiled if not pathlib.Path(path).exists()])
"""
_PACKAGES = """
import importlib.metadata as m, json
print(json.dumps({d.name: [d.version, sorted(map(str, d.files)) if d.name == "tarsy" else []] for d in m.distributions()}))
"""


def python(source: str, *arguments: str) -> images.Container:
    return images.Container(program=["python3", "-c", source, *arguments])


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_container_may_write_nowhere_and_is_nobody(image: images.Image) -> None:
    """Else the others here would show nothing."""
    places = ["/", "/opt/tarsy", "/opt/pycache", "/tmp", "/usr/local", "/etc", "/var", "/root"]  # noqa: S108
    told = json.loads(printed(image.run(python(_SELF, *places))))
    assert told["writes"] == dict.fromkeys(places, "EROFS")
    assert told["status"] == {
        "Uid": ["65532"] * 4,
        "Gid": ["65532"] * 4,
        "Groups": [],
        "NoNewPrivs": ["1"],
        "CapEff": ["0" * 16],
        "CapBnd": ["0" * 16],
    }
    assert all(path.startswith(("/usr/local/lib/python3", "/opt/tarsy/lib")) for path in told["path"] if path)
    gone = image.run(images.Container(program=["ls", str(tools.ROOT)]))
    assert "No such file" in gone.stderr


def test_the_image_has_the_locked_packages_and_the_wheel_and_no_others(image: images.Image) -> None:
    found = json.loads(printed(image.run(python(_PACKAGES))))
    lock = [
        requirements.Requirement(line.rstrip(" \\"))
        for line in (tools.ROOT / "requirements" / "runtime.txt").read_text().splitlines()
        if not line.startswith(" ")
    ]
    wanted = {one.name: str(one.specifier) for one in lock if _applies(one.marker)}
    version, files = found.pop("tarsy")
    assert {re.sub("[-_.]+", "-", name).lower(): f"=={each}" for name, (each, _) in found.items()} == wanted
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "tarsy"], cwd=tools.ROOT / "operator",
                            capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    assert {name for name in files if name.startswith("tarsy/")} == set(listed)
    beside = {name.replace(version, "") for name in files if not name.startswith("tarsy/")}
    info = ("INSTALLER", "METADATA", "RECORD", "REQUESTED", "WHEEL", "entry_points.txt")
    assert beside == {"../../../bin/tarsy", *(f"tarsy-.dist-info/{name}" for name in info)}


def _applies(marker: markers.Marker | None) -> bool:
    return marker is None or marker.evaluate()


def test_all_that_an_operator_imports_was_compiled_when_the_image_was_built(image: images.Image) -> None:
    count, *missing = printed(image.run(python(_IMPORTED))).split()
    assert missing == []
    assert int(count) > 2000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--version"], f"tarsy, version {importlib.metadata.version('tarsy')}\n"),
        (["--help"], "Run an operator process."),
        (["config", "check", "/etc/tarsy/tarsy.yaml"], "/etc/tarsy/tarsy.yaml: "),
        (["chain", "lint", "/etc/tarsy/chains/kubernetes-agent-chain.yaml"], "kubernetes-agent-chain.yaml: "),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_the_entrypoint_is_the_command_line(image: images.Image, arguments: list[str], says: str) -> None:
    done = image.run(images.Container(arguments=arguments, mounts=MOUNTS))
    assert says in printed(done)
    assert done.stderr == ""


def test_the_mcp_server_is_in_the_image(image: images.Image) -> None:
    done = image.run(images.Container(program=["kubernetes-mcp-server", "--version"]))
    locked = json.loads((tools.NODE / "package.json").read_text())["dependencies"]["kubernetes-mcp-server"]
    assert locked in printed(done) + done.stderr


POD: dict[str, Any] = {
    "containers": [
        {
            "name": "tarsy",
            "args": ["operator", "--listen=127.0.0.1:0", "--config=/etc/tarsy/platform/tarsy.yaml"],
            "env": [
                {"name": "DATABASE_URL_FILE", "value": "/etc/tarsy/database/uri"},
                {"name": "TARSY_WEBHOOK_TOKEN_FILE", "value": "/etc/tarsy/webhook/token"},
            ],
            "volumeMounts": [
                {"name": name, "mountPath": f"/etc/tarsy/{name}"} for name in ("platform", "database", "webhook", "keys")
            ],
        }
    ]
}


def investigate(turn: model.Turn) -> model.Answer:
    """One look with each server, then a conclusion."""
    if turn.iteration == 0:
        calls = [
            model.Call(name="tools__lookup", args={"name": "web-0"}),
            model.Call(name="kubernetes-server__pods_list_in_namespace", args={"namespace": "default"}),
        ]
        return model.Answer(calls=model.keyed(turn, calls))
    results = [result for message in turn.messages for result in message.results]
    assert len(results) == 2
    return model.Answer(text="Failed: " + ", ".join(result.name for result in results if result.failed))


@pytest.fixture
def volumes(
    plane: ControlPlane,
    namespace: str,
    database_url: str,
    llm: model.Server,
    toolbox: mcp_server.Server,
    tmp_path: Path,
) -> dict[str, Path]:
    """What the pod's volumes hold, and its account's token: that of an account that may do everything."""
    plane.kubectl("create", "serviceaccount", "tarsy", namespace=namespace)
    account = f"--serviceaccount={namespace}:tarsy"
    plane.kubectl("create", "rolebinding", "tarsy", "--clusterrole=cluster-admin", account, namespace=namespace)
    plane.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", account)
    provider = {"type": "google", "model": "gemini-2.5-flash", "base_url": llm.url, "api_key_file": "/etc/tarsy/keys/key"}
    kubernetes = {"type": "stdio", "command": "kubernetes-mcp-server", "args": ["--read-only", "--toolsets", "core"]}
    platform = {
        "defaults": {"llm_provider": "scripted"},
        "llm_providers": {"scripted": provider},
        "mcp_servers": {
            "tools": {"transport": {"type": "http", "url": toolbox.url}},
            "kubernetes-server": {"transport": kubernetes},
        },
        "agents": {"KubernetesAgent": {"mcp_servers": ["tools", "kubernetes-server"]}},
    }
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json"))
    held = {
        "platform/tarsy.yaml": json.dumps(platform),
        "database/uri": database_url,
        "webhook/token": operators.TOKEN,
        "keys/key": "any",
        "account/token": plane.kubectl("create", "token", "tarsy", namespace=namespace).strip(),
        "account/namespace": namespace,
        "account/ca.crt": images.certificate(config),
    }
    for name, text in held.items():
        path = tmp_path / "volumes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {path.name: path for path in (tmp_path / "volumes").iterdir()}


async def test_an_operator_in_the_image_migrates_and_investigates_and_writes_nothing(
    image: images.Image, plane: ControlPlane, namespace: str, editor: str, volumes: dict[str, Path], llm: model.Server
) -> None:
    llm.script = investigate
    host, _, port = plane.url.removeprefix("https://").partition(":")
    pod = images.container(POD, volumes=volumes, account=volumes["account"])
    cluster = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    printed(image.run(pod.changed(arguments=["migrate"])))
    plane.kubectl("apply", "-f", "-", namespace=namespace, input=json.dumps(manifests.chain()))

    log = volumes["account"].parent.parent / "operator.log"
    child = image.start(pod.changed(env=cluster), log=log, name="the image")
    marker = log.with_name("started")
    marker.touch()
    with images.ended(child):
        process = operators.Process(child, editor=editor)
        await process.serve()
        plane.kubectl("apply", "-f", "-", namespace=namespace, input=json.dumps(manifests.investigation()))
        plane.kubectl("wait", "inv/web-crash", "--for=condition=Finished", "--timeout=30s", namespace=namespace)
        status = json.loads(plane.kubectl("get", "inv", "web-crash", "-o", "json", namespace=namespace))["status"]
        assert (status["phase"], status["finalAnalysis"]) == ("Completed", "Failed: ")
        assert (await process.request("GET", "/readyz"))[0] == 200

        assert list(Path(f"/proc/{process.pid}/root/dev/shm").iterdir()) == []
        assert opened(process.pid) == set()
        await process.stop()
    changed = subprocess.run(["find", image.tree, "-newer", marker], capture_output=True, text=True, check=True).stdout
    assert changed == ""


def opened(pid: int) -> set[str]:
    """The files that it, or one of its children, has open for writing; the log, which was open before, is none."""
    found = set()
    for one in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        for descriptor in Path(f"/proc/{one}/fd").iterdir():
            flags = re.search(r"^flags:\s+(\d+)", Path(f"/proc/{one}/fdinfo/{descriptor.name}").read_text(), re.MULTILINE)
            assert flags is not None
            target = str(descriptor.readlink())
            if int(descriptor.name) > 2 and int(flags[1], 8) & 3 and target.startswith("/") and target[:5] != "/dev/":
                found.add(target)
    return found
