"""A platform file that was prepared and then not put in force leaves nothing behind of what was made for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.masking import NO_SECRETS
from tarsy.config.load import reload
from tarsy.config.model import platforms
from tarsy.process.runtime import clients, platform_file
from tarsy.store.base import databases
from tarsy.store.fleet import pins, rate_limits
from tarsy.transcript import ports

NOBODY = "postgresql://postgres@127.0.0.1:1/postgres"


def written(folder: Path, *agents: str, **servers: str) -> dict[str, Any]:
    provider = {"type": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "api_key_file": str(folder / "key")}
    return {
        "llm_providers": {"kept": provider},
        "mcp_servers": {name: {"transport": {"type": "http", "url": url}} for name, url in servers.items()},
        "agents": {name: {} for name in agents},
    }


@pytest.fixture
async def equipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[clients.Clients]:
    """That of a file with a provider and a server; nothing is connected, because its pool does not run."""
    monkeypatch.setattr(clients, "SETTLE_SECONDS", 0.0)
    (tmp_path / "key").write_text("k")
    (tmp_path / "tarsy.yaml").write_text(str(written(tmp_path, kept="http://127.0.0.1:1/mcp")))
    database = databases.Database(NOBODY)
    made = clients.Clients(
        in_force=platform_file.PlatformFile(
            reload.Watch(tmp_path / "tarsy.yaml", environment={}), unusable=lambda _: {}
        ),
        throttle=rate_limits.RateLimits(database, {}),
        pins=pins.Pins(database),
        open_stream=lambda _: nullcontext(ports.NULL_STREAM),
        secrets=NO_SECRETS,
        mask=str,
        loopback=False,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await made.begin(stack)
        yield made


async def closed(made: clients.Clients) -> None:
    """Close what no version has any more."""
    while not made.living._unused.empty():
        await made.living._end(made.living._unused.get_nowait())


async def test_prepared_clients_that_are_dropped_are_let_go(equipped: clients.Clients, tmp_path: Path) -> None:
    before = equipped.models, equipped.pool.tools
    other = platforms.Platform.model_validate(
        written(tmp_path, "mine", kept="http://127.0.0.1:1/mcp", new="http://127.0.0.1:2/mcp")
    )
    prepared = await equipped.prepare(other, {})
    assert len(equipped.living._living) == 2
    (new,) = (server for server in equipped.pool._servers if server.name == "new")
    prepared.drop()
    await closed(equipped)
    assert len(equipped.living._living) == 1
    assert new._closed.is_set()
    assert not equipped.pool.tools.servers["kept"]._closed.is_set()
    assert (equipped.models, equipped.pool.tools) == before


async def test_failure_under_way_lets_go_of_what_there_was(
    equipped: clients.Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: platforms.Platform) -> None:
        raise LookupError("what nobody expected")

    monkeypatch.setattr(equipped.pool, "prepare", fails)
    other = platforms.Platform.model_validate(written(tmp_path, "mine", kept="http://127.0.0.1:1/mcp"))
    with pytest.raises(LookupError):
        await equipped.prepare(other, {})
    await closed(equipped)
    assert len(equipped.living._living) == 1
    assert not equipped.pool.tools.servers["kept"]._closed.is_set()
