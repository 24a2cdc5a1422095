"""Ports for servers that can only be told one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tarsy_dev import children, tools

ASKS = "import json; from tarsy_dev import children; print(json.dumps(children.free_ports(300)), flush=True); input()"


def test_no_port_is_given_twice_nor_to_two_processes_nor_is_it_one_that_connections_get() -> None:
    ours = {*children.free_ports(300), *children.free_ports(300)}
    path = {"PYTHONPATH": str(tools.ROOT / "dev")}
    with subprocess.Popen([sys.executable, "-c", ASKS], stdin=-1, stdout=-1, text=True, env=path) as other:
        assert other.stdout
        theirs = set(json.loads(other.stdout.readline()))
        again = set(children.free_ports(300))
        other.communicate("\n")
    assert len(ours | theirs | again) == 1200
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest for port in ours | theirs | again)
