"""Which secrets a process was given: judged by names, found in its environment, its platform file and named files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tarsy.config.load import loader
from tarsy.config.model import platforms
from tarsy.config.redact import secret_values
from tarsy.resources import files

FILE = """
defaults: {{alert_masking: {{pattern_group: basic}}}}
llm_providers:
  a: {{type: openai, model: m, api_key_env: FOO, api_key_file: {folder}/key}}
  v: {{type: vertexai, model: m, credentials_file: {folder}/account.json}}
mcp_servers:
  s:
    transport:
      type: stdio
      command: c
      args: [--token, given-arg-1, "--api-key=given-arg-2", "--url=http://u:given-arg-3@h/x", --verbose]
      env: {{LOGS_TOKEN: given-env-1, KUBECONFIG: /a/b, PG: "postgres://u:given%2Fenv@h/db", MODE: fast-mode-1}}
  h:
    transport:
      type: http
      url: "https://h/mcp?api_key=given-url-1&page=12345678"
      headers:
        X-Api-Key: given-header-1
        Authorization: Basic given-header-2
        X-Scope: shop-is-no-secret
        Cookie: given-header-3=a; b=given-header-4
      ca_file: {folder}/ca
      certificate_file: {folder}/certificate
      key_file: {folder}/tls-key
  t:
    transport: {{type: sse, url: "http://t:80/sse", bearer_token_env: SSE_TOKEN, bearer_token_file: {folder}/token}}
runbooks: {{token_env: ASKED_WITH, token_file: {folder}/asked-with}}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> platforms.Platform:
    (tmp_path / "key").write_text("given-file-1\n", encoding="utf-8")
    for name in ("ca", "certificate", "tls-key", "token"):
        (tmp_path / name).write_text(f"given-{name}-1\n", encoding="utf-8")
    (tmp_path / "asked-with").write_text("given-file-2\n", encoding="utf-8")
    account = {"type": "service_account", "private_key": "given-account-1", "client_email": "web@example.com"}
    (tmp_path / "account.json").write_text(json.dumps(account), encoding="utf-8")
    [document] = files.parse(FILE.format(folder=tmp_path), file="f")
    return loader.loaded(document, environment={}).platform


def test_secrets_in_the_platform_file_are_found(loaded: platforms.Platform) -> None:
    environment = {
        "FOO": "given-key-1", "SSE_TOKEN": "given-sse-1", "ASKED_WITH": "given-key-2", "BAR": "no-secret-1"
    }  # fmt: skip
    secrets = secret_values.collect(loaded, environment)
    assert set(secrets) == {
        *("given-key-1", "given-key-2", "given-file-1", "given-file-2", "given-account-1"),
        *("given-arg-1", "given-arg-2", "given-arg-3"),
        *("given-env-1", "given%2Fenv", "given/env", "given-url-1"),
        *(
            *("given-header-1", "given-header-2", "given-header-3=a; b=given-header-4", "a", "given-header-4"),
            *("given-tls-key-1", "given-token-1", "given-sse-1"),
        ),
    }


def test_secrets_in_the_environment_are_found(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgres://tarsy:given-db-2@db/tarsy\n", encoding="utf-8")
    (tmp_path / "hook").write_text("given-hook-2\n", encoding="utf-8")
    environment = {
        "DATABASE_URL": "postgres://tarsy:given-db-1@db/tarsy",
        "DATABASE_URL_FILE": str(tmp_path / "url"),
        "TARSY_WEBHOOK_TOKEN": "given-hook-1",
        "TARSY_WEBHOOK_TOKEN_FILE": str(tmp_path / "hook"),
        "AWS_SECRET_ACCESS_KEY": "given-aws-1",
        "TOKEN_URL": "https://idp/token",
        "SECRET_FILE": str(tmp_path / "missing"),
        "PATH": "/usr/bin",
    }
    secrets = set(secret_values.collect(platforms.Platform(), environment))
    expected = {f"given-{what}-{number}" for what in ("db", "hook") for number in (1, 2)} | {"given-aws-1"}
    assert expected <= secrets
    assert secrets - expected == {"postgres://tarsy:given-db-2@db/tarsy"}


def test_the_pepper_is_the_databases_password_from_the_file_first(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgres://tarsy:p%2Fw@db/tarsy\n", encoding="utf-8")
    environment = {"DATABASE_URL": "postgres://tarsy:other@db/tarsy"}
    assert secret_values.pepper(environment) == "other"
    assert secret_values.pepper(environment | {"DATABASE_URL_FILE": str(tmp_path / "url")}) == "p/w"
    assert secret_values.pepper({"DATABASE_URL": "postgres://db/tarsy"}) == ""
