"""The image as a cluster runs it: uid 65532, a read-only root, nothing of this checkout in sight, no engine needed.

`support.image` does what the Dockerfile says; what runs here is what is found in its tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging import markers, requirements
from support import charts, manifests, operators
from support import image as images
from tarsy_dev import children, model, tools
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.timeout(1800)  # the first time the locked packages are installed

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
import importlib.metadata, json
found = {one.name: one for one in importlib.metadata.distributions()}
files = sorted(map(str, found["tarsy"].files))
print(json.dumps({name: [one.version, files if name == "tarsy" else []] for name, one in found.items()}))
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
    programs = ("tarsy", "kubectl-tarsy", "kubectl_complete-tarsy")
    assert beside == {*(f"../../../bin/{name}" for name in programs), *(f"tarsy-.dist-info/{name}" for name in info)}


def test_bill_of_materials_lists_the_locked_packages_and_the_mcp_server(image: images.Image) -> None:
    bill = json.loads(printed(image.run(images.Container(program=["cat", "/opt/tarsy/sbom.cdx.json"]))))
    listed = {component["name"]: component["version"] for component in bill["components"]}
    packages = json.loads(printed(image.run(python(_PACKAGES))))
    product = bill["metadata"]["component"]
    assert (product["name"], product["version"]) == ("tarsy", packages.pop("tarsy")[0])
    lock = json.loads((tools.ROOT / "dev" / "node" / "package-lock.json").read_text())["packages"]
    server = {"kubernetes-mcp-server": lock["node_modules/kubernetes-mcp-server"]["version"]}
    names = {re.sub("[-_.]+", "-", name).lower(): version for name, (version, _) in packages.items()}
    assert listed == names | server


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
        (["chain", "lint", "/etc/tarsy/chains/kubernetes-agent-chain.yaml"], "1 document in 1 file: "),
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


SECRETS = {"webhook": {"token": operators.TOKEN}, "keys": {"key": "any"}}
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_USER = 65532


def investigate(turn: model.Turn) -> model.Answer:
    """One look, then a conclusion: what was seen."""
    if turn.iteration == 0:
        call = model.Call(name="kubernetes-server__pods_list_in_namespace", args={"namespace": "default"})
        return model.Answer(calls=model.keyed(turn, [call]))
    (result,) = (result for message in turn.messages for result in message.results)
    return model.Answer(text="It failed." if result.failed else "It was seen.")


class Installation:
    """What the chart renders, its accounts and roles in a namespace, and its pods' volumes in a folder."""

    def __init__(self, plane: Administrator, namespace: str, *, folder: Path, values: charts.Object) -> None:
        self._plane = plane
        self._namespace = namespace
        self._folder = folder
        self._objects = charts.render(values, namespace=namespace)
        self._rights = charts.text([one for one in self._objects if one["kind"] in _RIGHTS])
        plane.kubectl("apply", "-f", "-", namespace=namespace, input=self._rights)

    def remove(self) -> None:
        """Take away what would outlive the namespace."""
        self._plane.kubectl("delete", "--wait=false", "-f", "-", namespace=self._namespace, input=self._rights)

    def container(self, template: str, *, secrets: Mapping[str, Mapping[str, str]]) -> images.Container:
        """The container of one of its pods, where it finds this cluster and what these Secrets hold."""
        pod = charts.pod_templates(self._objects)[template]["spec"]
        volumes = {one["name"]: self._volume(template, one, secrets) for one in pod["volumes"]}
        account = self._written(template, "account", self._account(pod["serviceAccountName"]))
        host, _, port = self._plane.url.removeprefix("https://").partition(":")
        cluster = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        return images.container(pod, volumes=volumes, account=account).changed(env=cluster)

    def _volume(self, template: str, volume: charts.Object, secrets: Mapping[str, Mapping[str, str]]) -> Path:
        held: Mapping[str, str] = secrets.get(volume["name"], {})
        if "configMap" in volume:
            held = charts.one(self._objects, "ConfigMap", volume["configMap"]["name"])["data"]
        folder = self._written(template, volume["name"], held)
        if "emptyDir" in volume:
            os.chown(folder, _USER, _USER)
        return folder

    def _account(self, name: str) -> dict[str, str]:
        config = json.loads(self._plane.kubectl("config", "view", "--raw", "-o", "json"))
        token = self._plane.kubectl("create", "token", name, namespace=self._namespace).strip()
        own = self._plane.kubeconfig(namespace=self._namespace, user=name, token=token).read_text()
        return {"token": token, "namespace": self._namespace, "ca.crt": images.certificate(config), "config": own}

    def _written(self, template: str, name: str, held: Mapping[str, str]) -> Path:
        folder = self._folder / template.replace("/", "-") / name
        folder.mkdir(parents=True)
        for file, text in held.items():
            (folder / file).write_text(text)
        return folder


@pytest.fixture
def port() -> int:
    """Where kubernetes-mcp-server listens."""
    (found,) = children.free_ports(1)
    return found


@pytest.fixture
def installation(
    plane: Administrator, namespace: str, llm: model.Server, port: int, tmp_path: Path
) -> Iterator[Installation]:
    provider = {
        "type": "google",
        "model": "gemini-2.5-flash",
        "base_url": llm.url,
        "api_key_file": "/etc/tarsy/keys/key",
    }
    platform = {
        "llm_providers": {"google-default": provider},
        "mcp_servers": {"kubernetes-server": {"transport": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}},
    }
    values = {"platform": platform, "logFormat": "text"}
    made = Installation(plane, namespace, folder=tmp_path / "volumes", values=values)
    yield made
    made.remove()


def here(container: images.Container, port: int) -> images.Container:
    """The same, reached on 127.0.0.1 only; the MCP server looks for its cluster by a name that only a cluster knows."""
    moved = {
        "--listen=0.0.0.0:8080": f"--listen=127.0.0.1:{port}",
        "--metrics-listen=0.0.0.0:9464": "--metrics-listen=127.0.0.1:0",
        "--bind-address=0.0.0.0": "--bind-address=127.0.0.1",
    }
    moved |= {"--port=8080": f"--port={port}", "--cluster-provider=in-cluster": f"--kubeconfig={images.ACCOUNT}/config"}
    return container.changed(arguments=[moved.get(one, one) for one in container.arguments])


async def test_the_charts_pods_migrate_and_investigate_in_the_image_and_write_nothing(
    image: images.Image,
    plane: Administrator,
    namespace: str,
    editor: str,
    database_url: str,
    installation: Installation,
    llm: model.Server,
    port: int,
    tmp_path: Path,
) -> None:
    llm.script = investigate
    secrets = {**SECRETS, "database": {"uri": database_url}}
    printed(image.run(installation.container("Job/tarsy-migrate-0-1-0", secrets=secrets)))
    plane.kubectl("apply", "-f", "-", namespace=namespace, input=json.dumps(manifests.chain()))

    pods = [
        here(installation.container(name, secrets=secrets), number)
        for name, number in (("Deployment/tarsy-mcp", port), ("Deployment/tarsy", 0))
    ]
    marker = tmp_path / "started"
    with (
        images.ended(image.start(pods[0], log=tmp_path / "mcp.log", name="the MCP server")) as server,
        images.ended(image.start(pods[1], log=tmp_path / "operator.log", name="the operator")) as child,
    ):
        marker.touch()
        process = operators.Process(child, editor=editor)
        await process.serve(waits=False)
        plane.kubectl("apply", "-f", "-", namespace=namespace, input=json.dumps(manifests.investigation()))
        wait = ("wait", "inv/web-crash", "--for=condition=Finished", "--timeout=60s")
        await asyncio.to_thread(plane.kubectl, *wait, namespace=namespace)  # the model answers on this loop
        status = json.loads(plane.kubectl("get", "inv", "web-crash", "-o", "json", namespace=namespace))["status"]
        assert (status["phase"], status["finalAnalysis"]) == ("Completed", "It was seen.")
        assert (await process.request("GET", "/readyz"))[0] == 200

        assert [written(pid) for pid in (process.pid, server.pid)] == [set(), set()]
        await process.stop()
    assert newer(image.tree, marker) == ""


def newer(tree: Path, marker: Path) -> str:
    return subprocess.run(["find", tree, "-newer", marker], capture_output=True, text=True, check=True).stdout


def written(pid: int) -> set[str]:
    """What lies where a container may write, and what it has open for writing."""
    places = [Path(f"/proc/{pid}/root{place}") for place in ("/dev/shm", "/tmp")]  # noqa: S108
    return {str(path) for place in places for path in place.iterdir()} | opened(pid)


def opened(pid: int) -> set[str]:
    """The files that it, or one of its children, has open for writing; the log, which was open before, is none."""
    found = set()
    for one in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        for descriptor in Path(f"/proc/{one}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                target = str(descriptor.readlink())
                told = Path(f"/proc/{one}/fdinfo/{descriptor.name}").read_text().split()
                writes = int(told[told.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY
                if int(descriptor.name) > 2 and writes and target.startswith("/") and not target.startswith("/dev/"):
                    found.add(target)
    return found
