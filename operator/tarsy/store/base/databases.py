"""The database of a process: connections, transactions and the error that means "not now".

On the main loop single statements use a pool of asyncpg, and transactions use SQLAlchemy's engine. The lease thread
(`heartbeats.Heartbeat`) and the listener (`notify.Listener`) have a connection of their own. `connect` opens all of
them, so that asyncpg parses the URL: SQLAlchemy has other rules (`?sslmode=` is an error to it, `?ssl=` to asyncpg).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypeVar
from uuid import UUID

import asyncpg
import sqlalchemy
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import asyncpg as dialects
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy import errors
from tarsy.store.base import hints
from tarsy.telemetry import logs, metrics

C = TypeVar("C")

CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0
STATEMENT_SECONDS = 30.0
"""The timeout of a statement; after it the database counts as unavailable."""
TRANSACTIONS = 5
"""The maximal number of concurrent transactions."""
_DIALECT = dialects.dialect()  # type: ignore[no-untyped-call]
_REFUSALS = {
    "28000": "the server does not allow this user to connect",
    "28P01": "the server refuses this user with this password",
    "3D000": "the server has no database of this name",
    "42704": "a parameter of the URL is not a setting of the server",
    "22023": "a parameter of the URL has a value that the server refuses",
}
_NOT_ALLOWED = "42501"  # insufficient privilege
_VALUES = ("22", "23")  # data exceptions, violations of constraints
_NOT_NOW = ("08", "25006", "40", "53", "55P03", "57014", "57P")
# Connection exceptions, a server that has become a standby, rollbacks (deadlock, serialization), insufficient
# resources, a table that others use, a statement that was cancelled or took longer than its role may, operator
# intervention.
# Source: PostgreSQL documentation, appendix A, "PostgreSQL Error Codes".

BROKEN = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The driver's errors for a connection that it cannot use. The latter is for one whose end the server has announced."""

log = logging.getLogger(__name__)


class StoreDownError(errors.TemporaryError):
    """The database cannot be reached, refuses the connection or cannot serve now; the same call may work later."""


class NotOpenError(StoreDownError):
    """The user of the database lacks a right that TARSy needs; `why` is Postgres' message, for the platform's admin."""

    def __init__(self, why: str) -> None:
        super().__init__("the database user lacks a right that TARSy needs; TARSy's log has the details")
        self.why = f"the database user lacks a right on the schema: {why}"


class TooLongError(Exception):
    """A statement took longer than its limit, and the database stopped it."""


class Row(asyncpg.Record):  # type: ignore[misc]  # asyncpg has no types
    """A row whose columns are also attributes, as in SQLAlchemy."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


async def connect(
    url: str, *, timeout: float = CONNECT_SECONDS, command_timeout: float = STATEMENT_SECONDS
) -> asyncpg.Connection:
    """Connect to `url` (`postgresql://...`); the timeouts are seconds.

    Raises StoreDownError on any failure, even on a wrong password, because passwords are rotated. Of the URL, the
    message has the address only.
    """
    try:
        with logs.no_fields():  # the connection outlives the run that needed it
            return await asyncpg.connect(
                url,
                timeout=timeout,
                command_timeout=command_timeout,
                server_settings={"application_name": "tarsy"},
                record_class=Row,
            )
    except (OSError, asyncpg.PostgresError, *BROKEN, ValueError) as error:
        raise StoreDownError(f"cannot connect to the database: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Return the cause of a failed connection, in our own words or the operating system's.

    Postgres and asyncpg quote parts of the URL, and with a typing error the password is in any part.
    """
    kind = type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        return f"{_REFUSALS.get(error.sqlstate, 'the server refuses it')} ({kind}, SQLSTATE {error.sqlstate})"
    if isinstance(error, OSError):
        return error.strerror or str(error) or kind
    match = re.match(r"`(ssl[a-z]+)` parameter must be one of: [a-z, -]+$", str(error))
    return match[0] if match else f"asyncpg does not accept DATABASE_URL ({kind})"


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

        There are at most `pool_size` connections for single statements, and TRANSACTIONS for transactions, each of
        whose statements has `statement_seconds`. `channels` are those on which this process listens (`notify.send`).
        """
        self.url = url
        self.channels = channels
        self.run_ended: Callable[[UUID], None] = lambda _: None
        """Called with the id of an investigation after one of its runs was ended here without its journal."""
        self._size = pool_size
        self._pool: asyncpg.Pool | None = None
        self._engine = sqlalchemy_asyncio.create_async_engine(
            "postgresql+asyncpg://",
            async_creator=functools.partial(connect, url, command_timeout=statement_seconds),
            pool_size=TRANSACTIONS,
            max_overflow=0,
            pool_pre_ping=False,
            hide_parameters=True,  # errors are logged, and parameters are alerts and transcripts
        )
        self._snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[sqlalchemy_asyncio.AsyncConnection]:
        """Open a transaction that commits when the block ends. After a StoreDownError it may be tried again."""
        async with _measured("transactions", self._engine.begin()) as connection:
            yield connection

    async def run(self, statement: sqlalchemy.TextClause, **values: Any) -> Sequence[Row]:
        """Run one statement in a transaction of its own, and return its rows. Raises errors as `begin` does.

        SQLAlchemy compiles the statement once, and asyncpg runs it. SQLAlchemy's work for each execution takes three
        times asyncpg's processor time.
        """
        async with _measured("statements", (await self._driver()).acquire()) as connection:
            try:
                return await _fetch(connection, statement, values)
            except (asyncio.CancelledError, asyncpg.InternalClientError):
                # A cancelled caller does not wait for the server to confirm; the pool drops what cannot be used.
                connection.terminate()
                raise

    async def run_within(self, seconds: float, statement: sqlalchemy.TextClause, **values: Any) -> Sequence[Row]:
        """Run one statement that only reads. Raises TooLongError if it takes longer than `seconds`.

        The database enforces the limit itself. Otherwise it would continue a statement whose result is not needed.
        """
        begin = f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"
        async with _measured("statements", (await self._driver()).acquire()) as connection:
            ended = False
            try:
                await connection.execute(begin)
                rows = await _fetch(connection, statement, values)
                await connection.execute("COMMIT")
                ended = True
            except asyncpg.QueryCanceledError as error:
                await connection.execute("ROLLBACK")
                ended = True
                raise TooLongError(f"the database has not finished within {seconds:g} s") from error
            finally:
                if not ended:  # the next statement on this connection would be in this transaction
                    connection.terminate()
        return rows

    async def _driver(self) -> asyncpg.Pool:
        """Return asyncpg's pool. It does not reset connections between statements: a statement leaves no state."""
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                connect=lambda *_, **__: connect(self.url),
                min_size=0,
                max_size=self._size,
                max_inactive_connection_lifetime=0,
                reset=_keep_state,
            )
        return await self._pool  # opens no connection yet

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[sqlalchemy_asyncio.AsyncConnection]:
        """Open a transaction whose statements all see one state of the database. Raises errors as `begin` does."""
        async with _measured("transactions", self._snapshot.begin()) as connection:
            yield connection

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()
        if self._pool is not None:
            with suppress(TimeoutError):  # a cancelled `close` terminates the connections that are still in use
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._pool.close()


@functools.lru_cache(256)
def _compiled(statement: sqlalchemy.TextClause) -> tuple[str, Sequence[str]]:
    """Return the statement's text for asyncpg, and the names of its parameters in order."""
    compiled = statement.compile(dialect=_DIALECT)
    return compiled.string, tuple(compiled.positiontup or ())


async def _keep_state(_: asyncpg.Connection) -> None:
    """Leave a connection as it is when it returns to the pool."""


_time_limit: contextvars.ContextVar[float | None] = contextvars.ContextVar("time_limit", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise StoreDownError for each statement and transaction in this block that takes longer than `seconds`.

    The wait for a connection counts. HTTP requests use this; other statements have STATEMENT_SECONDS.
    """
    token = _time_limit.set(seconds)
    try:
        yield
    finally:
        _time_limit.reset(token)


async def _fetch(
    connection: asyncpg.Connection, statement: sqlalchemy.TextClause, values: Mapping[str, Any]
) -> Sequence[Row]:
    sql, names = _compiled(statement)
    rows: Sequence[Row] = await connection.fetch(sql, *(values[name] for name in names))
    return rows


@asynccontextmanager
async def _measured(
    pool: Literal["statements", "transactions"], acquired: AbstractAsyncContextManager[C]
) -> AsyncIterator[C]:
    """Hold the connection that is `acquired` from a pool; translate errors, and measure all of it."""
    began = time.monotonic()
    try:
        async with translate_errors(), acquired as connection:
            held = time.monotonic()
            metrics.DATABASE_WAIT.observe(held - began, pool)
            metrics.DATABASE_CONNECTIONS.add(pool)
            try:
                yield connection
            finally:
                metrics.DATABASE_CONNECTIONS.add(pool, amount=-1)
                metrics.DATABASE_SECONDS.observe(time.monotonic() - held, pool)
    except StoreDownError:
        metrics.DATABASE_ERRORS.add()
        raise


@asynccontextmanager
async def translate_errors() -> AsyncIterator[None]:
    """Translate errors of the driver and SQLAlchemy into StoreDownError or NotOpenError, where they mean that."""
    try:
        async with asyncio.timeout(_time_limit.get()):
            yield
    except asyncpg.PostgresError as error:
        _raise_for(error, state=str(error.sqlstate or ""))
        raise
    except BROKEN as error:
        if isinstance(error, ValueError):  # a value that does not fit its column
            raise
        raise StoreDownError(f"the database cannot serve now: {error}") from error
    except (OSError, TimeoutError, exc.TimeoutError) as error:
        raise StoreDownError(f"the database cannot be reached: {str(error) or type(error).__name__}") from error
    except exc.DBAPIError as error:
        if error.connection_invalidated or isinstance(error, exc.InterfaceError):
            raise StoreDownError(f"the database cannot serve now: {error.orig}") from error
        _raise_for(error, state=_state(error))
        raise


def _raise_for(error: Exception, *, state: str) -> None:
    """Raise StoreDownError or NotOpenError if `state` (SQLSTATE) means one of them."""
    why = getattr(error, "orig", error)
    if state.startswith(_NOT_NOW):
        raise StoreDownError(f"the database cannot serve now: {why}") from error
    if state == _NOT_ALLOWED:
        not_open = NotOpenError(str(why))
        log.warning("%s", not_open.why, extra={"action": "database_closed"})
        raise not_open from error


def _state(error: Exception) -> str:
    return str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


def is_for_all_values(error: Exception) -> bool:
    """Whether a statement would fail with any values, as after a migration."""
    if not isinstance(error, (exc.DBAPIError, asyncpg.PostgresError)):
        return isinstance(error, (errors.TemporaryError, exc.SQLAlchemyError))
    return not _state(error).startswith(_VALUES)
