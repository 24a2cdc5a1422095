"""The oracle of the harness: all evidence that tools show reaches every model, or can be had by it; no secret does.

Agents side by side with a synthesis, a takeover in the middle of the run, a second stage, and a question after the end.
The scripted agents say little, so that nothing is handed over by chance: later ones have to look results up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from support import operators, waiting
from support.database import *  # noqa: F403
from tarsy.config.load import loader
from tarsy.evaluation import checks, judgements, scenarios, stands, subjects, verdicts
from tarsy.store.base import audit, scratch_databases
from tarsy.store.queue import questions
from tarsy.store.reads import log_entries, summaries
from tarsy_dev import keys, model, tools
from tarsy_dev import postgres as launcher
from tarsy_dev.model import script as model_script
from tarsy_dev.model import server
from tarsy_dev.scenarios import golden

CHAIN = """
apiVersion: tarsy.dev/v1alpha1
kind: AgentChain
metadata: {name: measured}
spec:
  alertTypes: [any]
  stages:
  - {name: collect, agents: [{name: KubernetesAgent}, {name: KubernetesAgent}]}
  - {name: conclude, agent: KubernetesAgent}
  executiveSummary: {enabled: false}
"""
REFERENCE = re.compile(r"\b[0-9a-f]{16}/\d+\.\d+\b")


class Agents:
    """The script: agents of the first stage call, the others look up; all say the cause, and quote nothing."""

    def __init__(self, scenario: scenarios.Scenario, stand: stands.Stand) -> None:
        self._scenario, self._stand = scenario, stand
        self.hangs = True
        self.hanging = set[keys.Key]()
        """The agents that wait for an answer: their results are committed."""
        self.turns: list[model.Turn] = []

    def __call__(self, model_call: model.Turn) -> model.Reply:
        self.turns.append(model_call)
        has_results = any(message.results for message in model_call.messages)
        names = {tool.short: tool.name for tool in model_call.tools}
        if model_call.kind == "agent" and model_call.key.stage == "collect":
            if not has_results:
                return model.Answer(text="I look.", calls=tuple(self._evidence(names)))
            if self.hangs:
                self.hanging.add(model_call.key)
                return model_script.Hang()
        elif model_call.kind != "synthesis" and not has_results:
            references = dict.fromkeys(REFERENCE.findall(text_of(model_call)))
            return model.Answer(text="I look it up.", calls=tuple(self._searches(names, references)))
        cause = self._scenario.document.cause
        return model.Answer(text=f"Root cause: {cause.kind} {cause.name}: {golden.SENTENCES[cause.cause_class]}.")

    def _evidence(self, names: dict[str, str]) -> Iterator[model.Call]:
        for each in self._scenario.document.evidence:
            yield model.Call(name=names[each.tool], args=checks.resolved(each.arguments, self._stand.world))

    def _searches(self, names: dict[str, str], references: Iterable[str]) -> Iterator[model.Call]:
        """Read the beginning of each result, and search it for what the evidence says, as a model may."""
        for reference in references:
            yield model.Call(name=names["read"], args={"call": reference})
            for each in self._scenario.document.evidence:
                arguments = {"call": reference, "pattern": f"(?i){each.matches}"}
                yield model.Call(name=names["search"], args=arguments)

    def last(self, kind: str, stage: str) -> list[model.Turn]:
        """The last request of each agent of a kind and a stage."""
        return list(
            {
                model_call.key: model_call
                for model_call in self.turns
                if (model_call.kind, model_call.key.stage) == (kind, stage)
            }.values()
        )


def text_of(model_call: model.Turn) -> str:
    parts = [model_call.system]
    for message in model_call.messages:
        parts += [message.text, *(result.text for result in message.results)]
    return "\n".join(parts)


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def lacking(scenario: scenarios.Scenario, model_call: model.Turn) -> list[str]:
    text = text_of(model_call)
    return [each.shows for each in scenario.document.evidence if not verdicts.matches(each.matches, text)]


@pytest.mark.parametrize("name", ["two-passwords", "connection-hog"])
async def test_every_model_of_an_investigation_has_the_evidence_or_can_have_it(
    name: str, postgres: launcher.Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_KEY", "any")
    scenario = scenarios.load(tools.ROOT / "scenarios" / name)
    (tmp_path / "chain.yaml").write_text(CHAIN)
    async with server.serve() as llm, scratch_databases.template(postgres.url(), purpose="tarsy_test") as template:
        provider = {"type": "google", "model": "gemini-2.5-flash", "base_url": llm.url, "api_key_env": "SCRIPTED_KEY"}
        written = {
            "defaults": {"llm_provider": "scripted"},
            "llm_providers": {"scripted": provider},
            "queue": {"lease": "4s", "heartbeat": "400ms"},
            "limits": operators.UNHURRIED,
        }
        (tmp_path / "platform.yaml").write_text(yaml.safe_dump(written))
        platform = loader.platform_file(tmp_path / "platform.yaml")
        chain, _ = subjects.for_world(subjects.load(tmp_path / "chain.yaml", platform=platform))
        command = str(tools.kubernetes_mcp_server())
        async with stands.opened(
            scenario, written=written, mcp_command=command, unusable={}, template=template
        ) as stand:
            agents = Agents(scenario, stand)
            llm.script = agents
            identity = await stand.admit(chain)
            await waiting.until(lambda: len(agents.hanging) == 2)
            os.kill(child_of(stand.worker.pid), signal.SIGKILL)
            assert await stand.worker.wait() == 128 + signal.SIGKILL
            agents.hangs, killed = False, len(agents.turns)
            settings = stand.log.with_name("platform.yaml")
            async with stands.worker(settings, stand.database.url, tmp_path / "second.log") as second:
                stand = dataclasses.replace(stand, worker=second)
                ended = await stand.ended(identity)
                by = audit.Caller(who="tester", address="127.0.0.1")
                assert await questions.ask(stand.database, identity, "What did they see?", max_queued=1, by=by) == 1
                await waiting.until(lambda: len(agents.last("chat", "")) == 1)
                while True:
                    details = await summaries.details(stand.database, identity)
                    assert details
                    if details.runs[-1].ended_at:
                        break
                logged = await log_entries.load(stand.database, identity)
        subject = judgements.Subject(scenario=scenario, world=stand.world, chain=chain, provider="scripted", repeat=1)
        result = judgements.judge(subject, ended)

    evidence = len(scenario.document.evidence)
    assert (result.state, result.grounded, result.gaps, result.misses) == ("right", True, 0, ())
    # A call that was committed before the takeover is not sent again; what is looked up asks no server.
    assert result.tool_calls == 2 * evidence + 2 * evidence * (1 + evidence)
    for model_call in agents.turns[killed:]:
        if (model_call.kind, model_call.key.stage) == ("agent", "collect"):
            assert lacking(scenario, model_call) == []
    for kind, stage, count in (("agent", "collect", 2), ("synthesis", "collect", 1), ("agent", "conclude", 1)):
        turns = agents.last(kind, stage)
        assert (kind, stage, len(turns)) == (kind, stage, count)
        assert [lacking(scenario, model_call) for model_call in turns] == [[]] * count
    (question,) = agents.last("chat", "")
    assert lacking(scenario, question) == []
    texts = json.dumps([request.body for request in llm.requests], ensure_ascii=False) + repr(logged)
    assert not any(checks.has_secret(texts, secret) for secret in scenario.document.secrets)
    assert scenario.name not in texts
