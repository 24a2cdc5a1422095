"""`tarsy config check --servers`, with a real MCP server, one of whose tools is not what the file says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_servers_are_connected_to_and_their_tools_are_listed_with_those_that_are_not_offered(tmp_path: Path) -> None:
    path = "{PYTHONPATH: '{{.PYTHONPATH}}'}"
    server = f"{{type: stdio, command: {sys.executable}, args: [-m, tarsy_dev.mcp_server, --stdio], env: {path}}}"
    file = tmp_path / "tarsy.yaml"
    file.write_text(
        f"mcp_servers:\n  kubernetes-server: {{transport: {server}, write_tools: [lab*, stop], tools: {{deny: [fl*]}},"
        f" tool_hashes: {{slow: 'sha256:{64 * '0'}', lokup: 'sha256:{64 * '0'}'}}}}\n"
        "  gone: {transport: {type: stdio, command: /no/such/program}}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", "from tarsy.cli.main import main; main()", "config", "check", "--servers", file],
        capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ended.returncode == 1
    assert re.search(r"^kubernetes-server: \d+ tools: .*\blookup\b", ended.stdout, re.MULTILINE), ended.stdout
    assert "slow" not in ended.stdout
    withheld, left_out = ended.stdout.splitlines()[-2:]
    assert withheld.startswith("kubernetes-server: has tools that are not offered, because they may write, ")
    assert withheld.endswith("write_tools does not name them: restart, unannotated")
    assert left_out.endswith("mcp_servers.kubernetes-server.tools leaves them out: flaky, flood")
    gone, changed, mistyped, differs, none = sorted(ended.stderr.splitlines())
    assert gone.startswith("gone: cannot be reached: ")
    assert "has 1 tool that is stopped, because it is not what it has to be: slow (" in changed
    key = "kubernetes-server: mcp_servers.kubernetes-server."
    assert re.fullmatch(
        rf"{key}tool_hashes.slow says sha256:0{{64}}, the server offers sha256:[0-9a-f]{{64}}: change it there", differs
    ), differs
    assert mistyped.startswith(f"{key}tool_hashes names tools that it does not have: lokup. It has: ")
    assert "lookup" in mistyped
    assert none.startswith(f"{key}write_tools names tools that it does not have: stop. It has: ")
