"""The schema: how it comes to be, and that the tables in the code are the ones in the database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy
from alembic import autogenerate, script
from alembic.runtime import migration
from support import revisions
from tarsy.store.base import databases, schema, tables
from tarsy_dev import postgres as launcher

# What alembic's comparison does not look at: checks, predicates of indexes, actions of foreign keys.
CONSTRAINTS = """
    SELECT conrelid::regclass::text, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version' AND contype <> 'n'
"""

INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"


@pytest.fixture
async def empty(database_url: str) -> AsyncIterator[databases.Database]:
    database = databases.Database(database_url)
    yield database
    await database.close()


async def test_a_second_migration_changes_nothing(empty: databases.Database) -> None:
    async def relations() -> list[tuple[object, ...]]:
        async with empty.begin() as connection:
            select = sqlalchemy.text("SELECT relname, oid FROM pg_class WHERE relnamespace = 'public'::regnamespace")
            return sorted(tuple(row) for row in await connection.execute(select))

    await schema.migrate(empty)
    assert await schema.missing(empty) == ""
    before = await relations()
    await schema.migrate(empty)
    assert await relations() == before
    assert {name for name, _ in before} >= set(tables.metadata.tables)


async def test_migration_waits_longer_for_another_migration_than_for_statements(empty: databases.Database) -> None:
    """For as long as it is told, not for as long as a statement has else."""
    hasty, patient = (databases.Database(empty.url, statement_seconds=seconds) for seconds in (0.2, 60))
    try:
        async with empty.begin() as connection:
            await connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({schema._MIGRATION_LOCK})"))
            waiting = asyncio.create_task(schema.migrate(patient))
            with pytest.raises(databases.StoreDownError):
                await schema.migrate(hasty)
            assert not waiting.done()
        assert await waiting == schema.NEWEST
    finally:
        await hasty.close()
        await patient.close()


async def test_missing_schema_is_reported_with_its_remedy(empty: databases.Database) -> None:
    assert await schema.missing(empty) == "the database's schema, which does not exist yet: `tarsy migrate` creates it"


@pytest.mark.parametrize(
    ("revision", "reason"),
    [
        ("receipts", "which is at receipts, not live: `tarsy migrate` upgrades it"),
        ("newer", "which is at newer, not live: it belongs to another version of tarsy"),
        (None, "which is at no revision, not live: `tarsy migrate` upgrades it"),
    ],
    ids=["older", "newer", "none"],
)
async def test_schema_problem_names_both_versions(empty: databases.Database, revision: str | None, reason: str) -> None:
    await schema.migrate(empty)
    async with empty.begin() as connection:
        await connection.execute(sqlalchemy.text("DELETE FROM alembic_version"))
        if revision:
            await connection.execute(sqlalchemy.text("INSERT INTO alembic_version VALUES (:at)"), {"at": revision})
    assert await schema.missing(empty) == f"the database's schema, {reason}".replace("live", schema.NEWEST)
    assert await schema.missing(empty, check_revision=False) == ""


async def stands_at(database: databases.Database, revision: str, *, serves: list[str]) -> None:
    """Have the schema be at that revision of another version, which says whose programs it serves."""
    async with database.begin() as connection:
        await connection.execute(
            sqlalchemy.text("UPDATE alembic_version SET version_num = :at, serves = :serves"),
            {"at": revision, "serves": serves},
        )


async def test_newer_schema_that_serves_this_program_is_used_unchanged(empty: databases.Database) -> None:
    assert await schema.migrate(empty) == schema.NEWEST
    await stands_at(empty, "newer", serves=["newer", schema.NEWEST])
    assert await schema.missing(empty) == ""
    assert await schema.migrate(empty) == "newer"
    async with empty.begin() as connection:
        rows = await connection.execute(sqlalchemy.text("SELECT version_num, serves FROM alembic_version"))
        assert [tuple(row) for row in rows] == [("newer", ["newer", schema.NEWEST])]


@pytest.mark.parametrize("serves", [[], [schema.NEWEST], ["newer"], ["newer", f"{schema.NEWEST}er"]])
async def test_newer_schema_that_does_not_serve_this_program_is_refused(
    empty: databases.Database, serves: list[str]
) -> None:
    await schema.migrate(empty)
    await stands_at(empty, "newer", serves=serves)
    problem = await schema.missing(empty)
    assert problem.endswith(f"at newer, not {schema.NEWEST}: it belongs to another version of tarsy")
    with pytest.raises(schema.SchemaError, match="belongs to another version of tarsy"):
        await schema.migrate(empty)


async def test_older_schema_is_migrated(empty: databases.Database) -> None:
    """A newer program records for each of its revisions which programs it serves: the record of the older one does not
    count.
    """
    await schema.migrate(empty)
    async with empty.begin() as connection:
        await connection.execute(sqlalchemy.text("ALTER TABLE alembic_version DROP COLUMN serves"))
    assert await schema.missing(empty) == "", "as a schema of before there were such"
    assert await schema.migrate(empty) == schema.NEWEST
    async with empty.begin() as connection:
        (serves,) = (await connection.execute(sqlalchemy.text("SELECT serves FROM alembic_version"))).scalars()
    assert serves[0] == schema.NEWEST


COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""

UNIQUE = """
    SELECT tablename, 'u', indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE 'CREATE UNIQUE%'
"""


@dataclass(frozen=True)
class Schema:
    """Facts of a schema that programs need to write into it."""

    columns: dict[tuple[str, str], tuple[str, ...]]
    """By table and name: type, whether it may be null, and default."""
    rules: frozenset[tuple[str, ...]]
    """Conditions that a table's rows have to meet."""

    @classmethod
    def read(cls, connection: sqlalchemy.Connection) -> Schema:
        columns = {(row[0], row[1]): tuple(row[2:]) for row in connection.execute(sqlalchemy.text(COLUMNS))}
        rules = {tuple(row) for query in (CONSTRAINTS, UNIQUE) for row in connection.execute(sqlalchemy.text(query))}
        return cls(columns, frozenset(rules))

    def harm(self, after: Schema) -> list[str]:
        """Return the differences of a later schema that keep a program of this one from going on."""
        tables_of_ours = {table for table, _ in self.columns}
        changed = [f"{key} is not what it was" for key in self.columns if after.columns.get(key) != self.columns[key]]
        added = {key: definition for key, definition in after.columns.items() if key not in self.columns}
        wanted = [
            f"{key} wants a value"
            for key, (_, nullable, default) in added.items()
            if key[0] in tables_of_ours and nullable == "NO" and default is None
        ]
        ruled = [
            f"{rule} is new"
            for rule in after.rules - self.rules
            if rule[0] in tables_of_ours and not any(_widens(rule, former) for former in self.rules)
        ]
        return changed + wanted + ruled


def _widens(rule: tuple[str, ...], former: tuple[str, ...]) -> bool:
    """Whether a rule is the former one with more values in its list."""
    values, before = (set(re.findall(r"'\w+'::text", text[-1])) for text in (rule, former))
    shape, shape_before = (re.sub(r"('\w+'::text(, )?)+", "", text[-1]) for text in (rule, former))
    return rule[:-1] == former[:-1] and shape == shape_before and before <= values


async def test_additive_migration_removes_nothing_that_older_programs_use(empty: databases.Database) -> None:
    """All that was there is there as it was, and what is new in a table asks nothing of them."""

    def walk(connection: sqlalchemy.Connection) -> None:
        scripts = script.ScriptDirectory(str(Path(databases.__file__).parent / "migrations"))
        for revision in reversed(list(scripts.walk_revisions())):
            before = Schema.read(connection)
            revisions.upgrade_to(connection, revision.revision)
            if getattr(revision.module, "ADDITIVE", False):
                assert before.harm(Schema.read(connection)) == [], revision.revision

    async with empty.begin() as connection:
        await connection.run_sync(walk)


async def test_missing_table_is_named(empty: databases.Database) -> None:
    await schema.migrate(empty)
    async with empty.begin() as connection:
        await connection.execute(sqlalchemy.text("DROP TABLE clusters"))
    assert await schema.missing(empty, check_revision=False) == "the database's schema, which has no table clusters"


async def test_each_right_that_is_missing_is_named(empty: databases.Database, postgres: launcher.Access) -> None:
    await schema.migrate(empty)
    name = empty.url.rpartition("/")[2]
    user = f"user_{name}"
    named = ", ".join(["alembic_version", *tables.metadata.tables])
    asked = [(right, table) for table in tables.metadata.tables for right in schema.RIGHTS]

    async def execute(*statements: str) -> None:
        async with empty.begin() as connection:
            for statement in statements:
                await connection.execute(sqlalchemy.text(statement))

    await execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x'")
    theirs = databases.Database(f"postgresql://{user}:x@127.0.0.1:{postgres.port}/{name}")
    assert (await schema.missing(theirs)).startswith(
        "rights in the database: SELECT on alembic_version, investigations, work"
    )
    await execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {named} TO {user}")
    assert await schema.missing(theirs) == ""
    for right, table in [("SELECT", "alembic_version"), *asked]:
        await execute(f"REVOKE {right} ON {table} FROM {user}")
        assert await schema.missing(theirs) == f"rights in the database: {right} on {table}"
        await execute(f"GRANT {right} ON {table} TO {user}")
    assert await schema.missing(theirs) == ""
    await theirs.close()


async def test_missing_right_is_a_temporary_error(empty: databases.Database, postgres: launcher.Access) -> None:
    await schema.migrate(empty)
    name = empty.url.rpartition("/")[2]
    async with empty.begin() as connection:
        await connection.execute(sqlalchemy.text(f"CREATE ROLE late_{name} LOGIN PASSWORD 'x'"))
    theirs = databases.Database(f"postgresql://late_{name}:x@127.0.0.1:{postgres.port}/{name}")
    try:
        with pytest.raises(databases.NotOpenError, match="lacks a right that TARSy needs") as refused:
            await theirs.run(sqlalchemy.text("SELECT 1 FROM work"))
        assert "lacks a right on the schema: permission denied for table work" in refused.value.why
        with pytest.raises(databases.NotOpenError, match="lacks a right that TARSy needs"):
            async with theirs.begin() as connection:
                await connection.execute(sqlalchemy.text("SELECT 1 FROM work"))
    finally:
        await theirs.close()


def same_default(
    _context: migration.MigrationContext,
    _in_database: object,
    in_code: sqlalchemy.Column[object],
    default_in_database: str | None,
    _default: object,
    default_in_code: str | None,
) -> bool | None:
    """Whether a column's default differs; None leaves it to alembic, which asks Postgres and has no `=` for json."""
    if not isinstance(in_code.type, sqlalchemy.JSON):
        return None
    return default_in_database != (default_in_code and f"'{default_in_code}'::json")


async def test_the_tables_in_the_code_are_those_in_the_database(empty: databases.Database) -> None:
    def differences(connection: sqlalchemy.Connection) -> list[object]:
        context = migration.MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": same_default}
        )
        return list(autogenerate.compare_metadata(context, tables.metadata))

    await schema.migrate(empty)
    async with empty.begin() as connection:
        assert await connection.run_sync(differences) == []


@pytest.mark.parametrize("query", [CONSTRAINTS, INDEXES], ids=["constraints", "indexes"])
async def test_constraints_and_indexes_in_the_code_are_those_in_the_database(
    empty: databases.Database, postgres: launcher.Access, query: str
) -> None:
    await schema.migrate(empty)
    created = databases.Database(postgres.create_database(f"{sqlalchemy.make_url(empty.url).database}_created"))
    try:
        async with created.begin() as connection:
            await connection.run_sync(tables.metadata.create_all)
            in_code = [tuple(row) for row in await connection.execute(sqlalchemy.text(query))]
        async with empty.begin() as connection:
            in_database = [tuple(row) for row in await connection.execute(sqlalchemy.text(query))]
    finally:
        await created.close()
    assert sorted(in_code) == sorted(in_database)


"""For a kind of entries a body, and how many messages, model calls and tool calls are in it."""
