"""Backups, rights and another cluster as docs/operations.md describes them, done with Postgres's own programs."""

from __future__ import annotations

import time

import pytest
from support import backups, queue, stories, supervisors
from tarsy.store.base import databases, schema
from tarsy.store.fleet import leader
from tarsy.store.queue import journal
from tarsy.transcript import memory
from tarsy_dev import postgres as launcher


@pytest.fixture
def other_url(postgres: launcher.Access) -> str:
    """Another, empty database."""
    return postgres.create_database("restored")


async def test_a_restored_dump_goes_on_with_what_ran_and_has_what_ended(
    database: databases.Database, other_url: str, postgres: launcher.Access, tmp_path_factory: pytest.TempPathFactory
) -> None:
    running, ended = await queue.admit(database), await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.stage_started("collect"), stories.started(stage="collect"), stories.asks("k8s.get"))
    dump = backups.dump(database.url, tmp_path_factory.mktemp("dump") / "tarsy.dump")
    restored = databases.Database(backups.restore(dump, other_url))
    try:
        assert await schema.missing(restored) == ""
        for identity in (running, ended):
            snapshot, log = await journal.read(restored, identity)
            assert (snapshot, log) == await journal.read(database, identity)
        await queue.let_leases_pass(restored)
        worker = supervisors.supervisor(restored, memory.ScriptedModel())
        claims = {}
        while (claim := await queue.claim(restored)) is not None:
            claims[claim.investigation] = claim
            await worker.run(worker.lease_manager.hold(claim, sent=time.monotonic()))
        assert set(claims) == {running, ended}
        assert {claim.attempts for claim in claims.values()} == {1, 2}
    finally:
        await restored.close()
        postgres.drop_database("restored")


async def test_database_of_another_cluster_is_detected_until_an_admin_accepts_it(database: databases.Database) -> None:
    assert await leader.remember_cluster(database, "first")
    assert not await leader.remember_cluster(database, "second")
    await queue.execute(database, "DELETE FROM clusters")
    assert await leader.remember_cluster(database, "second")


async def test_the_operators_user_needs_the_rights_to_rows_and_no_others(
    database: databases.Database, postgres: launcher.Access, migrated: str
) -> None:
    postgres.execute(
        "CREATE ROLE tarsy_app LOGIN PASSWORD 'app';"
        "GRANT USAGE ON SCHEMA public TO tarsy_app;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO tarsy_app;"
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO tarsy_app;",
        database=migrated,
    )
    host = database.url.rpartition("@")[2]
    own = databases.Database(f"postgresql://tarsy_app:app@{host}")
    try:
        assert await schema.missing(own) == ""
        await queue.admit(own)
        held = await queue.opened(own, await queue.claimed(own))
        await held.commit(stories.stage_started("collect"), stories.started(stage="collect"), stories.answers())
        with pytest.raises(databases.NotOpenError):
            await queue.execute(own, "CREATE TABLE made (a int)")
    finally:
        await own.close()
        postgres.execute("DROP OWNED BY tarsy_app; DROP ROLE tarsy_app", database=migrated)
