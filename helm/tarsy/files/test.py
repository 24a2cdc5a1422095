"""`helm test`: post an alert as Alertmanager does, and wait for what becomes of it.

It runs in a pod of the chart's, under an account that may read chains and investigations and cancel the latter. It
stands on Python's own library alone, so that it asks as anybody would, and says what it sees on the way.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

ACCOUNT = Path(os.environ.get("TEST_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
GROUP = "/apis/tarsy.dev/v1alpha1"
PAUSE_SECONDS = 1.0

JSON = dict[str, Any]


class FailedError(Exception):
    """The test fails; the message says why."""


class NotYetError(Exception):
    """What is asked for is not there yet; the message says what is missing."""


def main() -> int:
    """Post, wait and tell; 0 where the installation does what it is to do."""
    chain, label = os.environ["TEST_CHAIN"], os.environ["TEST_LABEL"]
    until = time.monotonic() + float(os.environ["TEST_SECONDS"])
    try:
        alert_type = _within(until, lambda: _alert_type(chain))
        name = _within(until, lambda: _posted({label: alert_type}))
        _tell(f"AlertInvestigation {name} was created for alert type {alert_type}")
        found = _within(until, lambda: _condition(name, wanted="Finished" if chain else None))
        _tell(f"it has the condition {found['type']}={found['status']}, {found['reason']}: {found.get('message', '')}")
        if not chain:  # what it would find is not asked for, and a model costs money
            _cluster(f"{_of('alertinvestigations')}/{name}", {"spec": {"cancel": True}})
    except FailedError as error:
        _tell(f"failed: {error}")
        return 1
    _tell("passed")
    return 0


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _within(until: float, ask: Any) -> Any:
    """What `ask` returns once it is there; a FailedError says what was missing to the end."""
    told = ""
    while True:
        try:
            return ask()
        except (NotYetError, OSError) as error:
            if time.monotonic() > until:
                raise FailedError(f"{error} (for as long as test.timeoutSeconds says)") from error
            if str(error) != told:
                _tell(f"waiting: {error}")
            told = str(error)
        time.sleep(PAUSE_SECONDS)


def _alert_type(chain: str) -> str:
    """An alert type of that chain, or of any that is ready."""
    listed = _cluster(_of("agentchains"))["items"]
    if chain and chain not in [one["metadata"]["name"] for one in listed]:
        raise FailedError(f"test.chain: there is no AgentChain {chain}")
    for one in listed:
        conditions = one.get("status", {}).get("conditions", [])
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if ready and chain in ("", one["metadata"]["name"]):
            return str(one["spec"]["alertTypes"][0])
    raise NotYetError(f"AgentChain {chain} is not ready" if chain else "no AgentChain is ready")


def _posted(labels: JSON) -> str:
    """The name of the investigation that an alert with these labels makes."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "TarsyHelmTest", "test": uuid.uuid4().hex, **labels},
        "annotations": {"summary": "helm test asks whether alerts are investigated. Nothing is wrong."},
        "startsAt": dt.datetime.now(dt.UTC).isoformat(),
    }
    body = {"version": "4", "receiver": "helm-test", "status": "firing", "groupKey": "helm-test", "alerts": [alert]}
    token = Path(os.environ["TEST_TOKEN_FILE"]).read_text(encoding="utf-8").strip()
    url = f"{os.environ['TEST_URL']}/api/v1/webhooks/alertmanager"
    answer = _asked(url, body, token=token, method="POST", kind="application/json")["alerts"][0]
    if answer["name"] is None:
        raise FailedError(f"the alert was {answer['outcome']}: {answer['reason']}")
    return str(answer["name"])


def _condition(name: str, *, wanted: str | None) -> JSON:
    """A condition of that investigation: the wanted one once it is true, or the first one."""
    status = _cluster(f"{_of('alertinvestigations')}/{name}").get("status", {})
    conditions: list[JSON] = status.get("conditions", [])
    for one in conditions:
        if wanted is None or (one["type"] == wanted and one["status"] == "True"):
            return one
    raise NotYetError(f"{name} has no condition {wanted or ''} yet; it is {status.get('phase', 'new')}")


def _of(plural: str) -> str:
    return f"{GROUP}/namespaces/{os.environ['TEST_NAMESPACE']}/{plural}"


def _cluster(path: str, patch: JSON | None = None) -> JSON:
    """What the API server answers."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    token = (ACCOUNT / "token").read_text(encoding="utf-8").strip()
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    method, kind = ("GET", "") if patch is None else ("PATCH", "application/merge-patch+json")
    return _asked(f"https://{host}:{port}{path}", patch, token=token, method=method, kind=kind, trusted=trusted)


def _asked(
    url: str, body: JSON | None, *, token: str, method: str, kind: str, trusted: ssl.SSLContext | None = None
) -> JSON:
    """What a server answers; what it refuses for good is a FailedError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": kind}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - http(s), ours
    try:
        with urllib.request.urlopen(request, timeout=15, context=trusted) as answer:  # noqa: S310
            found: JSON = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        told = f"{method} {url}: {error.code} {error.read(2000).decode(errors='replace').strip()}"
        if error.code in (429, 500, 502, 503, 504):
            raise NotYetError(told) from error
        raise FailedError(told) from error


if __name__ == "__main__":
    sys.exit(main())
