"""Alembic's entry point: runs the migrations on the connection that `database.migrate` hands over.

A migration after which programs of the revision before it can go on, because it only adds, says `ADDITIVE = True`.
"""

from __future__ import annotations

from alembic import context
from tarsy.store.base import tables

context.configure(connection=context.config.attributes["connection"], target_metadata=tables.metadata)
context.run_migrations()
