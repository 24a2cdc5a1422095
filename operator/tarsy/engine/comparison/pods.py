"""The pods that one side of a comparison names: their names, uids and addresses, which a replaced pod changes.

A pod that a controller made has a random last segment in its name. Only a name of which the results say so is
shortened: a StatefulSet's pods, and pods that people made, keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tarsy.engine.comparison import trees

_SUFFIX = r"-[bcdfghjklmnpqrstvwxz2456789]{5}"
"""The random end of a generated name. Source: k8s.io/apimachinery/pkg/util/rand."""
_GENERATED = re.compile(rf"(.+){_SUFFIX}\Z")
_OF_REPLICA_SET = re.compile(rf"(.+-[bcdfghjklmnpqrstvwxz2456789]{{5,10}}){_SUFFIX}\Z")
"""A name with the hash of a pod's template before its end."""
_CONTROLLED = re.compile(r"(?:^|,)(?:pod-template-hash|(?:batch\.kubernetes\.io/)?job-name|controller-revision-hash)=")
_OF_DAEMON_SET = re.compile(r"(?:^|,)controller-revision-hash=")
"""A label of the pods of DaemonSets, and of StatefulSets."""
_ORDINAL = "statefulset.kubernetes.io/pod-name="
_TOKEN = re.compile(r"[0-9a-z](?:[0-9a-z.-]{0,260}[0-9a-z])?")
"""A name, a uid or an IPv4 address within a text."""
_KUBELETS = re.compile(r"(?<![0-9a-z.-])([0-9a-z][0-9a-z.-]{0,252})_[0-9a-z-]{1,63}\(([0-9a-f-]{36})\)")
"""A pod in messages of the kubelet: `NAME_NAMESPACE(UID)`."""
_MADE = re.compile(r"(?:Created|Deleted) pod: ([0-9a-z][0-9a-z.-]{0,252})")
"""A pod in messages of the controller of ReplicaSets."""
UID = "<uid>"


@dataclass
class Pods:
    """The pods of one side, and what their names, uids and addresses are replaced with."""

    _names: dict[str, str] = field(default_factory=dict)
    """The name without its end, by name."""
    _uids: dict[str, str] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
    """The pod, by address; "" if several pods have it, or a node, as pods in the network of their node do."""

    def add_object(self, pod: trees.Tree) -> None:
        """Add a pod from its object."""
        name, generated = trees.text_at(pod, "metadata", "name"), trees.text_at(pod, "metadata", "generateName")
        is_generated = bool(generated) and name.startswith(generated) and _GENERATED.match(name) is not None
        self._add(name, is_generated=is_generated)
        self._uids[trees.text_at(pod, "metadata", "uid")] = f"<uid of {self.name(name)}>"
        self._add_address(trees.text_at(pod, "status", "podIP"), name)
        self.add_node([trees.text_at(pod, "status", "hostIP")])

    def add_row(self, name: str, *, address: str, labels: str) -> None:
        """Add a pod from its row in a table."""
        self._add(name, is_generated=bool(_CONTROLLED.search(labels)) and _ORDINAL not in labels)
        if _ORDINAL in labels or not _OF_DAEMON_SET.search(labels):  # whose pods often have the address of their node
            self._add_address(address, name)

    def add_node(self, addresses: Iterable[str]) -> None:
        """Add the addresses of a node: they are no pod's."""
        self._addresses.update(dict.fromkeys(addresses, ""))

    def add_names(self, names: Iterable[str]) -> None:
        """Add pods of which only the names are known, as those in events."""
        for name in names:
            if name not in self._names and _OF_REPLICA_SET.match(name):
                self._add(name, is_generated=True)

    def add_message(self, message: str) -> None:
        """Add the pods that a message of an event names: the kubelet's with their uids, and those of a ReplicaSet."""
        self.add_names(_MADE.findall(message))
        for name, uid in _KUBELETS.findall(message):
            self.add_names([name])
            self._uids.setdefault(uid, f"<uid of {self.name(name)}>")

    def _add(self, name: str, *, is_generated: bool) -> None:
        match = _GENERATED.match(name) if is_generated else None
        if match or name not in self._names:
            self._names[name] = f"{match[1]}-*" if match else name

    def _add_address(self, address: str, name: str) -> None:
        pod = self.name(name)
        self._addresses[address] = pod if self._addresses.get(address, pod) == pod else ""

    def name(self, name: str) -> str:
        """Return a pod's name, with `*` for its random end."""
        return self._names.get(name, name)

    def address(self, address: str) -> str:
        """Return what stands for an address of a pod."""
        pod = self._addresses.get(address)
        return f"<address of {pod}>" if pod else address

    def replace(self, text: str) -> str:
        """Return `text` with what stands for the names, uids and addresses of pods in it."""
        return _TOKEN.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        token = match[0]
        if token in self._names:
            return self._names[token]
        return self._uids.get(token) or self.address(token)
