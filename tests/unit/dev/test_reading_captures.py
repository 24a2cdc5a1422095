"""What the scripted investigator finds in answers of kubernetes-mcp-server about pods that failed on a real node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tarsy_dev.model import reading, script

KINDS: dict[str, set[reading.Kind]] = {
    "command": {"crash"},
    "crash": {"crash", "log"},
    "dns": {"crash", "log"},
    "image": {"image"},
    "memory": {"memory", "crash"},
    "policy": {"crash", "log"},
    "probe": {"probe"},
    "secret": {"configuration"},
    "selector": {"scheduling"},
    "size": {"scheduling"},
    "taint": {"scheduling"},
    "volume": {"scheduling"},
}


@pytest.mark.parametrize("name", KINDS)
def test_failure_of_a_real_pod_is_found(captures: Path, name: str) -> None:
    answers: dict[str, str] = json.loads((captures / "kubernetes-mcp-server" / f"{name}.json").read_text())
    found = set()
    for tool, answer in answers.items():
        call = script.Call(name=tool, args={"namespace": f"evidence-{name}", "name": "app-0"})
        found |= {finding.kind for finding in reading.findings(call, script.Result(name=tool, text=answer))}
    assert KINDS[name] <= found
