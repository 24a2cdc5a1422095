"""Checks that need parts of the operator: `tarsy config check --servers` and `tarsy check --pre`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tarsy.config.load import loader, settings
from tarsy.config.model import platforms
from tarsy.process import migration, server_check


def servers(platform_file: platforms.Platform) -> tuple[Sequence[server_check.ServerReport], Sequence[str]]:
    """Return a report on each MCP server, and the agents' tool patterns that match none of their tools.

    Connects to the servers as an operator would, for as long as that takes.
    """
    logging.getLogger("tarsy").addHandler(logging.NullHandler())  # the reports have all problems
    return asyncio.run(server_check.servers(platform_file))


def before(config: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield name, problem ("" if none) and remedy of the database, the platform file and each MCP server."""
    try:
        problem = asyncio.run(migration.problem(settings.database_url(os.environ)))
    except loader.ConfigError as error:
        problem = str(error)
    yield "database", problem, "set DATABASE_URL to a Postgres database that tarsy may create tables in"
    try:
        platform = loader.as_written(Path(config) if config else None).platform
    except loader.ConfigError as error:
        yield "platform file", str(error), "correct it, and check it with `tarsy config check`"
        return
    yield "platform file", "", ""
    for report in servers(platform)[0]:
        remedy = f"start it, or correct mcp_servers.{report.name} of the platform file"
        yield f"MCP server {report.name}", report.problem, remedy
