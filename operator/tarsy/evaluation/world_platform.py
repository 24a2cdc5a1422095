"""The platform file of a worker that looks at a world: the user's, with the world in the place of the cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarsy.config.load import builtin
from tarsy.evaluation import scenarios

_KUBECONFIG = "--kubeconfig"


def for_world(written: Mapping[str, Any] | None, *, kubeconfig: Path, command: str | None = None) -> dict[str, Any]:
    """Return the content of a platform file in which `kubernetes-server` reads the cluster of `kubeconfig`.

    All other MCP servers are left out, because a world has no answers for them. Settings of the server, such as its
    masking and its instructions, are kept. `command` replaces its program, if it is set.
    """
    content: dict[str, Any] = copy.deepcopy(dict(written or {}))
    own = (content.get("mcp_servers") or {}).get(scenarios.SERVER) or {}
    settings = {**builtin.PLATFORM["mcp_servers"][scenarios.SERVER], **own}
    transport = settings["transport"]
    if transport.get("type") != "stdio":
        transport = builtin.PLATFORM["mcp_servers"][scenarios.SERVER]["transport"]
    arguments = list(transport.get("args") or ())
    if _KUBECONFIG in arguments:
        at = arguments.index(_KUBECONFIG)
        del arguments[at : at + 2]
    arguments = [each for each in arguments if not str(each).startswith(f"{_KUBECONFIG}=")]
    settings["transport"] = {
        **transport,
        "command": command or transport["command"],
        "args": [*arguments, _KUBECONFIG, str(kubeconfig)],
    }
    content["mcp_servers"] = {scenarios.SERVER: settings}
    for agent in (content.get("agents") or {}).values():
        if isinstance(agent, dict) and agent.get("mcp_servers"):
            agent["mcp_servers"] = [name for name in agent["mcp_servers"] if name == scenarios.SERVER]
    return content
