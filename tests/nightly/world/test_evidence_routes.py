"""All outputs of all scenarios of ours, by every way to a reader: none is lost, no secret is shown; docs/quality.md."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from tarsy.config.model import platforms
from tarsy.evaluation import scenarios, world_platform, world_server, worlds
from tarsy.masking import known_secrets
from tarsy.tools.servers import pool
from tarsy.transcript import messages, ports
from tarsy_dev import tools

from bench import evidence


@pytest.mark.timeout(600)
async def test_no_output_of_a_scenario_is_lost_on_any_way_and_the_docs_have_the_figures() -> None:
    known = scenarios.find([tools.ROOT / "scenarios"])
    shown = await evidence.outputs(known)
    assert len(shown) == sum(len(scenario.document.evidence) for scenario in known)
    for output in shown:
        assert "[withheld: " not in output.text
        secrets = next(each for each in known if each.name == output.scenario).document.secrets
        assert ("Secret\n" in output.text and bool(secrets)) <= ("[MASKED:secret]" in output.text), output
    figures = [await evidence.measure(route, known, shown) for route in evidence.ROUTES]
    for each in figures:
        assert (each.lost, sum(each.states.values())) == ([], len(shown)), each.route
    page = (tools.ROOT / "docs" / "quality.md").read_text()
    assert evidence.table(figures) in page, "run python -m bench.evidence and put its table into docs/quality.md"


async def test_fingerprints_tell_the_old_copy_of_a_token_from_the_others(tmp_path: Path) -> None:
    """The three Secrets differ in nothing else: without fingerprints they are the same text."""
    world = worlds.load(tools.ROOT / "scenarios" / "three-copies" / "world")
    written = {"mcp_servers": {scenarios.SERVER: {"data_masking": {"enabled": True, "fingerprints": True}}}}
    command, kubeconfig = str(tools.kubernetes_mcp_server()), tmp_path / "kubeconfig"
    content = world_platform.for_world(written, kubeconfig=kubeconfig, command=command)
    servers = pool.Pool(platforms.Platform.model_validate(content), secrets=known_secrets.KnownSecrets())

    async def ensured() -> None:
        pass

    async with world_server.serve(world, kubeconfig=kubeconfig):
        running = asyncio.create_task(servers.run())
        try:
            await servers.tools.wait_tried()
            async with servers.tools.toolbox([scenarios.SERVER], lambda _: True) as toolbox:
                scope = ports.Scope(execution="one", investigation="one", ensure_lease=ensured)
                markers = {}
                for namespace in ("tokens", "kitchen", "cellar"):
                    secret = {"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "broker-token"}
                    name = f"{scenarios.SERVER}.resources_get"
                    called = messages.ToolCall(id="0.0", name=name, arguments=json.dumps(secret))
                    output = await toolbox.call(called, scope)
                    markers[namespace] = set(re.findall(r"\[MASKED:\w+:[0-9a-f]{4}\]", output.text))
        finally:
            running.cancel()
            await asyncio.wait([running])
    assert [len(found) for found in markers.values()] == [1, 1, 1]
    assert markers["tokens"] == markers["kitchen"] != markers["cellar"]
