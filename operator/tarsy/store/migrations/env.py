"""Alembic's entry point: runs the migrations on the connection that `database.migrate` hands over."""

from __future__ import annotations

from alembic import context
from tarsy.store import tables

context.configure(connection=context.config.attributes["connection"], target_metadata=tables.metadata)
context.run_migrations()
