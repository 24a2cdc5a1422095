"""Real scrapes of real operators: what happened is counted, replicas add up, and no name from an alert is a label."""

from __future__ import annotations

import contextlib
import signal
import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest
from support import manifests, scrapes
from tarsy.telemetry import metrics
from tarsy_dev import children, mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

LOOKUP = model.Call(name="tools__lookup", args={"name": "web-0"})
INVENTED = model.Call(name="tools__invented_by_web_0", args={})


def replies(model_call: model.Turn) -> model.Reply:
    """Refuse the first request, call a tool and one that is not there, then conclude."""
    if model_call.iteration == 0 and model_call.repeats == 0:
        return model.HttpError(status=503, retry_after=0)
    if model_call.iteration == 0:
        return model.Answer(calls=(LOOKUP, INVENTED), thoughts="I look.")
    return model.Answer(text="web-0 lacks its database [tool 0.0]")


async def test_metrics_are_there_before_the_database_is(operator: Operator) -> None:
    (nobody,) = children.free_ports(1)
    process = await operator.start(env={"DATABASE_URL": f"postgresql://tarsy@127.0.0.1:{nobody}/tarsy"}, waits=True)
    status, _ = await process.request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification())
    text = await process.scrape()
    assert status == 503
    assert scrapes.total(text, "tarsy_database_up") == 0
    assert scrapes.total(text, "tarsy_webhook_answers_total", format="alertmanager", code="503") == 1
    assert scrapes.total(text, "tarsy_build_info", roles="api,controller,worker") == 1
    assert scrapes.total(text, "process_resident_memory_bytes")
    assert scrapes.total(text, "tarsy_investigations") is None


async def test_events_are_counted_replicas_add_up_and_no_label_has_a_name_from_an_alert(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = replies
    priced = {"scripted": {"price": {"input": 1, "output": 2}}}
    processes = [await operator.start(providers=priced) for _ in range(2)]
    await operator.apply(manifests.chain("KubePodCrashLooping", name="crashes"))
    await operator.kubectl("wait", "chain/crashes", "--for=condition=Ready", "--timeout=60s")
    status, _ = await processes[0].request("POST", "/api/v1/webhooks/alertmanager", body=manifests.notification())
    assert status == 200
    refused, _ = await processes[0].request("POST", "/api/v1/webhooks/alertmanager", body=b"{")
    assert refused == 400
    ((_, manifest),) = (await operator.finished()).items()
    assert manifest["status"]["phase"] == "Completed"

    async def both() -> str:
        return "".join([await process.scrape() for process in processes])

    def is_read(text: str) -> bool:
        return bool(scrapes.total(text, "tarsy_investigations", phase="Completed"))

    def are_both_up(text: str) -> bool:
        return is_read(text) and [
            scrapes.total(text, "tarsy_mcp_server_up", server="tools"),
            scrapes.total(text, "tarsy_provider_up", provider="scripted"),
            scrapes.total(text, "tarsy_watch_closed_seconds"),
            scrapes.total(text, "tarsy_database_up"),
        ] == [2, 2, 0, 2]

    def is_counted(text: str) -> bool:
        # What a worker counts last, after the commit that the status and the leader's gauges tell of.
        return are_both_up(text) and scrapes.total(text, "tarsy_iteration_seconds_count") == 2

    async def count_leaders() -> int:
        return [scrapes.total(await replica.scrape(), "tarsy_table_bytes") is not None for replica in processes].count(
            True
        )

    text = await scrapes.until(both, is_counted)
    assert scrapes.total(text, "tarsy_investigations") == 1
    assert scrapes.total(text, "tarsy_investigations", chain="crashes", reason="StagesCompleted") == 1
    assert await count_leaders() == 1
    tools = {"server": "tools", "tool": "lookup"}
    asked = {"provider": "scripted", "model": "gemini-2.5-flash"}
    for name, labels, amount in (
        ("tarsy_model_calls_total", {**asked, "chain": "crashes", "outcome": "answered"}, 2),
        ("tarsy_model_calls_total", {**asked, "outcome": "fatal"}, 0),
        ("tarsy_model_request_errors_total", {**asked, "code": "503"}, 1),
        ("tarsy_model_retries_total", asked, 1),
        ("tarsy_model_slot_wait_seconds_count", {"provider": "scripted"}, 3),
        ("tarsy_tool_calls_total", {**tools, "outcome": "answered"}, 1),
        ("tarsy_tool_call_seconds_count", tools, 1),
        ("tarsy_tool_slot_wait_seconds_count", {"server": "tools"}, 1),
        ("tarsy_mcp_server_up", {"server": "tools"}, 2),
        ("tarsy_mcp_tools_drifted", {"server": "tools"}, 0),
        ("tarsy_provider_up", {"provider": "scripted"}, 2),
        ("tarsy_webhook_answers_total", {"format": "alertmanager", "code": "200"}, 1),
        ("tarsy_webhook_answers_total", {"format": "alertmanager", "code": "400"}, 1),
        ("tarsy_webhook_alerts_total", {"outcome": "created"}, 1),
        ("tarsy_alert_to_first_model_call_seconds_count", {}, 1),
        ("tarsy_investigation_seconds_count", {"chain": "crashes", "ending": "Completed"}, 1),
        ("tarsy_stage_seconds_count", {"chain": "crashes", "outcome": "Completed"}, 1),
        ("tarsy_iteration_seconds_count", {}, 2),
        ("tarsy_claims_total", {}, 1),
        ("tarsy_takeovers_total", {}, 0),
        ("tarsy_database_up", {}, 2),
        ("tarsy_platform_file_valid", {}, 2),
        ("tarsy_watch_closed_seconds", {}, 0),
    ):
        assert scrapes.total(text, name, **labels) == amount, (name, labels)
    for name in ("tarsy_model_tokens_total", "tarsy_model_cost_total", "tarsy_database_seconds_count"):
        assert scrapes.total(text, name), name
    values = scrapes.label_values(text)
    for secret in ("web-0", "shop", "KubePodCrashLooping", manifest["metadata"]["name"], manifest["metadata"]["uid"]):
        assert not [value for value in values if secret in value], secret
    assert not [value for value in values if "invented" in value]
    exported = set(scrapes.names(text))
    assert {metric.name.removesuffix("_total") for metric in metrics.all_metrics()} - exported <= {
        "tarsy_model_fallbacks",
        "tarsy_model_rate_limit_wait_seconds",
        "tarsy_masking_withheld",
        "tarsy_platform_reloads",
    }, "those are there once something has happened"
    if scrapes.PROMTOOL:
        assert await scrapes.promtool("check", "metrics", stdin=await processes[0].scrape()) == (0, "")

    (leader,) = [
        replica for replica in processes if scrapes.total(await replica.scrape(), "tarsy_table_bytes") is not None
    ]
    (follower,) = [replica for replica in processes if replica is not leader]
    leader.send(signal.SIGTERM)
    await leader.ended()
    text = await scrapes.until(follower.scrape, is_read)
    assert scrapes.total(text, "tarsy_investigations") == 1


async def test_metrics_listener_serves_only_metrics(operator: Operator) -> None:
    process = await operator.start(role="worker")
    url = await process.metrics_url()
    async with aiohttp.ClientSession() as session:
        for method, path, status in (("GET", "/", 404), ("GET", "/readyz", 404), ("POST", "/metrics", 405)):
            async with session.request(method, f"{url}{path}") as response:
                assert response.status == status
        async with session.get(f"{process.url}/metrics") as response:
            assert response.status == 404, "the API's address has no metrics"
    assert (await scrapes.text(url, accept="application/openmetrics-text")).endswith("# EOF\n")


async def test_configured_metrics_address_in_use_is_an_error_but_default_is_skipped(
    operator: Operator,
) -> None:
    process = await operator.start(role="worker")
    taken = (await process.metrics_url()).removeprefix("http://")
    with pytest.raises(children.ChildError, match=f"Error: --metrics-listen: {taken}: Address already in use"):
        await operator.start(role="worker", metrics=taken)
    assert "metrics on" not in (await operator.start(role="worker", metrics="off")).log
    with socket.socket() as default:
        # As the operator's own socket: connections that have ended keep it from nothing.
        default.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # another program has it already
            default.bind(("127.0.0.1", metrics.PORT))
            default.listen()
        second = await operator.start(role="worker", metrics=None)
        problem = f"--metrics-listen: 127.0.0.1:{metrics.PORT}: Address already in use"
        assert f"no metrics are served: {problem}" in second.log
