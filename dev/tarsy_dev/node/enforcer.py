"""The enforcer of NetworkPolicies: watches pods, namespaces and policies, and has nftables follow them.

`python -m tarsy_dev.node.enforcer KUBECONFIG` runs it in the network of the node. A thread lists and watches each of
the three kinds. After a change, at most every 50 ms, all rules are made anew, and replaced at once if they differ.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tarsy_dev.node import policies, rules

_KINDS = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
}
_PAUSE = 0.05  # seconds for which changes are gathered
_AGAIN = 0.5  # seconds after which a list or watch that failed is tried again
_WATCH = 300  # seconds of one watch


class Watched:
    """The objects of one kind, kept up to date by a thread; `changed` is set at each change."""

    def __init__(self, path: str, *, kubeconfig: Path, changed: threading.Event) -> None:
        self._path = path
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()
        config = json.loads(kubeconfig.read_text())
        self._server = urlsplit(config["clusters"][0]["cluster"]["server"])
        self._context = _context(config)
        threading.Thread(target=self._run, name=path, daemon=True).start()

    def objects(self) -> list[dict[str, Any]]:
        """Return the objects as they are known now."""
        with self._lock:
            return list(self._objects.values())

    def _run(self) -> None:
        while True:
            try:
                version = self._list()
                self._watch(version)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                print(f"{self._path}: {error!r}", flush=True)
            time.sleep(_AGAIN)

    def _list(self) -> str:
        with self._get({}) as response:
            found = json.load(response)
        with self._lock:
            self._objects = {each["metadata"]["uid"]: each for each in found["items"]}
        self.listed.set()
        self._changed.set()
        version: str = found["metadata"]["resourceVersion"]
        return version

    def _watch(self, version: str) -> None:
        with self._get({"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH)}) as response:
            while line := response.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                uid = event["object"]["metadata"]["uid"]
                with self._lock:
                    if event["type"] == "DELETED":
                        self._objects.pop(uid, None)
                    else:
                        self._objects[uid] = event["object"]
                self._changed.set()

    def _get(self, query: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(
            self._server.hostname or "", self._server.port, timeout=_WATCH + 30, context=self._context
        )
        connection.request("GET", f"{self._path}?{urlencode(query)}", headers={"Connection": "close"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        return response


def _context(kubeconfig: dict[str, Any]) -> ssl.SSLContext:
    authority = base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    user = kubeconfig["users"][0]["user"]
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


def main() -> None:
    """Enforce until killed; ends with the error of an nft that refuses the rules."""
    kubeconfig = Path(sys.argv[1])
    changed = threading.Event()
    watched = {name: Watched(path, kubeconfig=kubeconfig, changed=changed) for name, path in _KINDS.items()}
    for kind in watched.values():
        kind.listed.wait()
    in_force = None
    while True:
        changed.wait()
        changed.clear()
        time.sleep(_PAUSE)
        pods, namespaces, objects = (watched[name].objects() for name in _KINDS)
        wanted = rules.ruleset(policies.isolations(pods, namespaces, objects))
        if wanted != in_force:
            subprocess.run(["nft", "-f", "-"], input=wanted, text=True, check=True)
            in_force = wanted


if __name__ == "__main__":
    main()
