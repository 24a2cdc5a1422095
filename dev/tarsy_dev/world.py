"""The whole loopback world that an operator needs: cluster, database, model, tools, and the files that name them.

`local` keeps one running in the background; the demo and the end-to-end tests start one of their own.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from tarsy_dev import chart, children, controlplane, errors, postgres, tools

NAMESPACE = "tarsy"
OPERATOR = "tarsy"
"""The account of the chart that the demo's operator runs as."""
TOOLS = "tarsy-mcp"
"""The account of the chart that the MCP server reads the cluster with."""
DATABASE = "postgres"  # a link to the database's data, which root cannot keep in every folder
API = "http://127.0.0.1:8080"  # the default of tarsy operator --listen

SCRIPTED_MODEL_KEY = "SCRIPTED_MODEL_KEY"  # the variable that its key is in

# Whose token people read with: who has a client certificate, as the administrator, has none to give the API.
_ACCOUNTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: tarsy-user}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tarsy-user}
rules:
- {apiGroups: [tarsy.dev], resources: [agentchains], verbs: [get, list]}
- {apiGroups: [tarsy.dev], resources: [alertinvestigations], verbs: [get, list, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tarsy-user}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: tarsy-user}
subjects: [{kind: ServiceAccount, name: tarsy-user, namespace: tarsy}]
"""


class WorldError(errors.Error):
    """The world cannot be put together."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A running world."""

    plane: controlplane.ControlPlane
    database: postgres.Server
    model: children.Child
    env: dict[str, str]
    """The variables with which an operator, kubectl and tarsy find it all; PATH is to come before the one there is."""

    def check(self) -> None:
        """Raise children.ChildError if a server has ended."""
        self.plane.check()
        self.database.check()
        self.model.check()


@contextmanager
def running(folder: Path, *, durable: bool = False, workloads: bool = True) -> Iterator[World]:
    """Start a world whose files lie in `folder`, and end it, its database included; the folder stays.

    The kinds of `crds/` are applied, the database is migrated and the namespace `tarsy` exists. No operator runs,
    and there are no chains. `durable` is the database's (see `postgres.Server`), `workloads` the control plane's.
    """
    logs = folder / "logs"
    with ExitStack() as stack:
        (port,) = children.free_ports(1)
        model = _start_model(port=port, logs=logs)
        stack.callback(model.end)
        stack.callback((folder / DATABASE).unlink, missing_ok=True)
        database = stack.enter_context(postgres.Server(log=logs / "postgres.log", durable=durable))
        (folder / DATABASE).symlink_to(database.folder)
        url = database.create_database("tarsy")
        _migrate(url)
        crds = sorted((tools.ROOT / "crds").glob("*.yaml"))
        plane = controlplane.ControlPlane(folder=folder / "plane", crds=crds, workloads=workloads)
        stack.enter_context(plane)
        plane.create_namespace(NAMESPACE)
        plane.kubectl("create", "-f", "-", namespace=NAMESPACE, input=_ACCOUNTS)
        plane.kubectl("create", "-f", "-", namespace=NAMESPACE, input=_of_the_chart())
        config = folder / "tarsy.yaml"
        config.write_text(
            yaml.safe_dump(
                _platform(model=f"http://127.0.0.1:{port}", reader=_kubeconfig(plane, TOOLS)), sort_keys=False
            )
        )
        model.wait_until(
            lambda: children.http_status(HTTPConnection("127.0.0.1", port, timeout=5), "/log") == 200,
            what="readiness",
        )
        env = {
            "KUBECONFIG": str(plane.kubeconfig(namespace=NAMESPACE)),
            "DATABASE_URL": url,
            "TARSY_CONFIG": str(config),
            "TARSY_WEBHOOK_TOKEN": secrets.token_urlsafe(24),
            "TARSY_TOKEN": _token(plane, "tarsy-user"),
            "TARSY_API": API,
            SCRIPTED_MODEL_KEY: "any",
            "PATH": str(_link_programs(folder / "bin", kubectl=plane.program("kubectl"))),
        }
        yield World(plane=plane, database=database, model=model, env=env)


def _start_model(*, port: int, logs: Path) -> children.Child:
    return children.start(
        [sys.executable, "-m", "tarsy_dev.model", "--port", str(port), "--log", str(logs / "model-requests.jsonl")],
        name="the scripted model",
        log=logs / "model.log",
        cwd=tools.ROOT,
    )


def _migrate(url: str) -> None:
    command = [str(Path(sys.executable).with_name("tarsy")), "migrate"]
    done = subprocess.run(command, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True)
    if done.returncode != 0:
        raise WorldError(f"'{command[0]} migrate' failed on an empty database:\n{done.stdout}{done.stderr}")


def _of_the_chart() -> str:
    """The accounts, roles and bindings that the chart renders, without those of its hooks."""
    made = chart.objects(chart.rendered({"crds": {"enabled": False}}, name=OPERATOR, namespace=NAMESPACE))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    lasting = (manifest for manifest in made if "helm.sh/hook" not in manifest["metadata"].get("annotations", {}))
    return yaml.safe_dump_all(manifest for manifest in lasting if manifest["kind"] in kinds)


def _kubeconfig(plane: controlplane.ControlPlane, account: str) -> Path:
    """Write the kubeconfig of one of the chart's accounts."""
    return plane.kubeconfig(namespace=NAMESPACE, user=account, token=_token(plane, account))


def _token(plane: controlplane.ControlPlane, account: str) -> str:
    return plane.kubectl("create", "token", account, "--duration=8760h", namespace=NAMESPACE).strip()


def _platform(*, model: str, reader: Path) -> dict[str, Any]:
    """Return the platform file of `config/`, with what it names where it is here; a real model where there is a key."""
    platform = _shipped()
    defaults = platform["defaults"]
    if real := real_provider():
        defaults["llm_provider"] = real
    else:
        provider = platform["llm_providers"][defaults["llm_provider"]]
        provider |= {"base_url": model, "api_key_env": SCRIPTED_MODEL_KEY}
    transport = platform["mcp_servers"]["kubernetes-server"]["transport"]
    transport["command"] = str(tools.kubernetes_mcp_server())
    transport["args"] += ["--kubeconfig", str(reader)]
    return platform


def real_provider() -> str | None:
    """The first provider of the shipped platform file whose key is in the environment; None is the scripted model."""
    shipped = _shipped()["llm_providers"].items()
    return next((name for name, provider in shipped if os.environ.get(provider.get("api_key_env", ""))), None)


def _shipped() -> dict[str, Any]:
    platform: dict[str, Any] = yaml.safe_load((tools.ROOT / "config" / "tarsy.yaml").read_text(encoding="utf-8"))
    return platform


@contextmanager
def operating(world: World, *, logs: Path) -> Iterator[dict[str, str]]:
    """Run an operator in `world`, as the chart's account; yields the environment with its address in it."""
    (port,) = children.free_ports(1)
    env = {**world.env, "TARSY_API": f"http://127.0.0.1:{port}"}
    account = {"KUBECONFIG": str(_kubeconfig(world.plane, OPERATOR))}
    operator = children.start(
        [str(Path(sys.executable).with_name("tarsy")), "operator", "--listen", f"127.0.0.1:{port}"],
        name="the operator",
        log=logs / "operator.log",
        cwd=tools.ROOT,
        env=os.environ | {name: value for name, value in env.items() if name != "PATH"} | account,
    )
    try:
        operator.wait_until(
            lambda: children.http_status(HTTPConnection("127.0.0.1", port, timeout=5), "/readyz") == 200,
            what="readiness",
        )
        yield env
    finally:
        operator.end()


def _link_programs(folder: Path, *, kubectl: Path) -> Path:
    """Fill a folder for PATH with the two programs that people call, so that nothing else of ours shadows theirs."""
    folder.mkdir()
    (folder / "kubectl").symlink_to(kubectl)
    (folder / "tarsy").symlink_to(Path(sys.executable).with_name("tarsy"))
    return folder
