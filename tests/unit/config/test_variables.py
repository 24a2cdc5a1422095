"""`{{.VAR}}` in the platform file: what is put in, what stays text, what is told, and what is never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tarsy.config.load import loader
from tarsy.config.model import server_transports
from tarsy.config.redact import view

FILE = """\
mcp_servers:
  logs:
    transport:
      type: stdio
      command: "{{.HOME_OF_TOOLS}}/logs-mcp"
      args: ["--token={{ .TOKEN }}", --level, "${LEVEL}"]
      env: {TOKEN: "{{.TOKEN}}"}
    instructions: |
      Write ${NAMESPACE} and {{ $labels.pod }} and {{ .Values.image }} as they are.
      Containers: docker ps --format '{{"{{.Names}}"}}'
  remote:
    transport: {type: http, url: "https://{{.HOST}}:{{.PORT}}/mcp"}
agents:
  A: {max_iterations: "{{.MANY}}", mcp_servers: [logs]}
  B: {max_iterations: {{.MANY}}}
"""
SECRET = "k3y-7f9a2c4e8b1d6035"
ENVIRONMENT = {"HOME_OF_TOOLS": "/opt", "TOKEN": SECRET, "HOST": "mcp.example", "PORT": "8443", "MANY": "7"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tarsy.yaml"
    file.write_text(FILE)
    return file


def test_variables_are_put_into_strings_and_everything_else_stays_text(file: Path) -> None:
    platform = loader.platform_file(file, environment=ENVIRONMENT)
    transport = platform.mcp_servers["logs"].transport
    assert isinstance(transport, server_transports.StdioTransport)
    assert transport.command == "/opt/logs-mcp"
    assert transport.args == [f"--token={SECRET}", "--level", "${LEVEL}"]
    assert transport.env == {"TOKEN": SECRET}
    assert platform.mcp_servers["logs"].instructions == (
        "Write ${NAMESPACE} and {{ $labels.pod }} and {{ .Values.image }} as they are.\n"
        "Containers: docker ps --format '{{.Names}}'\n"
    )
    remote = platform.mcp_servers["remote"].transport
    assert isinstance(remote, server_transports.HTTPTransport)
    assert remote.url == "https://mcp.example:8443/mcp"
    assert (platform.agents["A"].max_iterations, platform.agents["B"].max_iterations) == (7, 7)


def test_variable_value_is_inserted_as_plain_text(file: Path) -> None:
    """A value is not read again: not as YAML, and not for variables."""
    for value in ("{{.TOKEN}}", "a: [b", "'", "\n- x", '{{"{{.TOKEN}}"}}'):
        platform = loader.platform_file(file, environment=ENVIRONMENT | {"TOKEN": value})
        transport = platform.mcp_servers["logs"].transport
        assert isinstance(transport, server_transports.StdioTransport)
        assert transport.env == {"TOKEN": value}


def test_all_missing_variables_are_reported_with_line_location_and_name(file: Path) -> None:
    with pytest.raises(loader.ConfigError) as error:
        loader.platform_file(file, environment={"MANY": "7", "HOST": "h"})
    ends = "is not set: set it in the environment"
    assert str(error.value).replace(str(file), "F").splitlines() == [
        f"F:5: mcp_servers.logs.transport.command: the variable HOME_OF_TOOLS {ends}",
        f"F:6: mcp_servers.logs.transport.args.0: the variable TOKEN {ends}",
        f"F:7: mcp_servers.logs.transport.env.TOKEN: the variable TOKEN {ends}",
        f"F:12: mcp_servers.remote.transport.url: the variable PORT {ends}",
    ]


def test_unsuitable_variable_value_is_refused_and_never_shown(file: Path) -> None:
    for name in ("MANY", "PORT"):
        with pytest.raises(loader.ConfigError) as error:
            loader.platform_file(file, environment=ENVIRONMENT | {name: SECRET})
        assert SECRET not in str(error.value)
        assert str(file) in str(error.value)


def test_platform_file_is_shown_with_unexpanded_variables_and_hidden_values(file: Path) -> None:
    loaded = loader.as_written(file, environment=ENVIRONMENT)
    assert loaded.written["agents"]["B"] == {"max_iterations": "{{.MANY}}"}
    redacted = view.redact(loaded.written, used=loaded.used)
    assert redacted.written == view.redact(loaded.written).written
    assert redacted.written["mcp_servers"]["logs"]["transport"]["env"] == {"TOKEN": "{{.TOKEN}}"}
    assert redacted.written["mcp_servers"]["logs"]["transport"]["args"][0] == f"--token={view.MASKED}"
    assert SECRET not in json.dumps(redacted.written)
    assert SECRET not in repr(loaded).split("platform=", maxsplit=1)[0]
    assert redacted.redact_text(f"cannot start: --token={SECRET}, {SECRET}!") == (
        f"cannot start: {view.MASKED}, {view.MASKED}!"
    )


def test_digest_of_the_shown_file_does_not_depend_on_variable_values(file: Path) -> None:
    digests = set()
    for token in (SECRET, "another-" + SECRET):
        loaded = loader.as_written(file, environment=ENVIRONMENT | {"TOKEN": token})
        digests.add(view.redact(loaded.written, used=loaded.used).digest)
    assert len(digests) == 1
