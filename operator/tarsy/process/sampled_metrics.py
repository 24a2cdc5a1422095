"""Gauges of the parts of this process, from the facts that it reports of them."""

from __future__ import annotations

from tarsy.process.runtime import platform_file
from tarsy.store.fleet import reporter
from tarsy.telemetry import component_states, metrics


def sample(process_reporter: reporter.Reporter, in_force: platform_file.PlatformFile) -> None:
    """Set the gauges of the database, the platform file, MCP servers and providers."""
    metrics.DATABASE_UP.set(process_reporter.database.state == "answering")
    metrics.PLATFORM_FILE_VALID.set(not in_force.problem)
    servers, drifted, providers = (dict[tuple[str, ...], float]() for _ in range(3))
    for fact in process_reporter.facts():
        match fact.detail:
            case component_states.Server(stopped=stopped):
                servers[fact.name,] = float(fact.state == "connected")
                drifted[fact.name,] = float(len(stopped))
            case component_states.Provider(named=named) if named or fact.state != "unusable":
                providers[fact.name,] = float(fact.state in ("usable", "answering"))
    metrics.SERVER_UP.replace(servers)
    metrics.TOOLS_DRIFTED.replace(drifted)
    metrics.PROVIDER_UP.replace(providers)
