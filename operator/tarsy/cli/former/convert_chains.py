"""Turns the chains of the founding documents' YAML into manifests."""

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


class Chains(common.Converting):
    """Makes the manifests of the chains in the sources."""

    def chains(self) -> dict[str, JSON]:
        """The manifests, by the chains' former names."""
        made: dict[str, JSON] = {}
        taken: dict[str, str] = {}
        for former_name, source in self._sources.named["agent_chains"].items():
            name = self._dns(source, former_name)
            if taken.setdefault(name, former_name) != former_name:
                self.problems.append(
                    source.problem(f"{source.path_text}: chain '{taken[name]}' is called '{name}', too")
                )
            made[former_name] = {
                "apiVersion": base.API_VERSION,
                "kind": chains.KIND,
                "metadata": {"name": name},
                "spec": self._spec(source),
            }
        return made

    def _spec(self, source: Source) -> JSON:
        made: JSON = {}
        for key in source.data:
            value = source.at(key)
            match key:
                case "alert_types" | "description" | "llm_provider" | "max_iterations":
                    made[base.camel(key)] = value.data
                case "mcp_servers":
                    made["mcpServers"] = self._mcp_servers(value)
                case "fallback_providers":
                    made["fallbackProviders"] = self._fallbacks(value)
                case "executive_summary_provider":
                    made["executiveSummary"] = {"llmProvider": value.data}
                case "chat":
                    made["chat"] = self._block(value, ("enabled", "agent", "llm_provider", "max_iterations"))
                case "stages" | "iteration_strategy" | "llm_backend" | "backend":
                    pass
                case _:
                    self.left_out(value)
        if self._queue and (seconds := layout.seconds(self._queue.data.get("session_timeout"))):
            made["activeDeadlineSeconds"] = round(seconds)
        strategy = self._strategy(source)
        stages = list(source.at("stages").entries())
        are_silent = not any(self._own_strategy(stage, member) for stage in stages for member in layout.members(stage))
        if strategy is None and are_silent:
            strategy = self._default_strategy()
        if strategy:
            made["iterationStrategy"] = strategy
        made["stages"] = [self._stage(stage, speaks=strategy is None) for stage in stages]
        self._says_variables(source)
        return made

    def _own_strategy(self, stage: Source, member: Source) -> str | None:
        """Return the strategy of a stage, its member or the member's agent."""
        own = self._strategy(member) if isinstance(member.data, dict) else None
        if strategy_found := own or self._strategy(stage):
            return strategy_found
        name = layout.agent_name(layout.named_agent(member)) or ""
        agent = self._sources.named["agents"].get(name)
        if agent is not None:
            return self._strategy(agent)
        strategy: str | None = builtin.PLATFORM["agents"].get(name, {}).get("iteration_strategy")
        return strategy

    def _stage(self, stage: Source, *, speaks: bool) -> JSON:
        """Return a stage; with `speaks`, its agents without a strategy get the one that ran then."""
        made: JSON = {"name": self._dns(stage.at("name"), str(stage.data["name"]))}
        members = layout.members(stage)
        overrides = [
            self._member(member, speaks=speaks and not self._own_strategy(stage, member)) for member in members
        ]
        if len(members) == 1:
            made |= {"agent" if key == "name" else key: value for key, value in overrides[0].items()}
        else:
            made["agents"] = overrides
        for key in stage.data:
            source = stage.at(key)
            if key in _SAME_STAGE:
                made.setdefault(_SAME_STAGE[key], source.data)
            elif key == "mcp_servers":
                made.setdefault("mcpServers", self._mcp_servers(source))
            elif key == "fallback_providers":
                made.setdefault("fallbackProviders", self._fallbacks(source))
            elif key == "synthesis":
                made["synthesis"] = self._synthesis(source)
            elif key == "replicas":
                self._replicas(source, made)
            elif key == "success_policy":
                made["successPolicy"] = source.data
            elif key not in ("name", "agent", "agents", "iteration_strategy", "llm_backend", "backend"):
                self.left_out(source)
        if strategy := self._strategy(stage):
            made.setdefault("iterationStrategy", strategy)
        policy = self._defaults.data.get("success_policy") if self._defaults else None
        if policy and (len(members) > 1 or made.get("replicas") not in (None, 1)):
            made.setdefault("successPolicy", policy)
        return made

    def _replicas(self, source: Source, made: JSON) -> None:
        if "agent" in made:
            made["replicas"] = source.data
        elif source.data not in (None, 1):
            self.problems.append(
                source.problem(f"{source.path_text}: replicas go with one agent: list the agents instead")
            )

    def _member(self, member: Source, *, speaks: bool) -> JSON:
        made: JSON = {"name": self._agent_name(member)}
        for key in member.data if isinstance(member.data, dict) else ():
            source = member.at(key)
            if key in _SAME_STAGE:
                made[_SAME_STAGE[key]] = source.data
            elif key == "mcp_servers":
                made["mcpServers"] = self._mcp_servers(source)
            elif key == "fallback_providers":
                made["fallbackProviders"] = self._fallbacks(source)
            elif key not in ("name", "iteration_strategy", "llm_backend", "backend"):
                self.left_out(source)
        strategy = self._strategy(member) if isinstance(member.data, dict) else None
        if strategy is None and speaks:
            strategy = self._default_strategy()
        return made | ({"iterationStrategy": strategy} if strategy else {})

    def _synthesis(self, synthesis: Source) -> Any:
        made = self._block(synthesis, ("agent", "llm_provider", "iteration_strategy"))
        if (
            isinstance(made, dict)
            and "iterationStrategy" not in made
            and (backend := synthesis.data.get("llm_backend"))
        ):
            made["iterationStrategy"] = "synthesis-native-thinking" if backend == "google-native" else "synthesis"
        return made

    def _says_variables(self, source: Source) -> None:
        if re.search(r"\{\{\s*\.[A-Za-z_]\w*\s*\}\}", str(source.data)):
            self.say(source, "no variables are put into chains: {{.VAR}} stays text there")

    def _dns(self, source: Source, name: str) -> str:
        """A name as objects and stages may have it."""
        made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].rstrip("-")
        if not made:
            self.problems.append(source.problem(f"{source.path_text}: a name without letters and digits"))
        elif made != name:
            self.say(source, f"is called '{made}': lower-case letters, digits and dashes")
        return made
