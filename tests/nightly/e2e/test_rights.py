"""The operator under the accounts that the chart renders: it needs each of its rights, and no other.

What it asked the API server for is told by the server's audit log. A right that is not granted shows in every other
test as well, because they all run under these accounts; one that is granted and needed by nothing shows only here.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from support import installed, manifests, waiting
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

WEBHOOK = "/api/v1/webhooks/alertmanager"


async def ask(process: Process, method: str, path: str, *, status: int = 200, body: Any = None) -> Any:
    encoded = json.dumps(body).encode() if body else None
    answered, answer = await process.request(method, f"/api/v1{path}", body=encoded)
    assert answered == status, answer
    return answer


async def follow_an_alert(process: Process, operator: Operator) -> None:
    """From its webhook, sent twice, to the answer to a question about it and to its end."""
    for outcome in ("created", "repeated"):
        _, receipt = await process.request("POST", WEBHOOK, body=manifests.notification())
        (alert,) = receipt["alerts"]
        assert alert["outcome"] == outcome
    name = alert["name"]
    uid = (await operator.finished(name))[name]["metadata"]["uid"]
    await ask(process, "POST", f"/investigations/{uid}/chat", body={"question": "Which image was it?"}, status=202)
    async with patience.limit():
        while not (await ask(process, "GET", f"/investigations/{uid}"))["runs"][1]["ending"]:
            pass  # each is an answer of the process
    await operator.event(name, "Completed")
    await ask(process, "DELETE", f"/investigations/{uid}?purge=true", status=204)
    await operator.kubectl("wait", "--for=delete", f"inv/{name}", "--timeout=60s")


async def be_told_of_an_alert_that_no_chain_takes(process: Process, operator: Operator, deployment: str) -> None:
    """At the Deployment that the controller is said to belong to, which is there for its name alone."""
    labels = {"app": deployment}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "tarsy", "image": "tarsy"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    await operator.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": deployment}, "spec": spec}
    )
    nobodys = manifests.notification(labels={"alertname": "NobodyTakesThis"}, fingerprint="1" * 16)
    _, receipt = await process.request("POST", WEBHOOK, body=nobodys)
    assert receipt["counts"]["ignored"] == 1
    async with patience.limit():
        about = f"--field-selector=involvedObject.kind=Deployment,involvedObject.name={deployment}"
        while f"NobodyTakesThis in {operator.namespace} (1)" not in await operator.kubectl("get", "events", about):
            pass  # the process that has the duties writes the event


async def work(process: Process, operator: Operator, *, deployment: str) -> None:
    """Use everything that the API server is needed for."""
    await be_told_of_an_alert_that_no_chain_takes(process, operator, deployment)
    chain = manifests.chain()
    await operator.apply(chain, manifests.investigation("brief", ttlSecondsAfterFinished=1))
    await operator.kubectl("wait", "chain", chain["metadata"]["name"], "--for=condition=Ready", "--timeout=60s")
    await follow_an_alert(process, operator)
    await operator.kubectl("wait", "--for=delete", "inv/brief", "--timeout=60s")
    await ask(process, "GET", "/system/warnings")
    await ask(process, "GET", "/system/chains")
    assert (await ask(process, "GET", "/investigations?namespace=default"))["items"] == []
    async with patience.limit():
        while (await process.request("GET", "/readyz"))[0] != 200:
            pass  # the watch opens


def has_used_all(operator: Operator, part: str) -> bool:
    """Whether a part has used each right of its account; the audit log is written behind the answer."""
    return operator.accounts.never_used(part) == set()


async def test_one_process_needs_each_right_of_its_account_and_no_other(operator: Operator, llm: model.Server) -> None:
    llm.script = lambda _call: model.Answer(text="root cause")
    await work(await operator.start(env={"TARSY_DEPLOYMENT": "tarsy"}), operator, deployment="tarsy")
    await waiting.until(functools.partial(has_used_all, operator, installed.ALL))
    assert operator.accounts.refused() == set()


async def test_each_part_needs_each_right_of_its_own_account_and_no_other(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _call: model.Answer(text="root cause")
    process = await operator.start(role="api")
    for role in ("controller", "worker"):
        await operator.start(role=role, env={"TARSY_DEPLOYMENT": f"tarsy-apart-{role}"})
    await work(process, operator, deployment="tarsy-apart-controller")
    for part in ("api", "controller"):
        await waiting.until(functools.partial(has_used_all, operator, part))
    assert operator.accounts.refused() == set()
    assert operator.accounts.uses("worker") == [], "a worker asks the API server for nothing"
