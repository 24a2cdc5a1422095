"""The example of each command's help, run as it stands; names in a shell, as kubectl completes them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import accounts, command_line, manifests
from tarsy.kube import client
from tarsy_dev import commands, controlplane, model, patience, tools

if TYPE_CHECKING:
    from support.operators import Operator, Process

EXIT_CODES = {
    "tarsy chain convert tarsy.yaml -o converted": 0,
    "tarsy check": 1,
    "tarsy check --wait=5m": 6,
    "tarsy tools accept kubernetes-server --tool pods_get": 1,
}
"""Those that end otherwise than with 0; the platform file of the tests has servers that are not there."""
EVALUATED = "tests/e2e/test_evaluation.py evaluates scenarios"
AWAY = "MCP server kubernetes-server"
LEFT_OUT = {
    "tarsy eval check scenarios/": EVALUATED,
    "tarsy eval run scenarios/ --chain chain.yaml --provider google-default --provider openai-default --times 5 "
    "--output results": EVALUATED,
    "tarsy eval report results --format html --to report.html --fail-under 0.8": EVALUATED,
    "tarsy eval diff before after": EVALUATED,
    "tarsy eval record scenarios/judged --from-feedback": EVALUATED,
    "tarsy operator --config platform.yaml --listen 127.0.0.1:8080": "it does not end; tests/e2e starts many",
    "tarsy check --wait=5m": "it waits for five minutes",
    "tarsy chat @latest": "it is a conversation in a terminal",
    "tarsy restore --uid 6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64": "no test has this UID; another test restores",
    "tarsy split web-crash 5c1a9be07d3f42a6": "it needs a group; tests/cluster/test_groups.py splits one",
}


async def told_away(run: command_line.CommandLine, names: set[str]) -> dict[str, Any]:
    """Wait until `tarsy check` passes `names` and tells of the server that is not there; return what it tells.

    A process tells of a server when it has tried to connect to it, and judges its chains, some time after its start.
    """
    passed: set[str] = set()
    failed: set[str] = set()
    checks: dict[str, dict[str, Any]] = {}
    async with patience.limit():
        while not (names <= passed and AWAY in failed):
            checked = await run.run("check", "-o", "json")
            checks = {check["name"]: check for check in json.loads(checked.out)["items"]}
            passed = {name for name, check in checks.items() if check["passed"]}
            failed = checks.keys() - passed
            assert checked.code == (1 if failed else 0)
    return checks[AWAY]


@pytest.fixture
async def process(operator: Operator, llm: model.Server) -> Process:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(manifests.chain("kubernetes", "KubePodCrashLooping"))
    return process


@pytest.fixture
def run(
    process: Process, operator: Operator, plane: controlplane.Administrator, programs: dict[str, Path], tmp_path: Path
) -> command_line.CommandLine:
    """The command line, with `tarsy`, `kubectl-tarsy` and `kubectl_complete-tarsy` on PATH as they are installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    starts = {"tarsy": "main", "kubectl-tarsy": "kubectl_plugin", "kubectl_complete-tarsy": "kubectl_completion"}
    for name, function in starts.items():
        program = folder / name
        program.write_text(f"#!{sys.executable}\nfrom tarsy.cli.main import {function}; {function}()\n")
        program.chmod(0o755)
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor, "DATABASE_URL": operator.database_url},
    )
    return run.other(PATH=f"{folder}:{run.env['PATH']}")


async def shell(run: command_line.CommandLine, line: str, *, folder: Path) -> command_line.Ended:
    """Run a line in bash."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", line, env=run.env, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    return command_line.Ended(code=child.returncode or 0, out=out.decode(), err=err.decode())


@pytest.mark.timeout(900)  # a hundred programs, one after the other
async def test_the_examples_of_the_help_work(operator: Operator, run: command_line.CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    (folder / ".config/fish/completions").mkdir(parents=True)
    run = run.other(HOME=str(folder))
    chain = (tools.ROOT / "manifests/chains/kubernetes-agent-chain.yaml").read_text()
    (folder / "chain.yaml").write_text(chain)
    (folder / "platform.yaml").write_text("{}")
    (folder / "tarsy.yaml").write_text((tools.ROOT / "tests/founding/tarsy.yaml").read_text())
    (folder / "alert.yaml").write_text(json.dumps(manifests.investigation("from-file")))
    await operator.kubectl("apply", "-f", "-", input=chain)
    await told_away(run, set())
    wrong = {}
    for name, command in commands.commands():
        for example in commands.examples(command):
            if example in LEFT_OUT:
                continue
            await operator.kubectl("delete", "inv", "web-crash", "--ignore-not-found")
            await operator.apply(
                manifests.investigation("web-crash", suspend=name in ("cancel", "suspend", "unsuspend"))
            )
            if name not in ("cancel", "suspend", "unsuspend"):
                await operator.finished("web-crash")
            ended = await shell(run, example, folder=folder)
            if ended.code != EXIT_CODES.get(example, 0):
                wrong[example] = ended
    assert wrong == {}


async def test_kubectl_completes_names_from_the_cluster(
    operator: Operator, run: command_line.CommandLine, tmp_path: Path
) -> None:
    await operator.apply(manifests.investigation("web-crash"), manifests.investigation("db-crash"))

    completed = await shell(run, "kubectl __complete tarsy get web", folder=tmp_path)
    assert completed.out.splitlines() == ["web-crash", ":4"], completed
    assert "watch" in (await shell(run, "kubectl __complete tarsy wat", folder=tmp_path)).out
    namespaces = await shell(run, f"kubectl_complete-tarsy list -n {operator.namespace[:8]}", folder=tmp_path)
    assert operator.namespace in namespaces.out.splitlines()
    assert (await shell(run, "kubectl_complete-tarsy list --context l", folder=tmp_path)).out == "local\n:4\n"
    chains = await shell(run, "kubectl_complete-tarsy chain get ''", folder=tmp_path)
    assert chains.out.splitlines() == ["kubernetes", ":4"]
    through = await shell(run, "kubectl tarsy get web-crash -o name", folder=tmp_path)
    assert through.out == "alertinvestigation.tarsy.dev/web-crash\n", through
    bash = "source <(tarsy completion bash); COMP_WORDS=(tarsy get db); COMP_CWORD=2; _tarsy_completion tarsy"
    bash += '; echo "${COMPREPLY[@]}"'
    assert (await shell(run, bash, folder=tmp_path)).out == "db-crash\n"


async def test_an_account_that_may_only_view_reads_and_changes_nothing(
    operator: Operator,
    run: command_line.CommandLine,
    admin: client.Cluster,
    plane: controlplane.Administrator,
) -> None:
    may = {"alertinvestigations": ["get", "list", "watch"], "agentchains": ["get", "list"]}
    token = await accounts.create(admin, "viewer", may=may)
    config = plane.kubeconfig(namespace=operator.namespace, user="viewer", token=token)
    viewer = run.other(KUBECONFIG=str(config), TARSY_TOKEN=None)
    await operator.apply(manifests.investigation("web-crash"))
    await operator.finished("web-crash")
    await operator.apply(manifests.investigation("held", suspend=True))

    for command in ("get", "logs", "events", "why", "export", "wait", "watch"):
        ended = await viewer.run(command, "web-crash")
        assert ended.code == 0, ended
    assert (await viewer.run("list")).code == 0
    assert (await viewer.run("chain", "list")).code == 0
    for arguments, verb in (
        (("cancel", "held"), 'cannot patch resource "alertinvestigations"'),
        (("chat", "web-crash", "why?"), "may not update alertinvestigations"),
        (("investigate", "--alert", "kubernetes", "--data", "x"), "may not create alertinvestigations"),
        (
            ("investigate", "--alert", "kubernetes", "--data", "x", "-n", "default"),
            "may not create alertinvestigations",
        ),
    ):
        refused = await viewer.run(*arguments)
        assert (refused.code, verb in refused.err) == (7, True), refused
