"""`tarsy migrate`."""

from __future__ import annotations

import asyncio
import os

import click

from tarsy import process
from tarsy.config import load, settings


@click.command(
    help="Bring the database that DATABASE_URL or DATABASE_URL_FILE names to the schema that this version needs."
)
def command() -> None:
    """Migrate."""
    try:
        asyncio.run(process.migrate(settings.database_url(os.environ)))
    except (load.ConfigError, process.StartError) as error:
        raise click.ClickException(str(error)) from error
    click.echo("The database is at the newest schema.")
