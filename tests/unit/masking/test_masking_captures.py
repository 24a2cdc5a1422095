"""Answers of kubernetes-mcp-server about pods that failed on a real node: nothing in them is a secret."""

from __future__ import annotations

import json
from pathlib import Path

from tarsy.config.model import platforms
from tarsy.masking import known_secrets


def test_answers_about_failing_pods_are_not_masked(captures: Path) -> None:
    settings = platforms.MCPServer.model_validate({"transport": {"type": "stdio", "command": "kubernetes-mcp-server"}})
    masker = settings.data_masking.masker(known_secrets.KnownSecrets())
    files = sorted((captures / "kubernetes-mcp-server").glob("*.json"))
    assert len(files) > 10
    for file in files:
        for tool, answer in json.loads(file.read_text()).items():
            assert masker.text(answer) == answer, f"{file.name}: {tool}"
