"""The founding documents' own files, converted by the command, applied as they came out, and run."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tarsy_dev import mcp_server, model, tools

if TYPE_CHECKING:
    from support.operators import Operator

FOUNDING = tools.ROOT / "tests/founding"
ANSWER = "Thought: I have seen enough.\nFinal Answer: The node has no memory left."
"""A final answer in both dialects."""


ENVIRONMENT = {
    "MCP_TOKEN": "any",
    "OPENAI_MODEL": "gpt-5.1",
    "GOOGLE_APPLICATION_CREDENTIALS": "/credentials.json",
    "GOOGLE_CLOUD_LOCATION": "europe-west1",
    "GOOGLE_CLOUD_PROJECT": "any",
}
"""What the files' variables stand for."""


async def converted(*names: str, folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """The platform file and the manifests that `tarsy chain convert` writes."""
    found = [str(FOUNDING / f"{name}.yaml") for name in names]
    program = Path(sys.executable).with_name("tarsy")
    running = await asyncio.create_subprocess_exec(
        program,
        "chain",
        "convert",
        *found,
        "-o",
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    written, said = await running.communicate()
    assert running.returncode == 0, said.decode()
    platform = yaml.safe_load((folder / "tarsy.yaml").read_text())
    return platform, [Path(line) for line in written.decode().splitlines() if not line.endswith("/tarsy.yaml")]


@pytest.mark.parametrize(
    "names",
    [
        ["security-incident"],
        ["sequential-chains"],
        ["strategy-chains", "strategy-agents", "strategy-rest"],
        ["tarsy", "llm-providers"],
    ],
    ids=lambda names: names[0],
)
async def test_a_founding_file_is_converted_applied_and_run(
    names: list[str], operator: Operator, llm: model.Server, toolbox: mcp_server.Server, tmp_path: Path
) -> None:
    """Of what comes out only what is of another place is changed: where models and servers are, and the keys."""
    platform, manifests = await converted(*names, folder=tmp_path / "converted")
    for provider in platform.get("llm_providers", {}).values():
        if provider["type"] == "vertexai":  # no chain asks it, and it has no key
            continue
        root = llm.url if provider["type"] in ("google", "anthropic") else f"{llm.url}/v1"
        provider |= {"base_url": root, "api_key_env": "MODEL_KEY"}
    servers = {*platform.get("mcp_servers", {}), "kubernetes-server"}
    for name in servers:
        server = platform.setdefault("mcp_servers", {}).setdefault(name, {})
        server["transport"] = {"type": "http", "url": toolbox.url}
    platform.get("defaults", {}).setdefault("llm_provider", "scripted")
    operator.configure(**platform)
    llm.script = lambda _turn: model.Answer(text=ANSWER)
    process = await operator.start(queue=platform.get("queue"), limits=platform.get("limits"), env=ENVIRONMENT)
    types = []
    for manifest in manifests:
        chain = yaml.safe_load(manifest.read_text())
        await operator.kubectl("apply", "-f", str(manifest))
        types.append(chain["spec"]["alertTypes"][0])
    for alert_type in types:
        body = json.dumps({"alert_type": alert_type, "data": "memory of node n1"}).encode()
        status, said = await process.request("POST", "/api/v1/alerts", body=body)
        assert status == 202, said
    phases = {one["spec"]["alertType"]: one["status"]["phase"] for one in (await operator.finished()).values()}
    assert phases == dict.fromkeys(types, "Completed")
