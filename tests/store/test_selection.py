"""Tools that an alert selects for its agents: they stand in the log from its admission on, for every worker and for
people.
"""

from __future__ import annotations

import json

from support import queue
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.store.reads import summaries
from tarsy.transcript import entries, timeline

MCP = {"servers": [], "tools": {"deny": ["*.größe\x00"]}, "nativeTools": {"google_search": False}}
KEPT = investigations.MCP.model_validate({**MCP, "tools": {"deny": ["*.größe\ufffd"]}})


async def test_each_worker_reads_what_the_alert_selected_and_its_first_claim_is_no_takeover(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database, queue.subject(mcp=MCP))
    for takeovers in range(2):
        claim = await queue.claimed(database)
        journal = await queue.opened(database, claim)
        assert journal.record.mcp == KEPT
        await journal.commit(entries.StageStarted(stage=f"stage-{takeovers}", clock=0.0))
        events = timeline.fold(await queue.log(database, identity))
        assert [event.type for event in events] == ["mcp_selection", *["resumed"] * takeovers]
        await queue.let_leases_pass(database)
    (first, *_) = await queue.log(database, identity)
    assert (first.seq, first.run, first.entry) == (1, 0, entries.ToolsSelected(mcp=KEPT))
    head = await summaries.details(database, identity, runs=1)
    assert head is not None
    assert head.mcp == KEPT


async def test_every_process_reads_the_latest_tools_of_servers(database: databases.Database) -> None:
    offered = [{"name": "get", "read_only": True, "description": ""}, {"name": "exec", "read_only": False}]
    for process, seconds, tools in (("1", 1, offered[:1]), ("2", 2, offered)):
        stopped = json.dumps({"stopped": [{"tool": "run", "pinned": "", "offered": "1"}]})
        details = ("process", "p", "{}"), ("tools", "k8s", json.dumps({"tools": tools})), ("server", "k8s", stopped)
        for kind, name, detail in details:
            await queue.execute(
                database,
                "INSERT INTO catalogue (process, kind, name, state, since, seen_at, detail) VALUES "
                "(CAST(:process AS uuid), :kind, :name, 'listed', to_timestamp(:seconds), clock_timestamp(), "
                "CAST(:detail AS json))",
                process=f"00000000-0000-0000-0000-00000000000{process}",
                kind=kind,
                name=name,
                seconds=seconds,
                detail=detail,
            )
    listed = await catalogue.tools_by_server(database)
    assert {name: [(tool.name, tool.read_only, tool.stopped) for tool in tools] for name, tools in listed.items()} == {
        "k8s": [("get", True, False), ("exec", False, False), ("run", True, True)]
    }
