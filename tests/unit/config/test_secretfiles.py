"""Files that hold secrets are read without waiting, whatever stands under their names."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tarsy.config.load import reload, secret_files, settings
from tarsy.config.model import platforms
from tarsy.config.redact import secret_values
from tarsy.llm import credentials, provider, registry

NOT_A_FILE = "not a file: a pipe or a device cannot be read again and again"


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def written(content: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content)
        return path

    return write


def folder(path: Path) -> Path:
    path.mkdir()
    return path


PLACES = [
    pytest.param(pipe, NOT_A_FILE, id="a pipe"),
    pytest.param(folder, "Is a directory", id="a folder"),
    pytest.param(lambda _: Path("/dev/zero"), NOT_A_FILE, id="without end"),
    pytest.param(lambda _: Path("/dev/full"), NOT_A_FILE, id="a device"),
    pytest.param(lambda path: path, "No such file or directory", id="nothing"),
    pytest.param(lambda _: Path("a\0b"), "no name of a file", id="NUL"),
    pytest.param(lambda _: Path("a\ud800b"), "no name of a file", id="a lone surrogate"),
    pytest.param(written(b"k" * 65537), "more than 64 KiB: no secret is that long", id="long"),
    pytest.param(written(b"\xff"), "no file of UTF-8 text", id="no text"),
]


@pytest.mark.parametrize(("make", "why"), PLACES)
def test_invalid_secret_file_path_is_reported_and_blocks_nothing(
    make: Callable[[Path], Path], why: str, tmp_path: Path
) -> None:
    """All that reads such a file, one after the other: none of them waits for a writer, or reads on without end."""
    path = make(tmp_path / "key")
    google = {"type": "google", "model": "m", "api_key_file": path}
    vertex = {"type": "vertexai", "model": "m", "credentials_file": path}
    platform = platforms.Platform.model_validate({"llm_providers": {"google": google, "vertex": vertex}})
    environment = {"DATABASE_URL_FILE": str(path), "TARSY_WEBHOOK_TOKEN_FILE": str(path), "OTHER_TOKEN_FILE": str(path)}
    problems: dict[str, str] = {}

    def read() -> None:
        problems.update(registry.unusable(platform, environment={}))
        credentials.key_digest(platform.llm_providers["google"], {})
        reload.Watch(None, environment={}, other_files=lambda _: [path])
        secret_values.collect(platform, environment)
        secret_values.pepper(environment)
        try:
            settings.database_url(environment).read()
        except settings.SecretError as error:
            problems["url"] = str(error)
        try:
            credentials.service_account(path)
        except provider.UnusableError as error:
            problems["account"] = str(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(60)
    assert not reading.is_alive()
    assert problems["google"] == f"api_key_file: {why}"
    assert problems["url"] == f"DATABASE_URL_FILE: the file that it names: {why}"
    expected = "no file of JSON" if why.startswith("no file of") else why
    assert problems["vertex"] == problems["account"] == f"credentials_file: {expected}"


def test_file_is_read_through_links_and_as_it_is_now(tmp_path: Path) -> None:
    """As kubelet mounts a Secret."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "key").write_text(f" {version}\n")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "key").symlink_to("..data/key")
    assert secret_files.read_text(tmp_path / "key") == "one"
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(tmp_path / "..data")
    assert secret_files.read_text(tmp_path / "key") == "two"
    (tmp_path / "full").write_bytes(b"k" * secret_files.LARGEST)
    assert len(secret_files.read(tmp_path / "full")) == secret_files.LARGEST


def test_names_that_are_no_text_hold_no_secret_back() -> None:
    """A lone surrogate, as an escape of YAML or an environment that is not UTF-8 has it."""
    transport = {
        "type": "stdio",
        "command": "c",
        "args": ["--to\udc80ken=given-arg-1"],
        "env": {"\ud800TOKEN": "given-env-1"},
    }
    written = {"mcp_servers": {"s": {"transport": transport}}}
    secrets = secret_values.collect(platforms.Platform.model_validate(written), {"A\udcffPI_KEY": "given-\udcff-key-1"})
    assert "given-env-1" in secrets
    assert "given-\udcff-key-1" in secret_values.collect(platforms.Platform(), {"\udcffAPI_KEY": "given-\udcff-key-1"})
