"""`tarsy config check --servers`: connects to MCP servers as an operator would, for as long as that takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tarsy.config.model import platforms
from tarsy.process import server_check


def servers(platform_file: platforms.Platform) -> tuple[Sequence[server_check.ServerReport], Sequence[str]]:
    """Return a report on each MCP server, and the agents' tool patterns that match none of their tools."""
    logging.getLogger("tarsy").addHandler(logging.NullHandler())  # the reports say it all
    return asyncio.run(server_check.servers(platform_file))
