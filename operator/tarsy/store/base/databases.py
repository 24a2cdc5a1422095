"""The database of a process: connections, transactions, migrations and the one error that means "not now".

On the main loop single statements have a pool of the driver's, and transactions SQLAlchemy's engine; the lease thread
has a connection of its own (`heartbeat.Heartbeat`), and so has who listens (`notify.Listener`). All are opened by
`connect`: the URL is asyncpg's to read. SQLAlchemy reads one by rules of its own (`?sslmode=` is an error to it,
`?ssl=` to asyncpg), and the two would then differ in what they connect to.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import asyncpg as dialects
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy import errors
from tarsy.store.base import hints, tables
from tarsy.telemetry import logs

if TYPE_CHECKING:
    from alembic import script

NEWEST = "cut_off"
"""The newest migration."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
"""A database that is silent for so long is taken for one that is away."""
MIGRATION_SECONDS = 600.0
"""The limit of a migration: an index of existing rows may take long, and another migration may have to end first."""
PING_SECONDS = 2.0
TRANSACTIONS = 5
"""At once."""
_DIALECT = dialects.dialect()  # type: ignore[no-untyped-call]
_VERSION = "alembic_version"
_SERVES = "serves"
"""The column beside the revision: the revisions whose programs can work with the present schema."""
_REVISION = sqlalchemy.text(f"""
  SELECT version_num,
    COALESCE(served ->> 0 = version_num AND served @> to_jsonb(CAST(:mine AS text)), false) AS serves_us
    FROM (SELECT version_num, to_jsonb(one) -> '{_SERVES}' AS served FROM {_VERSION} AS one) AS found
""")  # noqa: S608 - constants; by way of JSON, because a schema of before it has no such column
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""The rights that an operator needs on each table; `tarsy migrate` needs to own them."""
_LACKING = sqlalchemy.text("""
  SELECT name, to_regclass(name) IS NOT NULL AS is_there,
    array(
      SELECT asked FROM unnest(CAST(:rights AS text[])) AS asked
        WHERE NOT has_table_privilege(to_regclass(name), asked) AND (name <> :version OR asked = 'SELECT')
    ) AS rights
    FROM unnest(CAST(:names AS text[])) AS name
""")
_NAMED_MAX = 3
"""Tables on which rights are missing that are named."""
_MIGRATION_LOCK = 0x7461727379  # "tarsy": two processes that migrate at once take turns
_REFUSALS = {
    "28000": "the server does not let this user in",
    "28P01": "the server refuses this user with this password",
    "3D000": "the server has no database of this name",
    "42704": "a parameter of the URL is no setting of the server's",
    "22023": "a parameter of the URL has a value that the server refuses",
}
_NOT_ALLOWED = "42501"  # insufficient privilege
_VALUES = ("22", "23")  # data exceptions, violations of constraints
_NOT_NOW = ("08", "25006", "40", "53", "57014", "57P")
# Connection exceptions, a server that has become a standby, rollbacks (deadlock, serialization), insufficient
# resources, a statement that was cancelled or took longer than its role may, operator intervention.
# Source: PostgreSQL documentation, appendix A, "PostgreSQL Error Codes".

log = logging.getLogger(__name__)


class StoreDownError(errors.TemporaryError):
    """The database cannot be reached, or does not let us in, or cannot serve, just now; it may work later."""


class NotOpenError(StoreDownError):
    """The database does not let this user do what TARSy needs; `why` is what Postgres says, for who runs TARSy."""

    def __init__(self, why: str) -> None:
        super().__init__("the database is not open to TARSy as it has to be; its log has more, for who runs it")
        self.why = f"the database's schema is not open to this user: {why}"


class TooLongError(Exception):
    """A statement was not done within its time, and the database has stopped it."""


class SchemaError(Exception):
    """The database's schema is not one that this program can migrate."""


class Row(asyncpg.Record):  # type: ignore[misc]  # asyncpg tells no types
    """A row whose columns are attributes too, as SQLAlchemy's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


async def connect(
    url: str, *, timeout: float = CONNECT_SECONDS, command_timeout: float = STATEMENT_SECONDS
) -> asyncpg.Connection:
    """Connect to `url` (`postgresql://...`), as asyncpg reads it; the timeouts are seconds.

    Whatever stands against it is a StoreDownError, a wrong password too: one that is wrong at the start ends the
    process there, and one that is wrong later is being changed. Of the URL the message holds its address at most.
    """
    try:
        with logs.nobodys():  # the connection goes on behind the run that needed one more
            return await asyncpg.connect(
                url,
                timeout=timeout,
                command_timeout=command_timeout,
                server_settings={"application_name": "tarsy"},
                record_class=Row,
            )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ValueError) as error:
        raise StoreDownError(f"cannot connect to the database: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Why there is no connection, in words of ours or of the operating system.

    Those of Postgres and asyncpg quote the URL, and what stands in its wrong place may be the password.
    """
    kind = type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        return f"{_REFUSALS.get(error.sqlstate, 'the server refuses it')} ({kind}, SQLSTATE {error.sqlstate})"
    if isinstance(error, OSError):
        return error.strerror or str(error) or kind
    match = re.match(r"`(ssl[a-z]+)` parameter must be one of: [a-z, -]+$", str(error))
    return match[0] if match else f"DATABASE_URL is not what asyncpg takes ({kind})"


class Database:
    """The process's connections to Postgres."""

    def __init__(
        self,
        url: str,
        *,
        channels: hints.Channels | None = None,
        pool_size: int = 15,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> None:
        """Connect lazily to `url` (`postgresql://...`); connections stay open.

        There are at most `pool_size` connections for single statements, and TRANSACTIONS for transactions of several;
        `statement_seconds` limits each statement of those. `channels` are those on which this process listens
        (`notify.send`).
        """
        self.url = url
        self.channels = channels
        self._size = pool_size
        self._pool: asyncpg.Pool | None = None
        self._engine = sqlalchemy_asyncio.create_async_engine(
            "postgresql+asyncpg://",
            async_creator=functools.partial(connect, url, command_timeout=statement_seconds),
            pool_size=TRANSACTIONS,
            max_overflow=0,
            pool_pre_ping=False,
            hide_parameters=True,  # they are alerts and transcripts, and errors are logged
        )
        self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[sqlalchemy_asyncio.AsyncConnection]:
        """Open a transaction that commits when the block ends; a StoreDownError means that it may be tried again."""
        async with _errors(), self._engine.begin() as connection:
            yield connection

    async def run(self, statement: sqlalchemy.TextClause, **values: Any) -> Sequence[Row]:
        """Run one statement, a transaction of its own; its rows. Errors as with `begin`.

        The driver gets it as SQLAlchemy has compiled it once, on a connection of the driver's pool: what SQLAlchemy
        does for each execution takes three times the driver's processor time.
        """
        async with _errors(), (await self._driver()).acquire() as connection:
            try:
                return await _fetch(connection, statement, values)
            except asyncio.CancelledError:
                connection.terminate()  # a cancelled caller does not wait for the server to confirm
                raise

    async def run_within(self, seconds: float, statement: sqlalchemy.TextClause, **values: Any) -> Sequence[Row]:
        """Do the same; raises TooLongError if the database has not finished within `seconds`.

        The database checks the time itself: otherwise it would go on with a statement that is no longer waited for.
        """
        began = f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"
        async with _errors(), (await self._driver()).acquire() as connection:
            ended = False
            try:
                await connection.execute(began)
                rows = await _fetch(connection, statement, values)
                await connection.execute("COMMIT")
                ended = True
            except asyncpg.QueryCanceledError as error:
                await connection.execute("ROLLBACK")
                ended = True
                raise TooLongError(f"the database has not done it within {seconds:g} s") from error
            finally:
                if not ended:  # the next one would find itself in this transaction
                    connection.terminate()
        return rows

    async def _driver(self) -> asyncpg.Pool:
        """The driver's own pool; what a statement leaves behind is nothing, so nothing is reset."""
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                connect=lambda *_, **__: connect(self.url),
                min_size=0,
                max_size=self._size,
                max_inactive_connection_lifetime=0,
                reset=_nothing,
            )
        return await self._pool  # it opens nothing yet

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[sqlalchemy_asyncio.AsyncConnection]:
        """A connection whose statements all see the same moment. Errors as with `begin`."""
        async with _errors(), self._snapshot.begin() as connection:
            yield connection

    async def lacks(self, *, revision: bool = True) -> str:
        """Return the parts of the schema and the rights that are missing for this program; "" for none.

        Without `revision` it checks only that the tables exist, and are open to us: during an upgrade the schema is
        already the newer version's. Raises StoreDownError if there is no answer within PING_SECONDS.
        """
        async with _errors(), asyncio.timeout(PING_SECONDS):
            names = [_VERSION, *tables.metadata.tables]
            missing = await self.run(_LACKING, names=names, rights=list(RIGHTS), version=_VERSION)
            by_name = {row.name: row for row in missing}
            if not by_name[_VERSION].is_there:
                return "the database's schema, which is not there yet: `tarsy migrate` makes it"
            if revision and not by_name[_VERSION].rights:
                rows = await self.run(_REVISION, mine=NEWEST)
                if not rows or (rows[0].version_num != NEWEST and not rows[0].serves_us):
                    return _other_schema(rows[0].version_num if rows else None)
        if absent := [name for name, row in by_name.items() if not row.is_there]:
            return f"the database's schema, which has no table {_some(absent)}"
        lacking: dict[str, list[str]] = {}
        for name, row in by_name.items():
            for right in row.rights:
                lacking.setdefault(right, []).append(name)
        rights_missing = "; ".join(f"{right} on {_some(names)}" for right, names in lacking.items())
        return f"rights in the database: {rights_missing}" if rights_missing else ""

    async def migrate(self) -> str:
        """Bring the schema to the newest revision, where it is not there yet; the revision at which it is now.

        A newer one that serves this program too, as after a rollback, stays as it is. A SchemaError is of one that
        cannot be used.
        """
        async with self.begin() as connection:
            await connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            return await connection.run_sync(_upgrade)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()
        if self._pool is not None:
            with suppress(TimeoutError):  # then it has ended the connections that are still in use
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._pool.close()


@dataclass(frozen=True)
class _Compiled:
    """A statement as the driver takes it, and which value is which of its parameters."""

    text: str
    names: Sequence[str]


@functools.lru_cache(256)
def _compiled(statement: sqlalchemy.TextClause) -> _Compiled:
    compiled = statement.compile(dialect=_DIALECT)
    return _Compiled(compiled.string, tuple(compiled.positiontup or ()))


async def _nothing(_: asyncpg.Connection) -> None:
    """Reset nothing."""


_patience: contextvars.ContextVar[float | None] = contextvars.ContextVar("patience", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raise StoreDownError for each statement, and each transaction, in this context that takes longer than `seconds`.

    This is for requests with a waiting caller. The wait for a connection counts. Elsewhere a statement has
    STATEMENT_SECONDS.
    """
    before = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(before)


async def _fetch(
    connection: asyncpg.Connection, statement: sqlalchemy.TextClause, values: Mapping[str, Any]
) -> Sequence[Row]:
    compiled = _compiled(statement)
    records: Sequence[Row] = await connection.fetch(compiled.text, *(values[name] for name in compiled.names))
    return records


@asynccontextmanager
async def _errors() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_patience.get()):
            yield
    except asyncpg.PostgresError as error:
        _raise_for(error, state=str(error.sqlstate or ""))
        raise
    except asyncpg.InterfaceError as error:
        if isinstance(error, ValueError):  # a value that does not fit its column
            raise
        raise StoreDownError(f"the database cannot serve just now: {error}") from error
    except (OSError, TimeoutError, exc.TimeoutError) as error:
        raise StoreDownError(f"the database cannot be reached: {str(error) or type(error).__name__}") from error
    except exc.DBAPIError as error:
        if error.connection_invalidated or isinstance(error, exc.InterfaceError):
            raise StoreDownError(f"the database cannot serve just now: {error.orig}") from error
        _raise_for(error, state=_state(error))
        raise


def _raise_for(error: Exception, *, state: str) -> None:
    """Raise our own error for what Postgres says, if it is one that we have a word for."""
    why = getattr(error, "orig", error)
    if state.startswith(_NOT_NOW):
        raise StoreDownError(f"the database cannot serve just now: {why}") from error
    if state == _NOT_ALLOWED:
        closed = NotOpenError(str(why))
        log.warning("%s", closed.why, extra={"action": "database_closed"})
        raise closed from error


def _state(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


def is_everybodys(error: Exception) -> bool:
    """Whether the store's refusal is of no value's making: with others it would be the same, as after a migration."""
    if not isinstance(error, (exc.DBAPIError, asyncpg.PostgresError)):
        return isinstance(error, (errors.TemporaryError, exc.SQLAlchemyError))
    return not _state(error).startswith(_VALUES)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _revisions() -> set[str]:
    """The revisions that this program can migrate from."""
    return {
        Path(file.name).stem for file in (resources.files("tarsy.store.base") / "migrations" / "versions").iterdir()
    }


def _other_schema(version: str | None) -> str:
    """Return the problem of a schema at another revision that does not serve this program."""
    if version is None or version in _revisions():
        return (
            f"the database's schema, which is at {version or 'nothing'}, not {NEWEST}: `tarsy migrate` brings it there"
        )
    return f"the database's schema, which is at {version}, not {NEWEST}: it is of another version of tarsy"


def _upgrade(connection: sqlalchemy.Connection) -> str:
    from alembic import command, config, script, util  # a tenth of a second, and an operator does not need it

    if sqlalchemy.inspect(connection).has_table(_VERSION):
        revision = connection.execute(_REVISION, {"mine": NEWEST}).one_or_none()
        if revision and revision.serves_us and revision.version_num not in _revisions():
            return str(revision.version_num)
    migrations = config.Config(attributes={"connection": connection})
    migrations.set_main_option("script_location", str(resources.files("tarsy.store.base") / "migrations"))
    try:
        command.upgrade(migrations, "head")
    except util.CommandError as error:  # it is at a revision that is not among ours
        raise SchemaError(
            f"the database's schema is of another version of tarsy: {error}. A newer one needs that version of tarsy; "
            "of one from before the log nothing can be kept: give this version a database of its own"
        ) from error
    served = list(_served(script.ScriptDirectory.from_config(migrations)))
    connection.execute(sqlalchemy.text(f"ALTER TABLE {_VERSION} ADD COLUMN IF NOT EXISTS {_SERVES} text[]"))
    connection.execute(sqlalchemy.text(f"UPDATE {_VERSION} SET {_SERVES} = :served"), {"served": served})  # noqa: S608
    return NEWEST


def _served(scripts: script.ScriptDirectory) -> Iterator[str]:
    """The revisions whose programs can work with the newest schema: from there back to one that did more than add."""
    for script_revision in scripts.walk_revisions():
        yield script_revision.revision
        if not getattr(script_revision.module, "ADDITIVE", False):
            break
