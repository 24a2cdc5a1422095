"""Revisions of the database's schema."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from alembic import command, config
from tarsy.store.base import databases


def upgrade_to(connection: sqlalchemy.Connection, revision: str) -> None:
    """Upgrade an empty or older schema to `revision`."""
    migrations = config.Config(attributes={"connection": connection})
    migrations.set_main_option("script_location", str(Path(databases.__file__).parent / "migrations"))
    command.upgrade(migrations, revision)
