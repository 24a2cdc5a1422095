"""Conversion of the chains in the founding documents' YAML into manifests."""

from __future__ import annotations

import re
from typing import Any

from tarsy.cli.former import common, layout
from tarsy.config.load import builtin
from tarsy.resources import base, chains

_SAME_STAGE = {
    "llm_provider": "llmProvider",
    "max_iterations": "maxIterations",
}

JSON = common.JSON
Source = layout.Source


class ChainConverter(common.Converter):
    """Converts the chains of the sources into manifests."""

    def chains(self) -> dict[str, JSON]:
        """Return the manifests, by the chains' former names."""
        converted: dict[str, JSON] = {}
        former_names: dict[str, str] = {}
        for former_name, source in self._sources.sections["agent_chains"].items():
            name = self._dns_name(source, former_name)
            if former_names.setdefault(name, former_name) != former_name:
                problem = f"{source.path_text}: chain '{former_names[name]}' is renamed to '{name}', too"
                self.problems.append(source.problem(problem))
            converted[former_name] = {
                "apiVersion": base.API_VERSION,
                "kind": chains.KIND,
                "metadata": {"name": name},
                "spec": self._spec(source),
            }
        return converted

    def _spec(self, source: Source) -> JSON:
        converted: JSON = {}
        for key in source.value:
            value = source.at(key)
            match key:
                case "alert_types" | "description" | "llm_provider" | "max_iterations":
                    converted[base.camel(key)] = value.value
                case "mcp_servers":
                    converted["mcpServers"] = self._mcp_servers(value)
                case "fallback_providers":
                    converted["fallbackProviders"] = self._fallbacks(value)
                case "executive_summary_provider":
                    converted["executiveSummary"] = {"llmProvider": value.value}
                case "chat":
                    converted["chat"] = self._block(value, ("enabled", "agent", "llm_provider", "max_iterations"))
                case "stages" | "iteration_strategy" | "llm_backend" | "backend":
                    pass
                case _:
                    self.omit(value)
        if self._queue and (seconds := layout.seconds(self._queue.value.get("session_timeout"))):
            converted["activeDeadlineSeconds"] = round(seconds)
        strategy = self._strategy(source)
        stages = list(source.at("stages").entries())
        is_unset = not any(self._strategy_below(stage, member) for stage in stages for member in layout.members(stage))
        if strategy is None and is_unset:
            strategy = self._default_strategy()
        if strategy:
            converted["iterationStrategy"] = strategy
        converted["stages"] = [self._stage(stage, needs_strategy=strategy is None) for stage in stages]
        if re.search(r"\{\{\s*\.[A-Za-z_]\w*\s*\}\}", str(source.value)):
            self.note(source, "chains have no variables: {{.VAR}} stays text")
        return converted

    def _strategy_below(self, stage: Source, member: Source) -> str | None:
        """Return the strategy that a member, its stage or its agent sets; None if none of them does."""
        strategy: str | None = self._strategy(member) if isinstance(member.value, dict) else None
        if strategy := strategy or self._strategy(stage):
            return strategy
        name = layout.agent_name(layout.named_agent(member)) or ""
        agent = self._sources.sections["agents"].get(name)
        if agent is not None:
            return self._strategy(agent)
        builtin_agent: JSON = builtin.PLATFORM["agents"].get(name, {})
        return builtin_agent.get("iteration_strategy")

    def _stage(self, stage: Source, *, needs_strategy: bool) -> JSON:
        """Return a stage; with `needs_strategy`, its agents without a strategy get the former default."""
        converted: JSON = {"name": self._dns_name(stage.at("name"), str(stage.value["name"]))}
        members = layout.members(stage)
        overrides = [
            self._member(member, needs_strategy=needs_strategy and not self._strategy_below(stage, member))
            for member in members
        ]
        if len(members) == 1:
            converted |= {"agent" if key == "name" else key: value for key, value in overrides[0].items()}
        else:
            converted["agents"] = overrides
        for key in stage.value:
            source = stage.at(key)
            if key in _SAME_STAGE:
                converted.setdefault(_SAME_STAGE[key], source.value)
            elif key == "mcp_servers":
                converted.setdefault("mcpServers", self._mcp_servers(source))
            elif key == "fallback_providers":
                converted.setdefault("fallbackProviders", self._fallbacks(source))
            elif key == "synthesis":
                converted["synthesis"] = self._synthesis(source)
            elif key == "replicas":
                self._replicas(source, converted)
            elif key == "success_policy":
                converted["successPolicy"] = source.value
            elif key not in ("name", "agent", "agents", "iteration_strategy", "llm_backend", "backend"):
                self.omit(source)
        if strategy := self._strategy(stage):
            converted.setdefault("iterationStrategy", strategy)
        policy = self._defaults.value.get("success_policy") if self._defaults else None
        if policy and (len(members) > 1 or converted.get("replicas") not in (None, 1)):
            converted.setdefault("successPolicy", policy)
        return converted

    def _replicas(self, source: Source, converted: JSON) -> None:
        if "agent" in converted:
            converted["replicas"] = source.value
        elif source.value not in (None, 1):
            self.problems.append(
                source.problem(f"{source.path_text}: replicas go with one agent: list the agents instead")
            )

    def _member(self, member: Source, *, needs_strategy: bool) -> JSON:
        converted: JSON = {"name": self._agent_name(member)}
        for key in member.value if isinstance(member.value, dict) else ():
            source = member.at(key)
            if key in _SAME_STAGE:
                converted[_SAME_STAGE[key]] = source.value
            elif key == "mcp_servers":
                converted["mcpServers"] = self._mcp_servers(source)
            elif key == "fallback_providers":
                converted["fallbackProviders"] = self._fallbacks(source)
            elif key not in ("name", "iteration_strategy", "llm_backend", "backend"):
                self.omit(source)
        strategy = self._strategy(member) if isinstance(member.value, dict) else None
        if strategy is None and needs_strategy:
            strategy = self._default_strategy()
        return converted | ({"iterationStrategy": strategy} if strategy else {})

    def _synthesis(self, synthesis: Source) -> Any:
        converted = self._block(synthesis, ("agent", "llm_provider", "iteration_strategy"))
        if (
            isinstance(converted, dict)
            and "iterationStrategy" not in converted
            and (backend := synthesis.value.get("llm_backend"))
        ):
            converted["iterationStrategy"] = "synthesis-native-thinking" if backend == "google-native" else "synthesis"
        return converted

    def _dns_name(self, source: Source, name: str) -> str:
        """Return `name` as a valid name of an object or a stage."""
        converted = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].rstrip("-")
        if not converted:
            self.problems.append(source.problem(f"{source.path_text}: a name without letters and digits"))
        elif converted != name:
            self.note(source, f"is renamed to '{converted}': lower-case letters, digits and dashes")
        return converted
