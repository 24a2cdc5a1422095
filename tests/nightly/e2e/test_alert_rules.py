"""Each alert about TARSy itself, fired by breaking the thing: promtool judges what was scraped of real operators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support import alert_rules, manifests, queue, scrapes
from support.alert_rules import Scraped, alert
from tarsy.store.base import databases
from tarsy_dev import children, mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = scrapes.WITH_PROMTOOL
WEBHOOK = "/api/v1/webhooks/alertmanager"


async def run(operator: Operator, *names: str) -> None:
    """Have investigations run to their ends."""
    await operator.apply(*(manifests.investigation(name) for name in names))
    await operator.finished(*names)


async def scraped(process: Process, name: str, *, above: float = -1, **labels: str) -> str:
    """A scrape in which that metric is above a number."""
    return await scrapes.until(
        process.scrape, lambda text: any(value > above for value in scrapes.samples(text, name, **labels))
    )


async def settled(process: Process) -> str:
    """A scrape with what the database knows, and without a status that is being written."""

    def is_settled(text: str) -> bool:
        return bool(scrapes.total(text, "tarsy_table_bytes")) and not scrapes.total(
            text, "tarsy_status_oldest_unwritten_seconds"
        )

    return await scrapes.until(process.scrape, is_settled)


async def test_defect_in_a_process_fires_its_alert_and_no_other(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, tmp_path: Path
) -> None:
    """Its model refuses, a server and a receiver are away, a tool is not what was pinned, its file is broken."""
    (nobody,) = children.free_ports(1)
    tools = {"transport": {"type": "http", "url": toolbox.url}}
    operator.configure(mcp_servers={"kubernetes-server": None})  # its program is not on every machine's PATH
    healthy = await operator.start()
    await operator.apply(manifests.chain())
    llm.script = lambda _: model.Answer(text="root cause")
    await run(operator, "well-1")
    well = await settled(healthy)
    alert_rules.judge_scrapes(tmp_path, [Scraped("tarsy", well, well)], set())
    alert_rules.judge_scrapes(tmp_path, [Scraped("tarsy", well, "")], {alert("TARSyDown", namespace="tarsy")})
    await healthy.stop()

    operator.configure(
        mcp_servers={
            "gone": {"transport": {"type": "http", "url": f"http://127.0.0.1:{nobody}/mcp"}},
            "tools": {**tools, "tool_hashes": {"lookup": f"sha256:{'0' * 64}"}},
        },
        deliveries={"hook": {"type": "webhook", "url": f"http://127.0.0.1:{nobody}/hook"}},
    )
    process = await operator.start()
    before = await settled(process)
    llm.script = lambda _: model.HttpError(status=401, message="the key was revoked")
    await run(operator, "ill-1", "ill-2", "ill-3")
    for _ in range(2):
        status, _ = await process.request("POST", WEBHOOK, body=manifests.notification(), token="another")
        assert status == 401
    (tmp_path / "tarsy-1.yaml").write_text("queue: none")
    await process.logged("platform_invalid")
    await scraped(process, "tarsy_mcp_tools_drifted", above=0, server="tools")
    await scraped(process, "tarsy_deliveries_total", above=0, receiver="hook", outcome="failed")
    after = await settled(process)
    expected = {
        alert("TARSyProviderDown", namespace="tarsy", provider="scripted"),
        alert("TARSyInvestigationsFail", namespace="tarsy"),
        alert("TARSyMCPServerDown", namespace="tarsy", server="gone"),
        alert("TARSyToolsDrifted", namespace="tarsy", server="tools"),
        alert("TARSyWebhookRefused", namespace="tarsy", code="401"),
        alert("TARSyPlatformFileInvalid", namespace="tarsy"),
        alert("TARSyDeliveriesFail", namespace="tarsy", receiver="hook"),
    }
    alert_rules.judge_scrapes(tmp_path, [Scraped("tarsy", before, after)], expected)


async def test_defect_around_processes_fires_its_alert_and_no_other(
    operator: Operator, unreachable: str, tmp_path: Path
) -> None:
    """A queue without workers, workers that died, a cluster and a database that are away, no controller."""
    operator.configure(mcp_servers={"kubernetes-server": None})  # its program is not on every machine's PATH
    controller = await operator.start(role="controller")
    before = await scraped(controller, "tarsy_table_bytes")
    await operator.apply(manifests.chain(), manifests.investigation())
    await scraped(controller, "tarsy_queue_length", above=0)
    database = databases.Database(operator.database_url)
    try:
        dated = "UPDATE work SET queued_at = queued_at - interval '10 min', attempts_without_progress = 4, stale = true"
        await queue.execute(database, dated)
        await scraped(controller, "tarsy_attempts_without_progress", above=3)
        waits = await settled(controller)
        await controller.stop()
        cut = await operator.start(role="controller", env={"KUBECONFIG": unreachable}, waits=True)
        await scraped(cut, "tarsy_table_bytes", above=0)
        await queue.execute(database, dated)
        without_cluster = await scraped(cut, "tarsy_status_oldest_unwritten_seconds", above=0)
        await cut.kill()
        worker = await operator.start(role="worker")
        await scraped(worker, "tarsy_database_up", above=0)
        alone = await scraped(worker, "tarsy_mcp_server_up", above=0, server="tools")
        await worker.stop()
    finally:
        await database.close()
    (nobody,) = children.free_ports(1)
    waiting = await operator.start(env={"DATABASE_URL": f"postgresql://tarsy@127.0.0.1:{nobody}/tarsy"}, waits=True)
    without_database = await waiting.scrape()

    queued = {alert("TARSyQueueOld", namespace="queue"), alert("TARSyTakeovers", namespace="queue", chain="kubernetes")}
    also_queued = {
        alert("TARSyQueueOld", namespace="cluster"),
        alert("TARSyTakeovers", namespace="cluster", chain="kubernetes"),
    }
    for state, expected in (
        (Scraped("queue", before, waits), queued),
        (
            Scraped("cluster", before, without_cluster),
            {alert("TARSyWatchClosed", namespace="cluster"), alert("TARSyStatusesBehind", namespace="cluster")}
            | also_queued,
        ),
        (Scraped("worker", before, alone), {alert("TARSyNoDuties", namespace="worker")}),
        (Scraped("database", before, without_database), {alert("TARSyDatabaseAway", namespace="database")}),
    ):
        alert_rules.judge_scrapes(tmp_path, [state], expected)
