"""A log with an entry that this version does not know: its run waits for one that does, and people can see why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

NEWER = """
from tarsy.transcript import entries, entry_versions

def greeting(body, opaque, columns):
    return entries.ToolsAnswered(execution=columns["execution"], runs=())

entry_versions.DECODERS["Greeting", 7] = greeting
"""
"""A version of TARSy that knows one kind more; it says nothing to the conversation."""

WRITE = """
    WITH last AS (
      SELECT investigation, seq, claim, run, stage, execution FROM entries
      WHERE investigation = (SELECT id FROM investigations WHERE name = $1) AND execution <> ''
      ORDER BY seq DESC LIMIT 1
    ), moved AS (
      UPDATE work SET log_seq = log_seq + 1 FROM last WHERE work.investigation = last.investigation
    )
    INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
    SELECT investigation, seq + 1, claim, 'Greeting', 7, run, stage, execution, '{"hello": "there"}' FROM last
"""


async def test_an_entry_of_an_unknown_kind_parks_its_run_for_a_version_that_knows_it(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, tmp_path: Path
) -> None:
    names = ["to-go-on", "to-cancel"]
    llm.script = lambda _call: model.Hang()
    first = await operator.start()
    await operator.apply(manifests.chain(), *(manifests.investigation(name) for name in names))
    await llm.wait_for(lambda requests: len(requests) >= 2)
    await first.kill()
    await operator.let_leases_pass()
    connection = await asyncpg.connect(operator.database_url)
    try:
        for name in names:
            await connection.execute(WRITE, name)
    finally:
        await connection.close()

    llm.script = model.answers("root cause: a bad image")
    second = await operator.start()
    for name in names:
        await operator.kubectl("wait", f"inv/{name}", "--for=jsonpath={.status.phase}=Suspended", "--timeout=240s")
    manifest = json.loads(await operator.kubectl("get", "inv", "to-go-on", "-o", "json"))
    assert "entry 3 (kind 'Greeting', version 7)" in manifest["status"]["message"]
    (waiting,) = [condition for condition in manifest["status"]["conditions"] if condition["type"] == "Reconciling"]
    assert waiting["reason"] == "Suspended"
    assert waiting["message"].endswith(f"; {manifest['status']['message']}")
    path = f"/api/v1/investigations/{manifest['metadata']['uid']}"
    status, read = await second.request("GET", path)
    assert (status, read["phase"]) == (200, "Suspended")
    assert [(entry["seq"], entry["kind"], entry["version"]) for entry in read["unreadable"]] == [(3, "Greeting", 7)]
    assert read["waits_for"] == manifest["status"]["message"]
    status, page = await second.request("GET", f"{path}/timeline")
    assert (status, [event["type"] for event in page["events"]]) == (200, ["error"])

    await operator.kubectl("patch", "inv", "to-cancel", "--type=merge", "--patch", '{"spec":{"cancel":true}}')
    assert (await operator.finished("to-cancel"))["to-cancel"]["status"]["phase"] == "Cancelled"

    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "sitecustomize.py").write_text(NEWER)
    newer = await operator.start(env={"PYTHONPATH": str(tmp_path / "newer")}, as_installed=True)
    status = (await operator.finished("to-go-on"))["to-go-on"]["status"]
    assert (status["phase"], status["finalAnalysis"]) == ("Completed", "root cause: a bad image")
    await second.stop()
    await newer.stop()
