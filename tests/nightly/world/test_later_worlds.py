"""The texts that stand for kubernetes-mcp-server in the tests of rechecks, held to those of the real program."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from support import later_worlds, leases
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.engine.comparison import results, tables, trees
from tarsy.evaluation import scenarios, world_platform, world_server, worlds
from tarsy.tools.servers import pool
from tarsy.transcript import messages, ports
from tarsy_dev import tools

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


def parsed(form: results.Form, text: str) -> object:
    """A text as it is compared, without the fractions of seconds of events."""
    if form == "list":
        return tables.parse(text)
    if form == "events":
        events = yaml.safe_load(text.removeprefix(later_worlds.EVENTS))
        return [event | {"Timestamp": event["Timestamp"][:19]} for event in events]
    return trees.parse(text) if form == "object" else text


@pytest.mark.parametrize("scenario", ["memory-limit", "finished-job"])
async def test_texts_of_a_world_are_those_of_the_real_program(scenario: str, tmp_path: Path) -> None:
    world = worlds.load(tools.ROOT / "scenarios" / scenario / "world", now=later_worlds.THEN)
    kubeconfig, command = tmp_path / "kubeconfig", str(tools.kubernetes_mcp_server())
    content = world_platform.for_world({"mcp_servers": {scenarios.SERVER: {}}}, kubeconfig=kubeconfig, command=command)
    servers = pool.Pool(platforms.Platform.model_validate(content), secrets=NO_SECRETS)
    async with world_server.serve(world, kubeconfig=kubeconfig):
        running = asyncio.create_task(servers.run())
        try:
            await servers.tools.wait_tried()
            async with servers.tools.toolbox([scenarios.SERVER], lambda _: True) as toolbox:
                for read, text in (later_worlds.lists(world) | later_worlds.objects(world)).items():
                    arguments = json.dumps({name: value == "true" or value for name, value in read.arguments})
                    name = f"{scenarios.SERVER}.{read.tool}"
                    output = await toolbox.call(messages.ToolCall(id="0.0", name=name, arguments=arguments), SCOPE)
                    assert "[MASKED:" in output.text or parsed(read.form, output.text) == parsed(read.form, text), read
        finally:
            running.cancel()
            await asyncio.wait([running])
