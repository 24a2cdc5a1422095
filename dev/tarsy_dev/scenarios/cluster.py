"""The API server and the etcd of a control plane, as a recording writes and reads them."""

from __future__ import annotations

import base64
import datetime as dt
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tarsy_dev import errors

_KEYS = {"nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints", "ingresses": "ingress"}
"""The directories in etcd that are not named after their resource."""


class ClusterError(errors.Error):
    """The API server or etcd refused a request."""


class Cluster:
    """Access for the administrator. `etcd` is its address."""

    def __init__(self, *, url: str, pki: Path, etcd: str) -> None:
        self._url, self._etcd = url, etcd
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def get(self, path: str, *, accept: str = "application/json") -> Any:
        """Return the JSON at `path`."""
        return json.loads(self.request("GET", path, accept=accept)[1])

    def read(self, path: str, accept: str) -> tuple[int, str]:
        """Return the status and the body of an answer, also of a refusal."""
        return self.request("GET", path, accept=accept, errors=True)

    def put(self, path: str, document: Any) -> Any:
        """Replace the object at `path`."""
        return json.loads(self.request("PUT", path, document=document)[1])

    def post(self, path: str, document: Any) -> Any:
        """Create an object."""
        return json.loads(self.request("POST", path, document=document)[1])

    def request(
        self, method: str, path: str, *, document: Any = None, accept: str = "application/json", errors: bool = False
    ) -> tuple[int, str]:
        """Return the status and the body of an answer. Without `errors`, one of 400 or more raises ClusterError."""
        request = urllib.request.Request(  # noqa: S310 - the control plane's own address
            self._url + path,
            method=method,
            data=None if document is None else json.dumps(document).encode(),
            headers={"Accept": accept, "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            body = error.read().decode()
            if errors:
                return error.code, body
            raise ClusterError(f"{method} {path}: {error.code} {body}") from error

    def set_age(self, resource: str, stored: dict[str, Any], created: dt.datetime) -> None:
        """Give an object another time of creation."""
        metadata = stored["metadata"]
        metadata["creationTimestamp"] = f"{created:%Y-%m-%dT%H:%M:%SZ}"
        metadata.pop("resourceVersion", None)
        metadata.pop("managedFields", None)
        steps = ("registry", _KEYS.get(resource, resource), metadata.get("namespace", ""), metadata["name"])
        key = "/" + "/".join(filter(None, steps))
        if not self._etcd_call("range", {"key": _encoded(key), "count_only": True}).get("count"):
            raise ClusterError(f"etcd has no key {key}")
        self._etcd_call("put", {"key": _encoded(key), "value": _encoded(json.dumps(stored))})

    def _etcd_call(self, method: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self._etcd}/v3/kv/{method}", data=json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the control plane's own address
            return json.load(answer)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
