"""`tarsy config check --servers`, with a real MCP server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_servers_are_connected_to_and_their_tools_are_listed(tmp_path: Path) -> None:
    path = "{PYTHONPATH: '{{.PYTHONPATH}}'}"
    server = f"{{type: stdio, command: {sys.executable}, args: [-m, tarsy_dev.mcp_server, --stdio], env: {path}}}"
    file = tmp_path / "tarsy.yaml"
    file.write_text(
        f"mcp_servers:\n  kubernetes-server: {{transport: {server}}}\n"
        "  gone: {transport: {type: stdio, command: /no/such/program}}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", "from tarsy.cli.main import main; main()", "config", "check", "--servers", file],
        capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ended.returncode == 1
    assert re.search(r"^kubernetes-server: \d+ tools: .*\blookup, slow\b", ended.stdout, re.MULTILINE), ended.stdout
    assert ended.stderr.startswith("gone: cannot be reached: ")
    assert len(ended.stderr.splitlines()) == 1
