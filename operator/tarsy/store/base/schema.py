"""The schema of the database: the check that it serves this program, and its migration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from tarsy.store.base import databases, tables

if TYPE_CHECKING:
    from alembic import script

NEWEST = "open_runs"
"""The newest revision of the schema: the name of its migration."""
MIGRATION_SECONDS = 600.0
"""The limit of a migration: indexing existing rows may take long, and another process's migration has to end first."""
LOCK_SECONDS = 3.0
"""The limit of a migration's wait for a table, behind which all statements of running processes wait too."""
PING_SECONDS = 2.0
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""The rights that an operator needs on each table; `tarsy migrate` must own the tables."""
_NAMES_MAX = 3
"""The number of tables that a message names."""
_MIGRATION_LOCK = 0x7461727379  # "tarsy"; with it, two processes migrate one after the other
_VERSION = "alembic_version"
_SERVES = "serves"
"""The column beside the revision: the revisions whose programs can work with the present schema."""
_REVISION = sqlalchemy.text(f"""
  SELECT version_num,
    COALESCE(served ->> 0 = version_num AND served @> to_jsonb(CAST(:newest AS text)), false) AS serves_this_program
  FROM (SELECT version_num, to_jsonb(version) -> '{_SERVES}' AS served FROM {_VERSION} AS version) AS versions
""")  # noqa: S608 - constants; read as JSON, because older schemas have no such column
_RIGHTS_MISSING = sqlalchemy.text("""
  SELECT name, to_regclass(name) IS NOT NULL AS is_present,
    array(
      SELECT needed FROM unnest(CAST(:rights AS text[])) AS needed
        WHERE NOT has_table_privilege(to_regclass(name), needed) AND (name <> :version OR needed = 'SELECT')
    ) AS rights
    FROM unnest(CAST(:names AS text[])) AS name
""")

_MAY_CREATE = sqlalchemy.text("SELECT has_schema_privilege(current_schema(), 'CREATE') AS may_create")


class SchemaError(Exception):
    """This program cannot migrate the database's schema."""


async def missing(database: databases.Database, *, check_revision: bool = True) -> str:
    """Return a description of the parts of the schema, or of the rights, that this program lacks; "" for none.

    Without `check_revision` only the tables and the rights on them are checked, because during an upgrade the schema
    already belongs to the newer version. Raises StoreDownError if there is no answer within PING_SECONDS.
    """
    async with databases.translate_errors(), asyncio.timeout(PING_SECONDS):
        names = [_VERSION, *tables.metadata.tables]
        rows = await database.run(_RIGHTS_MISSING, names=names, rights=list(RIGHTS), version=_VERSION)
        by_name = {row.name: row for row in rows}
        if not by_name[_VERSION].is_present:
            return "the database's schema, which does not exist yet: `tarsy migrate` creates it"
        if check_revision and not by_name[_VERSION].rights:
            revisions = await database.run(_REVISION, newest=NEWEST)
            if not revisions or (revisions[0].version_num != NEWEST and not revisions[0].serves_this_program):
                return _other_schema(revisions[0].version_num if revisions else None)
    if absent := [name for name, row in by_name.items() if not row.is_present]:
        return f"the database's schema, which has no table {_first_names(absent)}"
    tables_by_right: dict[str, list[str]] = {}
    for name, row in by_name.items():
        for right in row.rights:
            tables_by_right.setdefault(right, []).append(name)
    rights = "; ".join(f"{right} on {_first_names(names)}" for right, names in tables_by_right.items())
    return f"rights in the database: {rights}" if rights else ""


async def may_create(database: databases.Database) -> bool:
    """Return whether the database's user may create tables, as a first migration does. Raises a StoreDownError."""
    async with databases.translate_errors(), asyncio.timeout(PING_SECONDS):
        (row,) = await database.run(_MAY_CREATE)
    return bool(row.may_create)


async def migrate(database: databases.Database) -> str:
    """Migrate the schema to NEWEST, and return its revision.

    A newer schema that serves this program too, as after a rollback, stays as it is. Raises SchemaError, or a
    StoreDownError, also if another session uses a table for longer than LOCK_SECONDS.
    """
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        await connection.execute(sqlalchemy.text(f"SET LOCAL lock_timeout = {round(LOCK_SECONDS * 1000)}"))
        return await connection.run_sync(_upgrade)


def _first_names(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _revisions() -> set[str]:
    """Return the revisions that this program can migrate from."""
    return {
        Path(file.name).stem for file in (resources.files("tarsy.store.base") / "migrations" / "versions").iterdir()
    }


def _other_schema(version: str | None) -> str:
    """Return the problem of a schema at another revision that does not serve this program."""
    if version is None or version in _revisions():
        return (
            f"the database's schema, which is at {version or 'no revision'}, not {NEWEST}: `tarsy migrate` upgrades it"
        )
    return f"the database's schema, which is at {version}, not {NEWEST}: it belongs to another version of tarsy"


def _upgrade(connection: sqlalchemy.Connection) -> str:
    from alembic import command, config, script, util  # takes a tenth of a second, and an operator does not need it

    if sqlalchemy.inspect(connection).has_table(_VERSION):
        revision = connection.execute(_REVISION, {"newest": NEWEST}).one_or_none()
        if revision and revision.serves_this_program and revision.version_num not in _revisions():
            return str(revision.version_num)
    migrations = config.Config(attributes={"connection": connection})
    migrations.set_main_option("script_location", str(resources.files("tarsy.store.base") / "migrations"))
    try:
        command.upgrade(migrations, "head")
    except util.CommandError as error:  # this program does not know the revision
        raise SchemaError(
            f"the database's schema belongs to another version of tarsy: {error}. If that is newer, run that version; "
            "if it is from before the log, it cannot be migrated: use another database"
        ) from error
    served = list(_served(script.ScriptDirectory.from_config(migrations)))
    connection.execute(sqlalchemy.text(f"ALTER TABLE {_VERSION} ADD COLUMN IF NOT EXISTS {_SERVES} text[]"))
    connection.execute(sqlalchemy.text(f"UPDATE {_VERSION} SET {_SERVES} = :served"), {"served": served})  # noqa: S608
    return NEWEST


def _served(scripts: script.ScriptDirectory) -> Iterator[str]:
    """Yield the revisions whose programs can work with the newest schema: back to the last that is not ADDITIVE."""
    for script_revision in scripts.walk_revisions():
        yield script_revision.revision
        if not getattr(script_revision.module, "ADDITIVE", False):
            break
