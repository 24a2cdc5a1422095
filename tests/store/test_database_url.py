"""One URL, read by one rule: by the engine, by the heartbeat and by who listens."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import types
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from tarsy.cli import main
from tarsy.config.load import settings
from tarsy.process import migration
from tarsy.store.base import databases, hints, notify
from tarsy.store.queue import heartbeats
from tarsy_dev import patience
from tarsy_dev import postgres as launcher

WRONG: list[tuple[Callable[[str], str], str]] = [
    (
        lambda url: url.replace("postgres:", "postgres:s3cret", 1),
        "the server refuses this user with this password (InvalidPasswordError, SQLSTATE 28P01)",
    ),
    (lambda url: f"{url}s3cret", "the server has no database of this name (InvalidCatalogNameError, SQLSTATE 3D000)"),
    (lambda url: f"{url}?sslmode=require", "rejected SSL upgrade"),
    (lambda url: f"{url}?sslmode=s3cret", "`sslmode` parameter must be one of: disable, "),
    (
        lambda url: f"{url}?target_session_attrs=s3cret",
        "asyncpg does not accept DATABASE_URL (ClientConfigurationError)",
    ),
    (lambda url: f"{url}?s3cret=1", "not a setting of the server (UndefinedObjectError, SQLSTATE 42704)"),
    (lambda url: f"postgresql:///t?user=u&host=/s3cret&password={url}", "No such file or directory"),
]
NAMES = ["password", "database", "no TLS", "sslmode", "target", "setting", "socket"]


async def query(url: str) -> None:
    database = databases.Database(url)
    try:
        async with database.begin():
            pass
    finally:
        await database.close()


async def beat(url: str) -> None:
    heartbeat = heartbeats.Heartbeat(url, lease=timedelta(minutes=10))
    try:
        await heartbeat.beat({})
    finally:
        await heartbeat.close()


async def listen(url: str) -> None:
    heard = asyncio.Event()
    listening = asyncio.create_task(notify.Listener(url, hints.Channels({notify.WORK: lambda _: heard.set()})).run())
    async with patience.limit():
        await heard.wait()
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening


@pytest.mark.parametrize("use", [query, beat, listen])
async def test_setting_of_the_url_applies_to_all_connections(
    database: databases.Database, use: Callable[[str], Awaitable[None]]
) -> None:
    await use(f"{database.url}?sslmode=prefer")


@pytest.mark.parametrize("use", [query, beat])
@pytest.mark.parametrize(("spoil", "reason"), WRONG, ids=NAMES)
async def test_refused_connection_states_the_reason(
    database: databases.Database, use: Callable[[str], Awaitable[None]], spoil: Callable[[str], str], reason: str
) -> None:
    with pytest.raises(databases.StoreDownError) as error:
        await use(spoil(database.url))
    assert reason in str(error.value)
    assert "s3cret" not in str(error.value)


async def test_refused_listener_logs_the_reason_and_tries_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", 0.0)
    listening = asyncio.create_task(notify.Listener(f"{database_url}nowhere", hints.Channels()).run())
    with caplog.at_level(logging.WARNING):
        async with patience.limit():
            while len(caplog.messages) < 2:
                assert not listening.done()
                await asyncio.sleep(0)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert all("the server has no database of this name" in message for message in caplog.messages)


@pytest.mark.parametrize(("spoil", "reason"), WRONG, ids=NAMES)
def test_migrate_reports_the_refusal_reason_of_the_database_in_one_line(
    database_url: str, spoil: Callable[[str], str], reason: str
) -> None:
    result = CliRunner().invoke(main.main, ["migrate"], env={"DATABASE_URL": spoil(database_url)})
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: cannot connect to the database: ")
    assert reason in line
    assert database_url.split("@")[0].rpartition(":")[2] not in line
    assert "s3cret" not in line


def test_migrate_reports_a_missing_database_right_in_one_line(database_url: str, postgres: launcher.Access) -> None:
    """As a new user of PostgreSQL 15 or newer, who may create nothing in public."""
    name = database_url.rpartition("/")[2]
    postgres.execute(f"CREATE ROLE guest_{name} LOGIN PASSWORD 'guest'")
    guest = f"postgresql://guest_{name}:guest@127.0.0.1:{postgres.port}/{name}"
    result = CliRunner().invoke(main.main, ["migrate"], env={"DATABASE_URL": guest})
    message = "the database user lacks a right on the schema: permission denied for schema public"
    assert (result.exit_code, result.output) == (1, f"Error: {message}\n")


async def test_migrate_waits_for_missing_parts_and_names_them(
    database_url: str, postgres: launcher.Access, tmp_path: Path
) -> None:
    """For the Secret, then for the database of its URL, then for the way into it."""
    file, (address, _, name) = tmp_path / "uri", database_url.rpartition("/")
    url = settings.database_url({"DATABASE_URL_FILE": str(file)})
    reports: asyncio.Queue[str] = asyncio.Queue()
    migrating = asyncio.create_task(migration.migrate(url, patience=60, waits=reports.put_nowait))
    try:
        assert await reports.get() == "DATABASE_URL_FILE: the file that it names: No such file or directory"
        file.write_text(f"{address}/later_{name}")
        assert "the server has no database of this name" in await reports.get()
        file.write_text(database_url.replace("postgres:", "postgres:s3cret", 1))
        assert "refuses this user with this password" in await reports.get()
        file.write_text(database_url)
        assert await migrating == ""
    finally:
        migrating.cancel()
    assert reports.empty()


def test_migrate_waits_no_longer_than_its_limit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take a second for the first attempt alone."""
    moments = iter((0.0, 0.9, 1.1))  # the start, and the ends of two attempts
    monkeypatch.setattr(migration, "time", types.SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(migration, "RETRY_SECONDS", 0.0)
    result = CliRunner().invoke(main.main, ["migrate", "--wait=1s"], env={"DATABASE_URL": f"{database_url}_later"})
    assert result.exit_code == 1
    waiting, error = result.output.splitlines()
    assert waiting.startswith("Waiting: cannot connect to the database: the server has no database of this name")
    assert waiting.removeprefix("Waiting: ") == error.removeprefix("Error: ")


def test_migrate_that_waits_ends_on_a_signal(tmp_path: Path) -> None:
    """As the first process of a container, which no signal ends that it does not ask for."""
    code = "from tarsy.cli.main import main; main(['migrate', '--wait'])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DATABASE_URL_FILE": str(tmp_path / "none")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("Waiting: DATABASE_URL_FILE: the file that it names: ")
        waiting.terminate()
        assert waiting.wait(60) == 1
        assert waiting.stderr.read().strip() == "Aborted!"


def test_migrate_leaves_a_newer_schema_that_serves_it(migrated_url: str, postgres: launcher.Access) -> None:
    postgres.execute(
        "UPDATE alembic_version SET version_num = '9999', serves = '{9999}' || serves",
        database=migrated_url.rpartition("/")[2],
    )
    result = CliRunner().invoke(main.main, ["migrate"], env={"DATABASE_URL": migrated_url})
    message = "The database has the newer schema 9999, which supports this version: nothing was changed.\n"
    assert (result.exit_code, result.output) == (0, message)
