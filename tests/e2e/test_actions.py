"""Cancel by the API in every phase, whatever became of the worker, and what the audit tells of all that was done."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import aiohttp
import asyncpg
import pytest
from support import audits, manifests, operators
from support.actions import act, hanging, phase, uid
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator


async def test_open_investigations_are_cancelled_and_recorded_in_the_audit(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _call: model.Hang()
    process = await operator.start(lease=operators.NO_HEARTBEAT, queue={"slots": 1})
    await operator.apply(manifests.chain())
    _, receipt = await process.request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification())
    running = receipt["alerts"][0]["name"]
    await hanging(llm)
    await operator.apply(
        manifests.investigation("queued"),
        manifests.investigation("suspended", suspend=True),
        manifests.investigation("by-spec", cancel=True),
    )
    uids = {name: await uid(operator, name) for name in (running, "queued", "suspended", "by-spec")}
    await phase(process, uids["queued"], "Queued")
    await phase(process, uids["suspended"], "Suspended")
    for name in ("queued", "suspended"):
        named = {"id": uids[name], "namespace": operator.namespace, "name": name}
        assert await act(process, uids[name]) == (202, named | {"phase": "Cancelled"})
    assert (await act(process, uids[running]))[1]["phase"] == "Cancelling"
    (request,) = await llm.wait_for(lambda requests: requests if requests[0].end else None)
    assert request.end == "client closed"
    manifests_by_name = await operator.finished()
    for name, identity in uids.items():
        status = manifests_by_name[name]["status"]
        assert (status["phase"], status["message"]) == ("Cancelled", "cancelled by request")
        assert (await act(process, identity))[0] == 409
    assert len(llm.requests) == 1, "nothing was sent for the others"

    assert (await act(process, uids[running], "/chat", question="Why?"))[0] == 202
    await hanging(llm, 2)
    assert (await act(process, uids[running], "/chat/cancel"))[0] == 202
    async with patience.limit():
        while (status := (await process.request("DELETE", _purge(uids[running])))[0]) == 409:
            pass  # until the question has ended
    assert status == 204
    await operator.kubectl("wait", "--for=delete", f"inv/{running}", "--timeout=60s")
    assert (await process.request("GET", f"/api/v1/investigations/{uids[running]}"))[0] == 404
    _, again = await process.request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification())
    assert (again["alerts"][0]["outcome"], len(llm.requests)) == ("repeated", 2)
    assert await audits.audit_rows(operator.database_url) == [
        audits.row("create", running),
        audits.row("cancel", "queued"),
        audits.row("cancel", "suspended"),
        audits.row("cancel", running),
        audits.row("chat", running),
        audits.row("chat/cancel", running),
        audits.row("purge", running),
    ]
    assert "Traceback" not in process.log
    await process.stop()


def _purge(identity: str) -> str:
    return f"/api/v1/investigations/{identity}?purge=true"


async def test_once_the_lease_has_passed_the_cancel_itself_ends_it_and_a_worker_that_wakes_writes_nothing(
    operator: Operator, llm: model.Server
) -> None:
    """With no controller, and no other worker."""
    llm.script = lambda _call: model.Hang()
    await operator.apply(manifests.chain())
    process = await operator.start(role="api")
    worker = await operator.start(queue={"heartbeat": "1s"}, role="worker")
    body = json.dumps({"alert_type": "kubernetes", "data": "web-0 restarts"}).encode()
    _, made = await process.request("POST", "/api/v1/alerts", body=body)
    await hanging(llm)
    worker.send(signal.SIGSTOP)
    await operator.let_leases_pass()
    assert (await act(process, made["alert_id"]))[1]["phase"] == "Cancelled"
    worker.send(signal.SIGCONT)
    (request,) = await llm.wait_for(lambda requests: requests if requests[0].end else None)
    assert request.end == "client closed"
    await worker.logged("action=lease_lost")
    _, read = await process.request("GET", f"/api/v1/investigations/{made['alert_id']}")
    assert (read["phase"], read["message"]) == ("Cancelled", "cancelled by request")
    _, timeline = await process.request("GET", f"/api/v1/investigations/{made['alert_id']}/timeline")
    assert all(event["status"] != "streaming" for event in timeline["events"])
    name = made["name"]
    assert await audits.audit_rows(operator.database_url) == [audits.row(done, name) for done in ("create", "cancel")]


CUT_OFF = ("purge.commit.before", "purge.commit.after", "purge.delete.after")


@pytest.mark.parametrize(
    ("failpoint", "finishes"),
    [
        ("purge.commit.before", "a repeat"),
        ("purge.commit.after", "a repeat"),
        ("purge.delete.after", "a controller"),
    ],
)
async def test_purge_is_finished_after_its_process_dies_between_two_steps(
    operator: Operator, llm: model.Server, failpoint: str, finishes: str
) -> None:
    llm.script = lambda _call: model.Answer(text="root cause: opensesame")
    await operator.apply(manifests.chain(), manifests.investigation())
    first = await operator.start()
    await operator.finished("web-crash")
    identity = await uid(operator, "web-crash")
    await first.stop()
    dying = await operator.start(role="api", env={"TARSY_FAILPOINTS": f"{failpoint}=exit"})
    with pytest.raises((aiohttp.ClientError, OSError)):
        await dying.request("DELETE", _purge(identity))
    await dying.ended()
    audited = [audits.row("purge", "web-crash")]
    assert await audits.audit_rows(operator.database_url) == (audited if failpoint in CUT_OFF[1:] else [])

    process = await operator.start(role="api")
    if finishes == "a repeat":
        assert await process.request("DELETE", _purge(identity)) == (204, None)
    else:
        await operator.start(role="controller")
    await operator.kubectl("wait", "--for=delete", "inv/web-crash", "--timeout=60s")
    async with patience.limit():
        while (status := (await process.request("DELETE", _purge(identity)))[0]) == 204:
            pass  # until the controller has noted that it is gone
    assert status == 404
    assert (await process.request("GET", f"/api/v1/investigations/{identity}"))[0] == 404
    assert await audits.audit_rows(operator.database_url) == audited
    assert await count_in_log(operator, "opensesame") == 0


async def count_in_log(operator: Operator, what: str) -> int:
    """In how many entries of the log, and ends of runs, it is."""
    connection = await asyncpg.connect(operator.database_url)
    try:
        query = """
          SELECT (SELECT count(*) FROM entries WHERE CAST(entries AS text) LIKE $1)
            + (SELECT count(*) FROM runs WHERE CAST(runs AS text) LIKE $1)
        """
        return int(await connection.fetchval(query, f"%{what}%"))
    finally:
        await connection.close()
