"""The SQL of the documentation runs, and finds what it says it finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy
from tarsy.store.base import databases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transcript.md"
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
VIEWS = re.findall(r"^- `(\w+)`: `([^`]*)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES)
async def test_example_of_the_docs_runs(database: databases.Database, example: str) -> None:
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text(example))


async def test_the_views_have_the_columns_that_the_page_names(database: databases.Database) -> None:
    assert [name for name, _ in VIEWS] == ["messages", "llm_interactions", "mcp_interactions"]
    async with database.begin() as connection:
        for name, columns in VIEWS:
            result = await connection.execute(sqlalchemy.text(f"SELECT * FROM {name}"))  # noqa: S608 - our own names
            assert list(result.keys()) == [column.strip() for column in columns.split(",")]
