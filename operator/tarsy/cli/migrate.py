"""The command `tarsy migrate`."""

from __future__ import annotations

import asyncio
import math
import os
import signal

import click

from tarsy.config.load import loader, settings
from tarsy.config.model import fields
from tarsy.process import errors, migration


class _Wait(click.ParamType[float]):
    """The maximum wait, in seconds; infinite if none is given."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return fields.duration(value).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    help="Migrate the database of DATABASE_URL or DATABASE_URL_FILE to the schema that this version needs. A newer "
    "schema that this version supports stays as it is.",
    epilog="Examples:\n\n\b\n  tarsy migrate --wait=5m",
)
@click.option(
    "--wait",
    type=_Wait(),
    metavar="[=DURATION]",
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    help="Wait until the database, or the file with its URL, is available: without a limit, or at most a duration such "
    "as 5m.",
)
def command(*, wait: float) -> None:
    """Migrate the database."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # process 1 of a container ignores SIGTERM by default

    def waits(reason: str) -> None:
        click.echo(f"Waiting: {reason}", err=True)

    try:
        newer = asyncio.run(migration.migrate(settings.database_url(os.environ), patience=wait, waits=waits))
    except (loader.ConfigError, errors.StartError) as error:
        raise click.ClickException(str(error)) from error
    if newer:
        message = f"The database has the newer schema {newer}, which supports this version: nothing was changed."
    else:
        message = "The database is at the newest schema."
    click.echo(message)
