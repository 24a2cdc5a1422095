"""Views that read the starts of executions which say what their tool calls may come to."""

from __future__ import annotations

from alembic import op

revision = "budgets"
down_revision = "live"

# Of the views as they are, whatever else they have come to read: only the one number.
READ_ON = """
DO $$
DECLARE
  told text;
BEGIN
  FOREACH told IN ARRAY ARRAY['messages', 'llm_interactions'] LOOP
    EXECUTE 'CREATE OR REPLACE VIEW ' || told || ' AS ' || replace(
      pg_get_viewdef(CAST(told AS regclass)),
      '''ExecutionStarted''::text THEN 3',
      '''ExecutionStarted''::text THEN 4'
    );
  END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(READ_ON)
