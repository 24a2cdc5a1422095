"""The built-in configuration: three agents, one MCP server, five providers. The platform file is laid over it.

One provider is used by default; the others can be named, and a missing key of theirs is not reported.

One agent looks at the cluster, one joins the findings of several, one answers questions afterwards.

The built-in chains are manifests (`manifests/chains/`), because chains are objects of the cluster.
"""

from __future__ import annotations

from typing import Any

PLATFORM: dict[str, dict[str, Any]] = {
    "defaults": {"llm_provider": "google-default"},
    "llm_providers": {
        "google-default": {"type": "google", "model": "gemini-2.5-flash"},
        "vertexai-default": {"type": "vertexai", "model": "gemini-2.5-flash"},
        "openai-default": {"type": "openai", "model": "gpt-5.1", "api": "responses"},
        "anthropic-default": {"type": "anthropic", "model": "claude-sonnet-5-5"},
        "xai-default": {"type": "xai", "model": "grok-4-1-fast"},
    },
    "mcp_servers": {
        "kubernetes-server": {
            "transport": {
                "type": "stdio",
                "command": "kubernetes-mcp-server",
                "args": ["--read-only", "--toolsets", "core"],
            },
            "instructions": (
                "Prefer queries of one namespace. Results are cut when they are long, so ask for little at a time."
            ),
        }
    },
    "agents": {
        "KubernetesAgent": {"mcp_servers": ["kubernetes-server"]},
        "SynthesisAgent": {
            "iteration_strategy": "synthesis",
            "custom_instructions": (
                "Weigh what the agents found by the evidence they give for it, not by how many say it. Name what they "
                "contradict each other in, and what none of them looked at."
            ),
        },
        "ChatAgent": {},
    },
}

CHAINS: dict[str, list[str]] = {
    "kubernetes-agent-chain": ["kubernetes", "NamespaceTerminating"],
    "kubernetes-troubleshooting-chain": ["KubernetesIssue", "PodFailure"],
}
"""The built-in chains and their alert types, which other chains must not take."""
