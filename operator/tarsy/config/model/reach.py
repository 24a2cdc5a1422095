"""The part of a platform file that some namespaces may use, by `allowed_namespaces` of providers and MCP servers.

A chain may be created by anybody who may create chains in its namespace, and used by anybody who may create
investigations in theirs. Both borrow the rights of its providers and servers, so both namespaces have to be allowed.
The others are taken out of the platform before anything is resolved, so nothing that a chain can reach (fallbacks,
synthesis, summary, questions, the servers that an alert selects) has to be checked by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tarsy.config.model import deliveries, fields, platforms, providers


def platform_for(platform: platforms.Platform, namespaces: Collection[str], *, own: str) -> platforms.Platform:
    """Return the platform with only those providers and servers that all of `namespaces` may use.

    `own` is the operator's own namespace, "" if this process does not know it: without `allowed_namespaces`, a provider
    or server is then for none. The platform says for each that it lacks why (`Platform.not_allowed`).
    """
    not_allowed: dict[tuple[platforms.Kind, str], str] = {}
    providers, servers = {}, {}
    for name, provider in platform.llm_providers.items():
        if why := _exclusion(provider.allowed_namespaces, namespaces, own=own):
            not_allowed["LLM provider", name] = why
        else:
            providers[name] = provider
    for name, server in platform.mcp_servers.items():
        why = _exclusion(server.allowed_namespaces, namespaces, own=own)
        summarizer = server.summarization.llm_provider
        if not why and summarizer and (provider_why := not_allowed.get(("LLM provider", summarizer))):
            why = f"whose summaries need LLM provider '{summarizer}', {provider_why}"
        if why:
            not_allowed["MCP server", name] = why
        else:
            servers[name] = server
    return platform.restricted(llm_providers=providers, mcp_servers=servers, not_allowed=not_allowed)


def unserved(platform: platforms.Platform, *, own: str) -> list[str]:
    """Return a warning for each namespace that is named and not served; none if `own` is unknown ("")."""
    served = {own, fields.ALL_NAMESPACES, *platform.namespaces}
    sections: Mapping[str, Mapping[str, providers.Provider | platforms.MCPServer | deliveries.Receiver]] = {
        "llm_providers": platform.llm_providers,
        "mcp_servers": platform.mcp_servers,
        "deliveries": platform.deliveries,
    }
    named = [
        (f"{section}.{name}.allowed_namespaces", namespace)
        for section, parts in sections.items()
        for name, part in parts.items()
        for namespace in part.allowed_namespaces or ()
    ]
    named += [(f"budgets.{name}.of", budget.namespace) for name, budget in platform.budgets.items() if budget.namespace]
    return [
        f"{location}: '{namespace}' is not served and has no effect: add it to namespaces, or remove it"
        for location, namespace in (named if own else ())
        if namespace not in served
    ]


def _exclusion(allowed: Sequence[str] | None, namespaces: Collection[str], *, own: str) -> str:
    """Return which of `namespaces` is not allowed, as a relative clause; "" if all are."""
    if allowed is None:
        allowed = [own] if own else []
        listed = own or "the operator's own, whose name this process lacks: set TARSY_NAMESPACE"
    else:
        listed = ", ".join(allowed) or "none"
    if fields.ALL_NAMESPACES in allowed:
        return ""
    excluded = next((namespace for namespace in namespaces if namespace not in allowed), None)
    if excluded is None:
        return ""
    return f"which is not allowed in namespace '{excluded}'. Allowed namespaces: {listed}"
