"""The ServiceAccounts and roles that the chart renders, in a test's namespace: operators run as these."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from support import accounts, charts, rights
from tarsy.kube import calls, client
from tarsy_dev.controlplane import Administrator

ALL = "all"
"""The part that is all of them in one process."""
OWNERS = "owners"
"""The same, which may also read the owners of alerts."""
TOOLS = "mcp"
"""The part that is no operator, but the server that its agents look at the cluster through."""
_SOMEWHERE = "some-namespace"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"{_RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
}


class Installed:
    """The accounts of one namespace, made when they are first asked for."""

    def __init__(self, plane: Administrator, admin: client.Cluster) -> None:
        """`admin` may make them; its namespace it is."""
        self._plane = plane
        self._admin = admin
        self._made: dict[str, Sequence[rights.Manifest]] = {}
        self._kubeconfigs: dict[str, Path] = {}
        self._one_at_a_time = asyncio.Lock()
        self._log_start = plane.audit_log.stat().st_size
        """The end of what the tests before have logged: it grows to many times what one test logs."""

    async def kubeconfig(self, part: str = ALL) -> Path:
        """The kubeconfig of a part of the operator, which may do what the chart grants it."""
        async with self._one_at_a_time:
            if part not in self._kubeconfigs:
                await self._make(_release(part))
                name = account(part)
                token = await accounts.token(self._admin, name)
                self._kubeconfigs[part] = self._plane.kubeconfig(
                    namespace=self._admin.served.own, user=name, token=token
                )
        return self._kubeconfigs[part]

    def uses(self, part: str = ALL) -> list[rights.Use]:
        """Return the requests of that part to the API server."""
        return rights.used(
            self._plane.audit_log, account=account(part), namespace=self._admin.served.own, start=self._log_start
        )

    def refused(self) -> set[rights.Right]:
        """Return the rights that any part was refused and the chart does not grant it: an API server that starts
        refuses all at first.
        """
        return {
            right
            for part in self._kubeconfigs
            for right in rights.refused(self.uses(part))
            if not any(granted.covers(right) for granted in self.granted(part))
        }

    def never_used(self, part: str = ALL) -> set[rights.Right]:
        """Return the rights that the chart grants that part, and that it has not asked for."""
        return rights.never_used(self.granted(part), self.uses(part))

    def granted(self, part: str = ALL) -> set[rights.Right]:
        """Return the rights that the chart grants that part, once it has been asked for."""
        return rights.granted(self._made[_release(part)], account=account(part), namespace=self._admin.served.own)

    @contextlib.asynccontextmanager
    async def without(self, right: rights.Right, *, part: str) -> AsyncIterator[None]:
        """Take a right away from a part of the operator, and give it back; all of it in one process has two roles."""
        kind = "Role" if right.namespace else "ClusterRole"
        names = tuple(
            f"{_release(part)}-{suffix}" for suffix in (("api", "controller") if part in (ALL, OWNERS) else (part,))
        )
        roles = [
            doc for doc in self._made[_release(part)] if doc["kind"] == kind and doc["metadata"]["name"].endswith(names)
        ]
        for role in roles:
            await self._put(rights.without(role, right))
        yield
        for role in roles:
            await self._put(role)

    async def _put(self, role: rights.Manifest) -> None:
        path = f"{_PATHS[role['kind']].format(namespace=self._admin.served.own)}/{role['metadata']['name']}"
        await calls.request(self._admin, "PUT", path, body=role)

    async def _post(self, made: rights.Manifest) -> None:
        path = _PATHS[made["kind"]].format(namespace=self._admin.served.own)
        await calls.request(self._admin, "POST", path, body=made)

    async def remove(self) -> None:
        """Delete the bindings of all namespaces, through which the API server looks at each request; no end of a
        namespace takes them along. Roles that nothing binds cost nothing.
        """
        lasting = [bound for made in self._made.values() for bound in made if bound["kind"] == "ClusterRoleBinding"]
        await asyncio.gather(
            *(
                calls.request(self._admin, "DELETE", f"{_PATHS[binding['kind']]}/{binding['metadata']['name']}")
                for binding in lasting
            )
        )

    async def _make(self, release: str) -> None:
        if release not in self._made:
            namespace = self._admin.served.own
            self._made[release] = made = rendered(namespace, release=release)
            roles = {(doc["kind"], doc["metadata"]["name"]): doc for doc in made}
            last_bindings = {doc["kind"]: doc for doc in made if doc["kind"].endswith("RoleBinding")}
            last_roles = [roles[doc["roleRef"]["kind"], doc["roleRef"]["name"]] for doc in last_bindings.values()]
            last = [*last_roles, *last_bindings.values()]
            # The last binding is in force once all are: the API server learns of each kind in the order of its making.
            for together in ([doc for doc in made if doc not in last], last_roles, last_bindings.values()):
                await asyncio.gather(*map(self._post, together))
            for kind, binding in last_bindings.items():
                role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
                where = namespace if kind == "RoleBinding" else ""
                await accounts.in_force(self._admin, role, binding["subjects"][0], namespace=where)


def account(part: str) -> str:
    """The name of the ServiceAccount that a part of the operator runs as."""
    return _release(part) if part in (ALL, OWNERS) else f"{_release(part)}-{part}"


def _release(part: str) -> str:
    """One release of each shape: their roles are the same, their accounts are not."""
    return {ALL: "tarsy", OWNERS: "tarsy-owners", TOOLS: "tarsy-tools"}.get(part, "tarsy-apart")


def rendered(namespace: str, *, release: str) -> Sequence[rights.Manifest]:
    """The accounts, roles and bindings that the chart renders for a release: the operator's, or those of the tools."""
    manifests: list[rights.Manifest] = json.loads(_rendered(release).replace(_SOMEWHERE, namespace))
    return manifests


@functools.cache
def _rendered(release: str) -> str:
    """The same for a namespace that no test has, as JSON: to render takes a third of a second."""
    mode = "single" if release in (_release(ALL), _release(OWNERS)) else "split"
    has_tools = release == _release(TOOLS)
    values = {"mode": mode, "crds": {"enabled": False}, "mcp": {"enabled": has_tools}}
    values |= {"rbac": {"owners": release == _release(OWNERS)}}
    made = [doc for doc in charts.render(values, name=release, namespace=_SOMEWHERE) if doc["kind"] in _PATHS]
    return json.dumps([doc for doc in made if doc["metadata"]["name"].endswith(f"-{TOOLS}") or not has_tools])
