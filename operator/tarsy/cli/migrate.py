"""`tarsy migrate`."""

from __future__ import annotations

import asyncio
import math
import os
import signal

import click

from tarsy.config.load import loader, settings
from tarsy.config.model import fields
from tarsy.process import errors, migration


class _Patience(click.ParamType[float]):
    """The wait in seconds; without a limit, for ever."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return fields.duration(value).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    help="Bring the database that DATABASE_URL or DATABASE_URL_FILE names to the schema that this version needs. One "
    "that is newer and serves this version, too, stays as it is.",
    epilog="Examples:\n\n\b\n  tarsy migrate --wait=5m",
)
@click.option(
    "--wait",
    type=_Patience(),
    metavar="[=DURATION]",
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    help="Wait for a database, or a file with its URL, that is not there or not open yet, and say for what: as long as "
    "that takes, or for such as 5m at most.",
)
def command(*, wait: float) -> None:
    """Migrate."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the first process of a container would not hear it

    def waits(what: str) -> None:
        click.echo(f"Waiting: {what}", err=True)

    try:
        newer = asyncio.run(migration.migrate(settings.database_url(os.environ), patience=wait, waits=waits))
    except (loader.ConfigError, errors.StartError) as error:
        raise click.ClickException(str(error)) from error
    if newer:
        message = (
            f"The database's schema is of a newer version, {newer}, and serves this one, too: nothing was changed."
        )
    else:
        message = "The database is at the newest schema."
    click.echo(message)
