"""`tarsy config` and `tarsy chain`: light until they read something, and then all problems at once, and 1."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support import mutations
from tarsy.cli.main import COMMANDS, main
from tarsy.config.load import loader
from tarsy_dev import tools

FOUNDING = tools.ROOT / "tests/founding"
CHAINS = tools.ROOT / "manifests/chains"
REFERENCE = tools.ROOT / "config/reference.yaml"
VARIABLES = mutations.ENVIRONMENT | {"GOOGLE_CLOUD_PROJECT": "p", "LOGS_API_KEY": "k", "LANGFUSE_AUTH": "a"}


HEAVY = {"asyncio", "json", "logging", "ssl", "socket", "urllib.request"}
"""Modules of the standard library that take long to import."""


def run(*arguments: str | Path, **environment: str) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), env=environment)


def modules(*arguments: str) -> set[str]:
    """Return the modules that a command has imported by its end."""
    code = (
        "import sys\n"
        "from tarsy.cli.main import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name for name in ended.stderr.split() if name.partition(".")[0] not in sys.stdlib_module_names - HEAVY}


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"migrate", "operator"}))
def test_a_command_imports_neither_other_rooms_nor_what_is_slow(command: str) -> None:
    imported = modules(command, "--help")

    assert not imported & {"pydantic", "yaml", "asyncio", "ssl", "socket", "urllib.request", "sqlalchemy", "kubernetes"}
    assert [name for name in imported if name.startswith("tarsy.") and not name.startswith("tarsy.cli")] == []


def test_a_command_that_asks_stays_light() -> None:
    imported = modules("get", "--uid", "x", "-n", "tarsy", "--api", "http://127.0.0.1:1", "--token-file", "/dev/null")

    assert "socket" in imported, "it has asked"
    assert not imported & {"pydantic", "yaml", "asyncio", "aiohttp", "sqlalchemy", "kubernetes", "mcp", "tarsy.config"}


def test_a_check_starts_no_operator(tmp_path: Path) -> None:
    heavy = {"kopf", "kubernetes", "sqlalchemy", "asyncpg", "mcp", "fastapi", "uvicorn", "aiohttp", "tarsy.process"}
    assert not modules("config", "check", str(tools.ROOT / "config/tarsy.yaml")) & heavy
    assert not modules("chain", "lint", *map(str, sorted(CHAINS.iterdir()))) & heavy
    file = str(FOUNDING / "security-incident.yaml")
    assert not modules("chain", "convert", file, "-o", str(tmp_path / "out")) & heavy


def test_check_commands_report_valid_platform_file_and_chains_as_correct() -> None:
    checked = run("config", "check", tools.ROOT / "config/tarsy.yaml")
    assert (checked.exit_code, checked.stdout) == (0, f"{tools.ROOT}/config/tarsy.yaml: nothing is wrong with it.\n")
    linted = run("chain", "lint", *CHAINS.iterdir())
    assert (linted.exit_code, linted.stderr) == (0, "")
    single_file = run("chain", "lint", min(CHAINS.iterdir()))
    assert single_file.stdout == "1 document in 1 file: nothing is wrong.\n"


def test_runbook_token_without_repositories_is_a_warning_of_the_check(tmp_path: Path) -> None:
    file = tmp_path / "tarsy.yaml"
    file.write_text("runbooks: {token_env: T_KEN}\n")
    checked = run("config", "check", file)
    assert (checked.exit_code, checked.stdout) == (0, f"{file}: nothing is wrong with it.\n")
    assert checked.stderr.startswith(
        f"{file}: warning: runbooks.token_repositories is empty: the token is sent nowhere"
    )


def test_check_that_knows_the_operators_namespace_names_those_that_are_not_served(tmp_path: Path) -> None:
    file = tmp_path / "tarsy.yaml"
    file.write_text("namespaces: [shop]\ningest: {namespace: shops}\n")
    assert run("config", "check", file).exit_code == 0, "shops may be its own"
    checked = run("config", "check", "-n", "tarsy", file)
    assert checked.exit_code == 1
    assert f"{file}:2: ingest.namespace: 'shops' is not served: add it to namespaces" in checked.stderr
    file.write_text("mcp_servers: {s: {transport: {type: stdio, command: x}, allowed_namespaces: [shop]}}\n")
    checked = run("config", "check", "-n", "tarsy", file)
    assert checked.exit_code == 0
    assert "mcp_servers.s.allowed_namespaces: 'shop' is not served and has no effect" in checked.stderr


def test_chain_lint_reports_problems_of_all_files_at_once(tmp_path: Path) -> None:
    bad, worse = tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    bad.write_text(
        mutations.CHAIN.replace("maxIterations: 20", "maxIterations: 0").replace("agent: Chat", "agent: Chad")
    )
    worse.write_text("kind: [")
    ended = run("chain", "lint", bad, worse, tmp_path, tmp_path / "gone.yaml")
    assert ended.exit_code == 1
    lines = ended.stderr.removeprefix("Error: ").splitlines()
    reported = [line.partition(": ")[0].replace(f"{tmp_path}/", "") for line in lines]
    assert reported == [str(tmp_path), "bad.yaml:12", "bad.yaml:43", "gone.yaml", "worse.yaml:1"]


def test_chains_are_checked_against_the_given_platform_file(tmp_path: Path) -> None:
    platform, chain = tmp_path / "tarsy.yaml", tmp_path / "chain.yaml"
    platform.write_text("agents: {Mine: {}}")
    chain.write_text(yaml.safe_dump(yaml.safe_load(mutations.CHAIN)).replace("agent: ChatAgent", "agent: Mine"))
    assert "unknown agent 'Mine'" in run("chain", "lint", chain).stderr
    assert run("chain", "lint", chain, "--config", platform).exit_code == 0
    assert run("chain", "lint", chain, TARSY_CONFIG=str(platform)).exit_code == 0
    platform.write_text("agents: {Mine: {x: 1}}")
    ended = run("chain", "lint", chain, "--config", platform)
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"Error: the platform file is wrong:\n{platform}:1: agents.Mine: unknown: x.")


def test_a_check_needs_the_variables_that_the_operator_needs(tmp_path: Path) -> None:
    file = tmp_path / "tarsy.yaml"
    file.write_text(mutations.PLATFORM)
    assert run("config", "check", file, **mutations.ENVIRONMENT).exit_code == 0
    ended = run("config", "check", file, KUBECONFIG="k", LOGS=None)  # type: ignore[arg-type]
    assert ended.exit_code == 1
    assert f"{file}:32: mcp_servers.logs-server.transport.url: the variable LOGS is not set" in ended.stderr


def test_a_check_takes_the_platform_file_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tarsy.yaml"
    file.write_text("agents: {Mine: {x: 1}}")
    ended = run("config", "check", TARSY_CONFIG=str(file))
    assert (ended.exit_code, ended.stderr.partition("agents.Mine")[0]) == (1, f"Error: {file}:1: ")
    assert run("config", "check", tools.ROOT / "config/tarsy.yaml", TARSY_CONFIG=str(file)).exit_code == 0
    ended = run("config", "check", TARSY_CONFIG=None)  # type: ignore[arg-type]
    assert ended.exit_code == 2
    assert "no platform file: give FILE, or set TARSY_CONFIG" in ended.stderr


def test_converted_files_pass_the_other_commands(tmp_path: Path) -> None:
    out = tmp_path / "out/put"
    ended = run("chain", "convert", FOUNDING / "tarsy.yaml", FOUNDING / "llm-providers.yaml", "-o", out)
    assert ended.exit_code == 0, ended.stderr
    assert sorted(out.iterdir()) == [out / "crash-loop.yaml", out / "native.yaml", out / "tarsy.yaml"]
    assert "tarsy.yaml:3: system.dashboard_url: TARSy does not have this yet: left out\n" in ended.stderr
    google = ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"]
    variables = dict.fromkeys(["CLUSTER_HOST", "KUBECONFIG", "OPENAI_MODEL", *google], "x")
    variables["OPENAI_URL"] = "http://openai.example"
    assert run("config", "check", out / "tarsy.yaml", **variables).exit_code == 0
    chains = [out / "crash-loop.yaml", out / "native.yaml"]
    linted = run("chain", "lint", *chains, "--config", out / "tarsy.yaml")  # without the variables
    assert linted.exit_code == 0, linted.stderr


def test_conversion_replaces_no_file_and_leaves_none_half_written(tmp_path: Path) -> None:
    file, out = FOUNDING / "security-incident.yaml", tmp_path / "out"
    out.mkdir()
    (out / "security-incident-chain.yaml").write_text("mine")
    ended = run("chain", "convert", file, "-o", out)
    assert ended.exit_code == 1
    assert f"existing files are not replaced: {out}/security-incident-chain.yaml" in ended.stderr
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("security-incident-chain.yaml", "mine")]
    ended = run("chain", "convert", FOUNDING / "strategy-chains.yaml", "-o", tmp_path / "new")
    assert (ended.exit_code, (tmp_path / "new").exists()) == (1, False)
    ended = run("chain", "convert", file, "-o", out / "security-incident-chain.yaml")
    assert ended.exit_code == 1
    assert "Error: " in ended.stderr


@pytest.mark.parametrize("name", ["tarsy.yaml", "reference.yaml"])
def test_the_schema_fits_the_files_and_names_itself_in_them(name: str) -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    text = (tools.ROOT / "config" / name).read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=tarsy.schema.json\n")
    validator = jsonschema_rs.validator_for(json.loads((tools.ROOT / "config/tarsy.schema.json").read_text()))
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []
    for old, new in (("max_iterations: 20", "max_iterations: 500"), ("  llm_provider:", "  provider:")):
        assert not validator.is_valid(yaml.safe_load(text.replace(old, new, 1)))


def test_every_example_in_platform_file_reference_is_accepted() -> None:
    loader.platform_file(REFERENCE, environment=VARIABLES)
    page = (tools.ROOT / "docs/platform-file.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert all(len(row) == 6 and row[1] and row[2:5] and row[4].strip("`") for row in rows)
