"""Evaluations with real workers in recorded worlds, and with a scripted model that knows the answers.

So what is tested is the harness: all evidence that tools show reaches the model, and secrets do not.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.database import *  # noqa: F403
from tarsy.cli import main
from tarsy.config.load import loader
from tarsy.evaluation import results, runs, scenarios, subjects
from tarsy_dev import postgres as launcher
from tarsy_dev import tools
from tarsy_dev.model import server
from tarsy_dev.scenarios import golden

SCENARIOS = ("finished-job", "memory-limit", "storage-class", "two-passwords")
CHAIN = """
apiVersion: tarsy.dev/v1alpha1
kind: AgentChain
metadata: {name: measured}
spec:
  alertTypes: [any]
  stages:
  - {name: collect, agent: KubernetesAgent}
  - {name: conclude, agent: KubernetesAgent}
  executiveSummary: {enabled: false}
"""


def platform_file(folder: Path, url: str) -> Path:
    content = {
        "defaults": {"llm_provider": "scripted"},
        "llm_providers": {
            "scripted": {"type": "google", "model": "gemini-2.5-flash", "base_url": url, "api_key_env": "SCRIPTED_KEY"}
        },
    }
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_all_evidence_reaches_the_model_and_no_secret_does(
    postgres: launcher.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_KEY", "any")
    known = scenarios.find(tools.ROOT / "scenarios" / name for name in SCENARIOS)
    output = tmp_path / "results"
    (tmp_path / "chain.yaml").write_text(CHAIN)
    async with server.serve(script=golden.player(known)) as model:
        config = platform_file(tmp_path, model.url)
        platform = loader.platform_file(config)
        chain, missing = subjects.for_world(subjects.load(tmp_path / "chain.yaml", platform=platform))
        assert missing == []
        plan = runs.Plan(
            scenarios=known,
            chain=chain,
            providers=["scripted"],
            repeats=1,
            jobs=2,
            output=output,
            written=loader.as_written(config).written,
            mcp_command=str(tools.kubernetes_mcp_server()),
            database_url=postgres.url(),
            unusable={},
            max_tokens=None,
        )
        lines: list[str] = []
        finished = await runs.run(plan, progress=lines.append)
        assert (finished.failures, finished.left_out) == ([], 0)
        found = results.read(output)
        asked = len(model.requests)
        again = await runs.run(plan, progress=lines.append)
        assert (again.failures, len(model.requests)) == ([], asked)
        spent = await runs.run(dataclasses.replace(plan, repeats=2, max_tokens=1), progress=lines.append)
        assert (spent.left_out, len(model.requests)) == (len(known), asked)
        unusable = {"scripted": "its key is not set"}
        one = dataclasses.replace(plan, scenarios=known[:1], output=tmp_path / "none", unusable=unusable)
        (failure,) = (await runs.run(one, progress=lines.append)).failures
        assert "LLM provider 'scripted' cannot be used: its key is not set" in failure
        bodies = json.dumps([request.body for request in model.requests], ensure_ascii=False)
    assert [result.scenario for result in found] == [scenario.name for scenario in known]
    for result in found:
        assert (result.scenario, result.state, result.misses) == (result.scenario, "right", ())
        assert all(piece.seen and piece.cited for piece in result.evidence), result
        assert (result.leaked_secrets, result.grounded) == (0, True)
        assert result.tool_calls >= len(result.evidence)
        transcript = results.path(output, *result.key).with_suffix(results.TRANSCRIPT).read_text()
        assert transcript.endswith("The end of the transcript.\n")
    for scenario in known:
        assert not any(secret in bodies for secret in scenario.document.secrets)
        assert scenario.name not in bodies
    databases = postgres.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'tarsy_eval%'")
    assert databases == "0"

    runner = CliRunner()
    html = tmp_path / "report.html"
    for form in (["--format", "html", "--to", str(html)], ["--format", "junit"], ["--fail-under", "1"]):
        shown = runner.invoke(main.main, ["eval", "report", str(output), *form])
        assert shown.exit_code == 0, shown.output
    assert "memory-limit/scripted-1.md" in html.read_text()
    same = runner.invoke(main.main, ["eval", "diff", str(output), str(output)])
    assert same.output.startswith("noise: +0%")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_scenario_of_ours_passes_its_check() -> None:
    arguments = ["eval", "check", str(tools.ROOT / "scenarios"), "--mcp-command", str(tools.kubernetes_mcp_server())]
    ended = CliRunner().invoke(main.main, arguments, env={"TARSY_CONFIG": ""})
    assert (ended.exit_code, ended.output) == (0, "nothing is wrong.\n")
