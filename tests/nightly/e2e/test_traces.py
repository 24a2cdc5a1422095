"""Traces of real operators, as a collector on loopback has them: after kills, of a question, and while it hangs."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import aiohttp
from support import collectors, manifests
from tarsy.store.base import databases
from tarsy.telemetry import spans
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

LEASE = timedelta(seconds=4)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "root cause 8b1a"


def script(model_call: model.Turn) -> model.Reply:
    if model_call.iteration == 0 and model_call.kind != "chat":
        return model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "web-0"}),))
    return model.Answer(text=SECRET)


async def test_operators_that_are_killed_twice_tell_one_trace_and_a_hanging_collector_holds_up_no_stop(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script
    notification = json.loads(manifests.notification())
    notification["alerts"] = notification["alerts"][:1]
    notification["alerts"][0]["annotations"]["traceparent"] = TRACEPARENT
    async with collectors.collector() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-a=1"}
        await operator.apply(manifests.chain("KubePodCrashLooping", name="crashes"))
        deaths = {"TARSY_FAILPOINTS": "journal.commit.after=exit@2"}
        first = await operator.start(lease=LEASE, env=variables | deaths)
        await operator.kubectl("wait", "chain/crashes", "--for=condition=Ready", "--timeout=60s")
        body = json.dumps(notification).encode()
        with contextlib.suppress(aiohttp.ClientError):  # it may end before it has answered
            assert (await first.request("POST", "/api/v1/webhooks/alertmanager", body=body))[0] == 200
        await first.ended()
        second = await operator.start(lease=LEASE, env=variables | {"TARSY_FAILPOINTS": "journal.commit.after=exit@1"})
        await second.ended()
        # The next one is killed after the commit that ends the run: no other takes that over.
        killed = await operator.start(lease=LEASE, env=variables | {"TARSY_FAILPOINTS": "journal.commit.after=exit@1"})
        await killed.ended()
        connection = await databases.connect(operator.database_url, command_timeout=30)
        await connection.execute("UPDATE catalogue SET seen_at = seen_at - interval '1 minute'")
        await connection.close()
        third = await operator.start(lease=LEASE, env=variables)
        ((_, manifest),) = (await operator.finished()).items()
        uid = manifest["metadata"]["uid"]
        async with collector.arrival:
            await collector.arrival.wait_for(
                lambda: spans.span_id(uid, 0).hex() in {span.span_id for span in collector.spans}
            )
        assert (manifest["status"]["phase"], manifest["status"]["attempts"]) == ("Completed", 3)
        question = json.dumps({"question": "which image?"}).encode()
        assert (await third.request("POST", f"/api/v1/investigations/{uid}/chat", body=question))[0] == 202
        is_told = {spans.span_id(uid, run).hex() for run in (0, 1)}
        async with collector.arrival:
            await collector.arrival.wait_for(lambda: is_told <= {span.span_id for span in collector.spans})

        by_id = {(span.trace_id, span.span_id): span for span in collector.spans}
        assert all(by_id[span.trace_id, span.span_id] == span for span in collector.spans)
        assert collectors.orphans(collector.spans) == []
        root, chat = (by_id[spans.trace_id(uid, run).hex(), spans.span_id(uid, run).hex()] for run in (0, 1))
        assert {trace for trace, _ in by_id} == {root.trace_id, chat.trace_id}
        assert [reason for _, _, reason in root.links] == ["alert"]
        assert chat.links == ((root.trace_id, root.span_id, "investigation"),)
        (tool,) = [span for span in by_id.values() if span.name == "execute_tool tools.lookup"]
        assert tool.trace_id == root.trace_id
        assert SECRET not in repr(collector.spans), "contents are left out"
        assert {headers["x-a"] for headers in collector.headers} == {"1"}

        collector.hangs = True
        before = len(collector.headers)
        assert (await third.request("POST", f"/api/v1/investigations/{uid}/chat", body=question))[0] == 202
        await collector.is_asked(before + 1)
        await third.stop()
        assert "spans were not sent: the process stops" in third.log
