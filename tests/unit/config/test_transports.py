"""The files that MCP servers are reached with: which they are, when they have changed, and the token in one."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from tarsy.config.load import secret_files
from tarsy.config.model import platforms, server_transports
from tarsy.process.runtime import platform_file

KEYS = ("bearer_token_file", "ca_file", "certificate_file", "key_file")


def remote(**keys: Any) -> server_transports.RemoteTransport:
    settings = {"type": "http", "url": "https://h/mcp", **{key: str(value) for key, value in keys.items()}}
    return server_transports.HTTPTransport.model_validate(settings)


def platform_of(**named: server_transports.Transport) -> platforms.Platform:
    return platforms.Platform(
        mcp_servers={name: platforms.MCPServer(transport=transport) for name, transport in named.items()}
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {key: tmp_path / key for key in KEYS}
    for key, path in made.items():
        path.write_text(key, encoding="utf-8")
    return made


def test_all_files_of_servers_are_looked_at_with_the_platform_file(files: dict[str, Path]) -> None:
    local = server_transports.StdioTransport(type="stdio", command="c")
    settings = platform_of(one=remote(**files), other=remote(bearer_token_file="/run/other"), local=local)
    paths = {*files.values(), Path("/run/other")}
    assert secret_files.server_files(settings) == paths
    assert paths <= platform_file.files_beside(settings), "a running process looks at them"


@pytest.mark.parametrize("key", KEYS)
def test_each_change_of_a_file_is_seen(files: dict[str, Path], key: str) -> None:
    settings = remote(**files)
    seen = [secret_files.server_digests(settings)]
    assert secret_files.server_digests(settings) == seen[0]
    files[key].write_text("changed", encoding="utf-8")
    seen.append(secret_files.server_digests(settings))
    files[key].unlink()
    seen.append(secret_files.server_digests(settings))
    assert all(digest != other for digest, other in itertools.pairwise(seen))


def test_a_pipe_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    settings = remote(bearer_token_file=pipe)
    assert secret_files.server_digests(settings) == {pipe: b""} == {pipe: secret_files.digest(pipe)}
    with pytest.raises(secret_files.UnusableError, match=r"^bearer_token_file: not a file: a pipe or a device"):
        secret_files.bearer_token(settings, {})


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("s3cret one", "the token has characters that no token has"),
        ("s3cret\nX-Other: y", "the token has characters that no token has"),
        ("s3crèt", "the token has characters that no token has"),
    ],
)
def test_invalid_token_is_reported_without_its_text(tmp_path: Path, written: str, problem: str) -> None:
    file = tmp_path / "token"
    file.write_text(written, encoding="utf-8")
    with pytest.raises(secret_files.UnusableError) as error:
        secret_files.bearer_token(remote(bearer_token_file=file), {})
    assert str(error.value) == f"bearer_token_file: {problem}"


def test_a_token_of_a_file_goes_before_that_of_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-file\n", encoding="utf-8")
    environment = {"TOKEN": " of-variable\n"}
    assert secret_files.bearer_token(remote(bearer_token_file=file, bearer_token_env="TOKEN"), environment) == "of-file"
    assert secret_files.bearer_token(remote(bearer_token_env="TOKEN"), environment) == "of-variable"
    assert secret_files.bearer_token(remote(), environment) is None


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(secret_files.UnusableError, match=r"^bearer_token_env: the variable MCP_TOKEN is not set$"):
        secret_files.bearer_token(remote(bearer_token_env="MCP_TOKEN"), {})
