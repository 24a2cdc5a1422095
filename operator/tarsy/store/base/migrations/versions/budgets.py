"""The ledgers of budgets, and what requests have reserved of them.

It serves every build that `depths` serves. Such a build reserves nothing.
"""

from __future__ import annotations

from alembic import op

revision = "budgets"
down_revision = "depths"
ADDITIVE = True

STATEMENTS = (
    """
    CREATE TABLE IF NOT EXISTS budget_ledgers (
      budget    text NOT NULL,
      unit      text NOT NULL,
      subject   text NOT NULL,
      period    text NOT NULL,
      used      numeric NOT NULL DEFAULT 0,
      settled   numeric NOT NULL DEFAULT 0,
      opened_at timestamptz NOT NULL DEFAULT now(),
      PRIMARY KEY (budget, unit, subject, period)
    ) WITH (fillfactor = 20)
    """,
    """
    CREATE TABLE IF NOT EXISTS budget_reservations (
      request       uuid NOT NULL,
      budget        text NOT NULL,
      unit          text NOT NULL,
      subject       text NOT NULL,
      period        text NOT NULL,
      investigation uuid NOT NULL,
      token         uuid NOT NULL,
      amount        numeric NOT NULL,
      PRIMARY KEY (request, budget, unit, subject, period)
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
