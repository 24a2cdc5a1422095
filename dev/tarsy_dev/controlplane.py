"""A real Kubernetes control plane on 127.0.0.1, without containers.

etcd and kube-apiserver make it one; the controller-manager adds what clusters do by themselves (deleting namespaces,
garbage collection, ServiceAccounts, workloads); the scheduler, kwok and pod-logs play nodes that run pods. A fake API
server was the alternative, and has none of what our code leans on: admission, CEL, watches, conflicts, RBAC.

Every part can be killed and started again on its port and its data, which is what the chaos tests do. Nothing is
written to disk to last (`--unsafe-no-fsync`), and nothing listens elsewhere than on 127.0.0.1, unless a real node is to
reach it: `tarsy_dev.node` starts it in a network namespace of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import yaml

from tarsy_dev import assets, certificates, children, errors, patience

Flags = dict[str, str | int | Path]

WATCHERS = ("kube-controller-manager", "kube-scheduler", "kwok")
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "pod-logs")
NODE = "sim-0"
SERVICES = "10.96.0.0/16"
SERVICE = "10.96.0.1"
"""The ClusterIP of the API server: the first of SERVICES."""
REAL_PORT = 6443
"""Where the API server listens for real nodes: one of those that the policies of charts know."""

# Only the controllers that a simulated node needs: all of them cost memory and a second of start.
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
)


class KubectlError(errors.Error):
    """kubectl ended with an error; the message is what it said."""


class Administrator:
    """Access to a control plane for who may do everything.

    `folder` has the control plane's keys in `pki`, and gets the kubeconfigs that are written.
    """

    def __init__(self, *, folder: Path, url: str) -> None:
        self.folder = folder.resolve()
        self.url = url
        self.logs = self.folder / "logs"
        self.audit_log = self.logs / "audit.jsonl"
        """One event of audit.k8s.io/v1 a line, of `dev/controlplane/audit.yaml`, where the control plane is audited."""
        self._pki = self.folder / "pki"

    def program(self, name: str) -> Path:
        """Return the path of one of the programs that the control plane is made of, or of kubectl."""
        return assets.program(name)

    def kubeconfig(
        self, *, namespace: str = "default", user: str = "admin", token: str | None = None, url: str | None = None
    ) -> Path:
        """Write a kubeconfig whose current namespace is `namespace`, and return its path.

        It speaks for the administrator, or for the owner of `token`; then `user` is only its name. `url` is another
        address of the API server than `self.url`.
        """
        if token is None:
            cert, key = self._pem(f"{user}.crt"), self._pem(f"{user}.key")
            credential = {"client-certificate-data": cert, "client-key-data": key}
        else:
            credential = {"token": token}
        cluster = {"server": url or self.url, "certificate-authority-data": self._pem("ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user, "user": credential}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user, "namespace": namespace}}],
        }
        path = self.folder / "kubeconfigs" / f"{user}.{namespace}"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # Renamed into place, because others may be reading the one that was there.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
            json.dump(config, draft)
        return Path(draft.name).rename(path)

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - subprocess's own name for it
        namespace: str = "default",
        timeout: float = 120,
    ) -> str:
        """Run kubectl as the administrator with `namespace` as its default, and return its stdout.

        `input` is its stdin, for `-f -`. Raises KubectlError with its stderr, or subprocess.TimeoutExpired.
        """
        kubeconfig = self.kubeconfig(namespace=namespace)
        command = [str(self.program("kubectl")), f"--kubeconfig={kubeconfig}", *args]
        # A cache of our own: what kubectl remembers of another control plane that had this port would mislead it.
        # It ends before a collection of garbage would be worth its time: a quarter of it.
        env = {**os.environ, "KUBECACHEDIR": str(self.folder / "kubectl-cache"), "GOGC": "off"}
        done = subprocess.run(command, input=input, env=env, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be made in it, which needs its ServiceAccount.

        Without kubectl, of which each start costs 0.12 s of a processor: every test has a namespace. KubectlError.
        """
        status = self._ask("/api/v1/namespaces", posted={"metadata": {"name": name}})
        if status != HTTPStatus.CREATED:
            raise KubectlError(f"namespace {name} was not created: status {status or 'none'}")
        self._wait_for_namespace(name)

    def create(self, manifest: Mapping[str, Any], *, namespace: str) -> dict[str, Any]:
        """Create an object of a namespace as `kubectl create` does, and return it. Raises KubectlError.

        Without kubectl, as `create_namespace`; for kinds whose plural has an s more.
        """
        version, kind = manifest["apiVersion"], manifest["kind"].lower()
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{root}/namespaces/{namespace}/{kind}s?fieldValidation=Strict"
        with contextlib.closing(self._connection(timeout=60)) as connection:
            connection.request("POST", path, json.dumps(manifest), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        if response.status != HTTPStatus.CREATED:
            raise KubectlError(f"{kind} was not created: {answer.get('message')}")
        return answer

    def check(self) -> None:
        """Raise children.ChildError if the control plane is known to have ended."""

    def wait_for_kinds(self) -> None:
        """Wait until the custom resources can be listed, as after their kinds changed: until then the answer is 429.

        A page of a list without a selector, as `kubectl get` asks for, is answered sooner.
        """
        path = "/apis/{.spec.group}/{.spec.versions[0].name}/{.spec.names.plural}"
        paths = self.kubectl("get", "crds", "-o", f'jsonpath={{range .items[*]}}{path}{{"\\n"}}{{end}}').split()
        self.wait_until(lambda: all(self._ask(path) == HTTPStatus.OK for path in paths), what="custom resources")

    def _wait_for_namespace(self, name: str) -> None:
        self.wait_until(lambda: self._has_account(name), what=f"the default ServiceAccount of {name}")

    def wait_until(self, ready: Callable[[], bool], *, what: str) -> None:
        """Poll `ready`. The end of a component is an error at once; patience.TooLong."""
        deadline = time.monotonic() + patience.PATIENCE
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise patience.TooLong(f"the control plane: {what} did not come true in {patience.PATIENCE:.0f} s")
            time.sleep(0.02)

    def _has_account(self, namespace: str) -> bool:
        """Tell whether a namespace has its default ServiceAccount, without which no pod is made in it."""
        return self._ask(f"/api/v1/namespaces/{namespace}/serviceaccounts/default") == HTTPStatus.OK

    def _ask(self, path: str, *, posted: object = None, port: int | None = None) -> int:
        """GET, or POST `posted`, as the administrator: the status, or 0 while no server answers."""
        return children.http_status(self._connection(timeout=60 if posted else 5, port=port), path, posted=posted)

    def _connection(self, *, timeout: float, port: int | None = None) -> HTTPSConnection:
        """A connection of the administrator's, to the API server or to another `port` of its host."""
        server = urlsplit(self.url)
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        return HTTPSConnection(server.hostname or "", port or server.port, timeout=timeout, context=context)

    def _pem(self, file: str) -> str:
        return base64.b64encode((self._pki / file).read_bytes()).decode()


class ControlPlane(Administrator):
    """One control plane, its files in a folder of its own.

    `folder` is created when missing and left where it is; `crds` are YAML files or folders of them that are applied
    before anything watches. `audited`: what ServiceAccounts do is written to `audit_log`, which costs the API server
    a line a request. `controllers` run beside those that simulated nodes need. Without `workloads` it is etcd, the API
    server and the log server alone: what controllers, scheduler and node would do, the caller writes into the status of
    objects. Usable as a context manager, which starts and stops it.

    Its one node is a simulated one, unless `host` is given: the address that real nodes and their pods reach the API
    server at, on port 6443 and on every other interface too. Then it simulates nothing and has every controller.
    """

    def __init__(
        self,
        *,
        folder: Path,
        crds: Sequence[Path] = (),
        audited: bool = False,
        host: str | None = None,
        controllers: Sequence[str] = (),
        workloads: bool = True,
    ) -> None:
        self._etcd, self._etcd_peers, self._apiserver, self._kwok, self._pod_logs = children.free_ports(5)
        if host is not None:
            self._apiserver = REAL_PORT
        super().__init__(folder=folder, url=f"https://127.0.0.1:{self._apiserver}")
        self._host = host
        self._audited = audited
        self._controllers = controllers
        self._workloads = workloads
        self._crds = crds
        self._running: dict[str, children.Child] = {}

    def program(self, name: str) -> Path:
        """Return the path of one of the programs that the control plane is made of, or of kubectl."""
        return assets.program(name) if self._workloads else assets.api_program(name)

    @property
    def etcd_url(self) -> str:
        """The address of etcd, which needs no credential."""
        return f"http://127.0.0.1:{self._etcd}"

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start every component and return when the API, the CRDs and a simulated node are ready, 4 to 8 s later.

        Raises children.ChildError and patience.TooLong, which name the log of a component, and KubectlError.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        if not self._pki.exists():
            addresses = [] if self._host is None else [self._host, SERVICE]
            certificates.write(self._pki, addresses)
        try:
            self._spawn("etcd")
            self.start_component("kube-apiserver")
            # Before the controller-manager: its garbage collector takes up to 20 s to notice a kind that comes later.
            self._apply_crds()
            if self._workloads:
                self.start_component("kube-controller-manager")
                self.start_component("kube-scheduler")
            if self._host is None:
                self.start_component("pod-logs")
            if self._host is None and self._workloads:
                self.start_component("kwok")
            if self._host is None:
                self._add_node()
            self._wait_for_namespace("default")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every component at once; the folder keeps the logs."""
        for name in reversed(list(self._running)):
            self.kill(name)

    def start_component(self, name: str) -> None:
        """Start one of COMPONENTS, on the ports and data that it had before, and wait until it answers.

        Behind etcd and the API server, those that watch it are started anew: after an outage each of them waits for up
        to a minute before it looks again, and what is done next would wait for it.
        """
        child = self._spawn(name)
        ready = {
            "etcd": lambda: children.http_status(HTTPConnection("127.0.0.1", self._etcd, timeout=5), "/readyz") == 200,
            "kube-apiserver": lambda: self._ask("/readyz") == 200,
            "kwok": lambda: children.http_status(HTTPConnection("127.0.0.1", self._kwok, timeout=5), "/healthz") == 200,
            "pod-logs": lambda: self._ask("/healthz", port=self._pod_logs) == 200,
        }.get(name)
        if ready is not None:
            self._wait(child, ready, what="readiness")
        if name in ("etcd", "kube-apiserver"):
            if "kube-apiserver" in self._running:
                self.wait_for_kinds()
            for watcher in [other for other in self._running if other in WATCHERS]:
                self.kill(watcher)
                self.start_component(watcher)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal to a component and wait for its end."""
        self._running.pop(name).end(how)

    def send(self, name: str, what: signal.Signals) -> None:
        """Send a component a signal that does not end it, such as SIGSTOP and SIGCONT."""
        self._running[name].process.send_signal(what)

    def check(self) -> None:
        """Raise children.ChildError if a component has ended that was not killed here."""
        for child in self._running.values():
            child.check()

    def _wait(self, child: children.Child, ready: Callable[[], bool], *, what: str) -> None:
        """Wait for a component; the end of another, which it may be waiting for itself, is an error at once."""

        def all_alive_and_ready() -> bool:
            self.check()
            return ready()

        child.wait_until(all_alive_and_ready, what=what)

    def _apply_crds(self) -> None:
        if not self._crds:
            return
        files = [arg for path in self._crds for arg in ("-f", str(path))]
        self.kubectl("apply", "--server-side", *files)
        self.kubectl("wait", "--for=condition=Established", "--timeout=240s", *files)
        self.wait_for_kinds()

    def _add_node(self) -> None:
        if self._ask(f"/api/v1/nodes/{NODE}") == 404:
            node = yaml.safe_load((assets.SOURCE / "node.yaml").read_text())
            if not self._workloads:
                node["status"] |= {
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": self._pod_logs}},
                }
            self.kubectl("create", "-f", "-", input=json.dumps(node))
        self.kubectl("wait", "--for=condition=Ready", "--timeout=240s", f"node/{NODE}")

    def _has_account(self, namespace: str) -> bool:
        if self._workloads:
            return super()._has_account(namespace)
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        created = self._ask(accounts, posted={"metadata": {"name": "default"}})
        return created in (HTTPStatus.CREATED, HTTPStatus.CONFLICT)

    def _spawn(self, name: str) -> children.Child:
        ours = [sys.executable, "-m", "tarsy_dev.pod_logs"]
        child = children.start(
            [*(ours if name == "pod-logs" else [self.program(name)]), *self._arguments(name)],
            name=name,
            log=self.logs / f"{name}.log",
            cwd=self.folder,
            env={**os.environ, "GOGC": "400"},  # fewer collections: less work for 0.1 GB more of memory
        )
        self._running[name] = child
        return child

    def _arguments(self, name: str) -> list[str]:
        arguments: dict[str, Callable[[], Flags]] = {
            "etcd": self._etcd_arguments,
            "kube-apiserver": self._apiserver_arguments,
            "kube-controller-manager": self._controller_manager_arguments,
            "kube-scheduler": self._scheduler_arguments,
            "kwok": self._kwok_arguments,
            "pod-logs": self._pod_logs_arguments,
        }
        return [f"--{flag}={value}" for flag, value in arguments[name]().items()]

    def _etcd_arguments(self) -> Flags:
        clients, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._etcd_peers}"
        return {
            "data-dir": self.folder / "etcd",
            "unsafe-no-fsync": "true",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "log-level": "warn",
        }

    def _apiserver_arguments(self) -> Flags:
        audit: Flags = {"audit-policy-file": assets.SOURCE / "audit.yaml", "audit-log-path": self.audit_log}
        return {
            **(audit if self._audited else {}),
            "etcd-servers": f"http://127.0.0.1:{self._etcd}",
            **self._addresses(),
            "secure-port": self._apiserver,
            "service-cluster-ip-range": SERVICES,
            "tls-cert-file": self._pki / "server.crt",
            "tls-private-key-file": self._pki / "server.key",
            "client-ca-file": self._pki / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-signing-key-file": self._pki / "sa.key",
            "service-account-key-file": self._pki / "sa.pub",
            "kubelet-client-certificate": self._pki / "kubelet-client.crt",
            "kubelet-client-key": self._pki / "kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            "shutdown-delay-duration": "0s",
            "profiling": "false",
        }

    def _addresses(self) -> Flags:
        if self._host is not None:
            return {
                "bind-address": "0.0.0.0",  # noqa: S104 - its network is a namespace that ends at this machine
                "advertise-address": self._host,
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
            }
        return {
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "TaintNodesByCondition",  # no controller here would take the taint away
        }

    def _controller_manager_arguments(self) -> Flags:
        return {
            "kubeconfig": self.kubeconfig(user="kube-controller-manager"),
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "secure-port": 0,
            "service-account-private-key-file": self._pki / "sa.key",
            "root-ca-file": self._pki / "ca.crt",
            "controllers": ",".join((*_CONTROLLERS, *self._controllers)) if self._host is None else "*",
            "concurrent-gc-syncs": 5,
        }

    def _scheduler_arguments(self) -> Flags:
        return {"kubeconfig": self.kubeconfig(user="kube-scheduler"), "leader-elect": "false", "secure-port": 0}

    def _kwok_arguments(self) -> Flags:
        return {
            "kubeconfig": self.kubeconfig(),
            "config": assets.SOURCE / "kwok.yaml",
            "manage-all-nodes": "true",
            "node-ip": "127.0.0.1",
            "node-port": self._pod_logs,
            "node-lease-duration-seconds": 40,
            "server-address": f"127.0.0.1:{self._kwok}",
        }

    def _pod_logs_arguments(self) -> Flags:
        return {"port": self._pod_logs, "server": self.url, "pki": self._pki}
