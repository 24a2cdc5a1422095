"""TARSy installed on a cluster as a user does it: by the commands of `docs/install.md`, in a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tarsy_dev import assets, controlplane, tools

NAMESPACE = "tarsy"
OPERATOR = "app.kubernetes.io/component in (operator, api, controller, worker)"
"""A selector of all pods that run `tarsy operator`."""
_PAGE = tools.ROOT / "docs" / "install.md"
_WORLD = tools.ROOT / "dev" / "kind" / "world.yaml"
_VALUES = tools.ROOT / "dev" / "kind" / "values.yaml"
_ENGINE = ("docker build", "kind load")
"""How a user's image gets to the nodes; here it is there already."""


class Installation:
    """The release `tarsy` in the namespace `tarsy`, in one of the chart's modes."""

    def __init__(self, node: controlplane.Administrator, *, mode: str, folder: Path) -> None:
        self.node = node
        self.said = ""
        self._mode = mode
        self.values = folder / "values.json"
        self.values.write_text(json.dumps(_values(mode)))
        programs = folder / "bin"
        programs.mkdir()
        for name in ("kubectl", assets.HELM):
            (programs / name).symlink_to(assets.program(name))
        places = {f"HELM_{name.upper()}_HOME": str(folder / name) for name in ("cache", "config", "data")}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        kubeconfig = str(node.kubeconfig(namespace=NAMESPACE))
        self._env = {**os.environ, **places, "PATH": path, "KUBECONFIG": kubeconfig}

    def install(self) -> None:
        """Run the commands of the page's first section, one after the other; `said` is all that they print."""
        commands = first_commands(_PAGE.read_text())
        lines = [line for line in commands.splitlines() if not line.startswith(_ENGINE)]
        script = "\n".join(lines)
        assert script.count("helm install") == script.count("deployment/tarsy\n") == 1
        if self._mode == "split":
            # The page is about one Deployment; there are three, and the worker's is the last that is ready.
            script = script.replace("deployment/tarsy\n", "deployment/tarsy-worker\n")
        self.said = self.shell(script.replace("helm install", f"helm install --values {self.values}"), timeout=600)

    def rolled_out(self) -> None:
        """Wait until the pods are those of the newest revision, and ready."""
        self.shell(
            f"kubectl get deployments --namespace {NAMESPACE} --output name "
            f"| xargs -n 1 kubectl rollout status --namespace {NAMESPACE} --timeout 180s",
            timeout=400,
        )

    def shell(self, script: str, *, timeout: float = 120) -> str:
        """Run a script as its author would, with kubectl and helm; it ends with the first command that fails."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=tools.ROOT, env=self._env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def helm(self, *arguments: str, timeout: float = 300) -> str:
        """Run helm on the release."""
        return self.shell(f"helm --namespace {NAMESPACE} {' '.join(arguments)}", timeout=timeout)

    def kubectl(self, *arguments: str, namespace: str = NAMESPACE, timeout: float = 120) -> str:
        """Run kubectl in the release's namespace, or another."""
        return self.node.kubectl(*arguments, namespace=namespace, timeout=timeout)

    def objects(self, kinds: str, selector: str = "", *, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        """Return objects of these kinds."""
        chosen = [f"--selector={selector}"] if selector else []
        items: list[dict[str, Any]] = json.loads(
            self.kubectl("get", kinds, "-o", "json", *chosen, namespace=namespace)
        )["items"]
        return items

    def surround(self) -> None:
        """Have the scripted model, a workload that crashes and an Alertmanager, each in a namespace of its own."""
        self.node.kubectl("apply", "--server-side", "-f", str(_WORLD))
        self.node.kubectl("wait", "deployment/model", "--for=condition=Available", "--timeout=120s", namespace="model")

    def give_token(self) -> None:
        """Give Alertmanager the webhook's token, and wait until it is ready."""
        secret = self.object_of("secret", "tarsy-webhook")
        copied = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tarsy-webhook", "namespace": "alertmanager"},
            "data": secret["data"],
        }
        self.node.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(copied))
        namespace = "alertmanager"
        self.node.kubectl("rollout", "restart", "deployment/alertmanager", namespace=namespace)
        self.node.kubectl(
            "rollout", "status", "deployment/alertmanager", "--timeout=120s", namespace=namespace, timeout=130
        )

    def add_chain(self) -> None:
        """Have the demo's chain, which is for the alerts of `investigate` and of the workload that crashes."""
        self.kubectl("apply", "-f", str(tools.ROOT / "dev" / "demo" / "chain.yaml"))
        self.kubectl("wait", "chain/demo", "--for=condition=Ready", "--timeout=60s")

    def investigate(self, name: str, *, count: int) -> list[str]:
        """Create investigations, each of an alert of its own, and return their names once the first one has begun."""
        names = [f"{name}-{number}" for number in range(count)]
        items = [
            {
                "apiVersion": "tarsy.dev/v1alpha1",
                "kind": "AlertInvestigation",
                "metadata": {"name": each, "namespace": NAMESPACE},
                "spec": {
                    "alertType": "KubePodCrashLooping",
                    "alertData": f"{each}: pod web-0 in namespace shop restarts",
                },
            }
            for each in names
        ]
        made = {"apiVersion": "v1", "kind": "List", "items": items}
        self.node.kubectl("create", "-f", "-", input=json.dumps(made))
        deadline = time.monotonic() + 60
        while self.object_of("inv", names[0]).get("status", {}).get("phase") in (None, "Queued"):
            assert time.monotonic() < deadline, self.object_of("inv", names[0])
        return names

    def incomplete(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Wait until investigations are finished; return the statuses of those that are not Completed, by name."""
        objects = [f"inv/{name}" for name in names]
        self.kubectl("wait", *objects, "--for=condition=Finished", "--timeout=300s", timeout=310)
        statuses = {name: self.object_of("inv", name)["status"] for name in names}
        return {name: status for name, status in statuses.items() if status["phase"] != "Completed"}

    def explain(self, statuses: Mapping[str, dict[str, Any]]) -> str:
        """Return statuses of investigations with their entries, each in its first characters."""
        identities = [status["transcript"].rpartition("/")[2] for status in statuses.values()]
        code = """
            import asyncio, asyncpg, pathlib
            QUERY = (
                "SELECT at, kind, stage, execution, left(body::text, 400) FROM entries "
                "WHERE investigation = ANY($1::uuid[]) ORDER BY investigation, seq"
            )
            async def main():
                connection = await asyncpg.connect(pathlib.Path("/etc/tarsy/database/uri").read_text().strip())
                for row in await connection.fetch(QUERY, IDENTITIES):
                    print(*row)
            asyncio.run(main())
        """
        worker = "deployment/tarsy-worker" if self._mode == "split" else "deployment/tarsy"
        return f"{json.dumps(statuses, indent=1)}\n{self.run(worker, code.replace('IDENTITIES', repr(identities)))}"

    def object_of(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object of the release's namespace."""
        manifest: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return manifest

    def fire(self, **labels: str) -> None:
        """Have Alertmanager fire an alert with these labels."""
        pairs = [f"{name}={value}" for name, value in labels.items()]
        amtool = ("amtool", "--alertmanager.url=http://127.0.0.1:9093", "alert", "add", *pairs)
        self.kubectl("exec", "deployment/alertmanager", "--", *amtool, namespace="alertmanager")

    def run(self, workload: str, code: str, *, namespace: str = NAMESPACE) -> str:
        """Run Python in a pod of the product's image, and return what it prints."""
        return self.kubectl("exec", workload, "--", "python3", "-c", textwrap.dedent(code), namespace=namespace)


def first_commands(page: str) -> str:
    """Return the commands of the page's section for a first investigation, as one script."""
    section = page.partition("## A first investigation\n")[2].partition("\n## ")[0]
    blocks = [each for each in re.findall(r"(?:^    .*\n|^\n)+", section, re.MULTILINE) if each.strip()]
    assert blocks, f"{_PAGE} has no commands"
    return textwrap.dedent(blocks[0]).strip()


def _values(mode: str) -> Mapping[str, Any]:
    """Where the scripted model is; all else is the chart's own."""
    written: dict[str, Any] = yaml.safe_load(_VALUES.read_text())
    keys: Sequence[str] = ("platform", "operator", "test")
    return {"mode": mode, **{key: written[key] for key in keys}}
