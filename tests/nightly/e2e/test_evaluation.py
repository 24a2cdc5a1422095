"""Evaluations with real workers in recorded worlds, and with a scripted model that knows the answers.

So what is tested is the harness: all evidence that tools show reaches the model, and secrets do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner
from support import command_line, manifests, waiting
from support.database import *  # noqa: F403
from tarsy.cli import main
from tarsy.config.load import loader
from tarsy.evaluation import checks, judges, reports, results, runs, scenarios, subjects, worlds
from tarsy.process import agent_tools
from tarsy_dev import controlplane, model, tools
from tarsy_dev import postgres as launcher
from tarsy_dev.model import script as model_script
from tarsy_dev.model import server
from tarsy_dev.scenarios import golden

if TYPE_CHECKING:
    from support.operators import Operator

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
            "scripted": {
                "type": "google",
                "model": "gemini-2.5-flash",
                "base_url": url,
                "api_key_env": "SCRIPTED_KEY",
                "price": {"input": 1, "output": 1},
            },
        },
    }
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.timeout(2_400)
async def test_all_evidence_reaches_the_model_and_no_secret_does(
    postgres: launcher.Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_KEY", "any")
    all_scenarios = scenarios.find([tools.ROOT / "scenarios"])
    output = tmp_path / "results"
    (tmp_path / "chain.yaml").write_text(CHAIN)
    async with server.serve(script=golden.player(all_scenarios)) as model:
        config = platform_file(tmp_path, model.url)
        platform = loader.platform_file(config)
        chain, missing = subjects.for_world(subjects.load(tmp_path / "chain.yaml", platform=platform))
        assert missing == []
        plan = runs.Plan(
            scenarios=all_scenarios,
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
        all_results = results.read(output)
        asked = len(model.requests)
        again = await runs.run(plan, progress=lines.append)
        assert (again.failures, len(model.requests)) == ([], asked)
        spent = await runs.run(dataclasses.replace(plan, repeats=2, max_tokens=1), progress=lines.append)
        assert (spent.left_out, len(model.requests)) == (len(all_scenarios), asked)
        cost = sum(result.cost or 0 for result in all_results)
        spent = await runs.run(dataclasses.replace(plan, repeats=2, max_cost=cost), progress=lines.append)
        assert (spent.left_out, len(model.requests)) == (len(all_scenarios), asked)
        assert [key[2] for key in reports.not_run(output, all_results)] == [2] * len(all_scenarios)
        async with agent_tools.questions_to(platform, "scripted") as ask:
            judge = judges.Judge(provider="scripted", ask=ask)
            poor = await runs.run(dataclasses.replace(plan, judge=judge, max_cost=cost), progress=lines.append)
            assert (poor.unjudged, len(model.requests)) == (len(all_scenarios), asked)
            judged = await runs.run(dataclasses.replace(plan, judge=judge), progress=lines.append)
            assert (judged.unjudged, judged.failures, len(model.requests)) == (0, [], asked + len(all_scenarios))
            await runs.run(dataclasses.replace(plan, judge=judge), progress=lines.append)
            assert len(model.requests) == asked + len(all_scenarios)
            for before, after in zip(all_results, results.read(output), strict=True):
                assert after.opinion is not None
                assert (after.opinion.verdict, after.opinion.total_tokens > 0) == ("right", True)
                assert after.model_copy(update={"opinion": None}) == before
            model.script = lambda _: model_script.HttpError(status=400)
            (refused, *_) = (
                await runs.run(
                    dataclasses.replace(plan, judge=dataclasses.replace(judge, provider="other")),
                    progress=lines.append,
                )
            ).failures
            assert "the judge other failed" in refused
        unusable = {"scripted": "its key is not set"}
        single_plan = dataclasses.replace(
            plan, scenarios=all_scenarios[:1], output=tmp_path / "none", unusable=unusable
        )
        (failure,) = (await runs.run(single_plan, progress=lines.append)).failures
        assert "LLM provider 'scripted' cannot be used: its key is not set" in failure
        bodies = json.dumps([request.body for request in model.requests], ensure_ascii=False)
    assert [result.scenario for result in all_results] == [scenario.name for scenario in all_scenarios]
    for result in all_results:
        assert (result.scenario, result.state, result.misses) == (result.scenario, "right", ())
        assert all(piece.seen and piece.cited for piece in result.evidence), result
        assert (result.leaked_secrets, result.grounded) == (0, True)
        assert result.tool_calls >= len(result.evidence)
        transcript = results.path(output, *result.key).with_suffix(results.TRANSCRIPT).read_text()
        assert transcript.endswith("The end of the transcript.\n")
    for scenario in all_scenarios:
        assert not any(secret in bodies for secret in scenario.document.secrets)
        assert scenario.name not in bodies
    databases = postgres.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'tarsy_eval%'")
    assert databases == "0"

    runner = CliRunner()
    html = tmp_path / "report.html"
    for form in (["--format", "html", "--to", str(html)], ["--format", "junit"], ["--fail-under", "1"]):
        report = runner.invoke(main.main, ["eval", "report", str(output), *form])
        assert report.exit_code == 0, report.output
    assert "memory-limit/scripted-1.md" in html.read_text()
    same = runner.invoke(main.main, ["eval", "diff", str(output), str(output)])
    assert same.output.startswith("noise: +0%")


def started_in(folder: Path) -> list[str]:
    """The command lines of processes that name a file in `folder`, or are under it."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if str(folder) in line and "cli.main import main; main()" not in line]


def left_in(folder: Path) -> list[str]:
    """The directories of evaluations in `folder`; loaders of libraries leave files of their own."""
    return [path.name for path in folder.iterdir() if path.name.startswith("tarsy-")]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for temporary files that every user can reach: Postgres runs as another one, if root starts it."""
    with tempfile.TemporaryDirectory(prefix="tarsy-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.timeout(600)
async def test_a_killed_evaluation_leaves_nothing_running_and_goes_on_without_a_database_of_its_users(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPTED_KEY", "any")
    two_scenarios = scenarios.find(tools.ROOT / "scenarios" / name for name in ("memory-limit", "two-passwords"))
    solve = golden.player(two_scenarios)
    output, chain = tmp_path / "results", tmp_path / "chain.yaml"
    first, second = (results.path(output, scenario.name, "scripted", 1) for scenario in two_scenarios)
    chain.write_text(CHAIN)
    async with server.serve(script=solve) as model:
        config = platform_file(tmp_path, model.url)
        environment = {**os.environ, "TMPDIR": str(temporary), "TARSY_CONFIG": str(config), "DATABASE_URL": ""}
        command = [sys.executable, "-c", "from tarsy.cli.main import main; main()", "eval", "run"]
        command += [
            *(str(scenario.folder) for scenario in two_scenarios),
            "--chain",
            str(chain),
            "--output",
            str(output),
        ]
        command += ["--provider", "scripted", "--jobs", "1", "--mcp-command", str(tools.kubernetes_mcp_server())]
        model.script = lambda model_call: (
            model_script.Hang() if '"parcels"' in str(model_call.messages) else solve(model_call)
        )
        killed = await asyncio.create_subprocess_exec(*command, env=environment)
        await waiting.until(lambda: first.exists() and '"parcels"' in str(model.requests[-1].body))
        running = started_in(temporary)
        for program in ("--role=worker", "kubernetes-mcp-server", "postgres -D"):
            assert any(program in line for line in running), (program, running)
        killed.kill()
        assert await killed.wait() == -signal.SIGKILL
        await waiting.until(lambda: not started_in(temporary))
        assert left_in(temporary) == []

        judged, asked = first.read_bytes(), len(model.requests)
        model.script = solve
        again = await asyncio.create_subprocess_exec(*command, env=environment)
        assert await again.wait() == 0
        assert not any('"shop"' in str(request.body) for request in model.requests[asked:])
    assert (first.read_bytes(), results.Result.model_validate_json(second.read_bytes()).state) == (judged, "right")
    assert (started_in(temporary), left_in(temporary)) == ([], [])


def texts(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


SEEN = "password authentication failed for user web"
PAST = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web-0, annotations: {{dev.tarsy.dev/log: "starting\\n{SEEN}\\n"}}}}
spec: {{terminationGracePeriodSeconds: 0, containers: [{{name: app, image: web}}]}}
---
apiVersion: v1
kind: Secret
metadata: {{name: web-db}}
stringData: {{password: Zq3-marble-heron-77, user: shop}}
---
apiVersion: v1
kind: Secret
metadata: {{name: postgres}}
stringData: {{password: Kw9-copper-lynx-20, user: shop}}
"""


async def test_a_past_investigation_becomes_a_scenario_that_passes_its_check(
    operator: Operator, llm: model.Server, plane: controlplane.Administrator, programs: dict[str, Path], tmp_path: Path
) -> None:
    namespace = operator.namespace

    def script(model_call: model.Turn) -> model.Reply:
        if any(message.results for message in model_call.messages):
            return model.Answer(text=f"Root cause: a wrong password.\n\nEvidence: `{SEEN}` [tool 0.0].")
        names = {tool.short: tool.name for tool in model_call.tools}
        arguments = {"namespace": namespace, "name": "web-0"}
        calls = (model.Call(name=names["pods_log"], args=arguments), model.Call(name=names["pods_get"], args=arguments))
        return model.Answer(text="I look.", calls=calls)

    llm.script = script
    await operator.kubectl("create", "-f", "-", input=PAST)
    await operator.kubectl("wait", "pod/web-0", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    arguments = ["--read-only", "--toolsets", "core", "--kubeconfig", str(plane.kubeconfig(namespace=namespace))]
    transport = {"type": "stdio", "command": str(tools.kubernetes_mcp_server()), "args": arguments}
    operator.configure(mcp_servers={"kubernetes-server": {"transport": transport}})
    process = await operator.start()
    stage = manifests.stage("analysis", mcpServers=["kubernetes-server"])
    await operator.apply(manifests.chain(stages=[stage]), manifests.investigation("ended"))
    await operator.finished("ended")
    await operator.kubectl("delete", "pod", "web-0", "--now")
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )
    nothing = await run.run("eval", "record", str(tmp_path / "judged"), "--from-feedback")
    assert (nothing.code, "give some with tarsy feedback" in nothing.err) == (2, True)
    feedback = await run.run("feedback", "ended", "partly", "--cause", "The Secret web-db has a wrong password.")
    assert feedback.code == 0, feedback.err
    recorded = await run.run("eval", "record", str(tmp_path / "judged"), "--from-feedback")
    assert recorded.code == 0, recorded.err
    folder = Path(recorded.out.partition(":")[0])
    scenario = scenarios.load(folder)
    assert scenario.document.cause.name == "web-db"
    assert [each.tool for each in scenario.document.evidence] == ["pods_log"]
    checked = await run.run("eval", "check", str(folder), "--mcp-command", str(tools.kubernetes_mcp_server()))
    assert (checked.code, checked.out) == (0, "nothing is wrong.\n"), checked.err
    world = worlds.load(folder / "world")
    held = [each["data"] for each in world.objects() if each["metadata"]["name"] in ("web-db", "postgres")]
    assert (len({each["password"] for each in held}), len({each["user"] for each in held})) == (2, 1)
    again = await run.run("eval", "record", str(tmp_path / "judged"), "--from-feedback")
    assert (again.code, again.out) == (0, f"{folder}: there already\n")

    live = await run.run("eval", "record", str(tmp_path / "live"), "--with-namespace", "kube-system")
    assert (live.code, "evidence.0.matches: FILL IN" in live.out) == (0, True), live.err
    assert (await run.run("eval", "record", str(tmp_path / "live"))).code == 2
    (tmp_path / "live" / scenarios.FILE).write_text((folder / scenarios.FILE).read_text())
    rerecorded = await run.run("eval", "record", str(tmp_path / "live"), "--again")
    assert (rerecorded.code, "FILL IN" in rerecorded.out) == (0, False), rerecorded.err
    written = texts(tmp_path)
    for secret in ("Zq3-marble-heron-77", "Kw9-copper-lynx-20"):
        assert not checks.has_secret(written, secret)
    assert "Root cause: a wrong password" not in written


@pytest.mark.timeout(600)
def test_every_shipped_scenario_passes_its_check() -> None:
    arguments = ["eval", "check", str(tools.ROOT / "scenarios"), "--mcp-command", str(tools.kubernetes_mcp_server())]
    ended = CliRunner().invoke(main.main, arguments, env={"TARSY_CONFIG": ""})
    assert (ended.exit_code, ended.output) == (0, "nothing is wrong.\n")
