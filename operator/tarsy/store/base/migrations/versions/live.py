"""Since when each investigation is as it is now, for those who ask what has changed."""

from __future__ import annotations

from alembic import op

revision = "live"
down_revision = "api"

# What was there before has changed long ago, as far as anybody asks.
CHANGED = """
ALTER TABLE work ADD COLUMN changed bigint NOT NULL DEFAULT 0;

CREATE INDEX work_changed ON work (changed);
"""

NOW = """
CREATE FUNCTION tarsy_now() RETURNS bigint LANGUAGE sql AS $$
  SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)
$$
"""

NOTED = """
CREATE FUNCTION tarsy_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.changed := tarsy_now();
  RETURN NEW;
END $$
"""

# A commit of a run that goes on says itself whether lists have to know (`log`): most only add to its numbers, and what
# those change is in no index.

TRIGGERS = """
CREATE TRIGGER work_begins BEFORE INSERT ON work FOR EACH ROW EXECUTE FUNCTION tarsy_changed();

CREATE TRIGGER work_changes BEFORE UPDATE ON work FOR EACH ROW
  WHEN (NEW.revision IS DISTINCT FROM OLD.revision
    AND (NEW.log_seq IS NOT DISTINCT FROM OLD.log_seq OR NEW.state IS DISTINCT FROM OLD.state))
  EXECUTE FUNCTION tarsy_changed();
"""


def upgrade() -> None:
    op.execute(NOW)
    op.execute(NOTED)
    for statement in (CHANGED + TRIGGERS).split(";"):
        if statement.strip():
            op.execute(statement)
