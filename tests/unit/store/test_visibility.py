"""Every read of a transcript has the one condition that says which can be read."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import sqlalchemy
from tarsy.store import reads
from tarsy.store.base import visibility
from tarsy.store.queue import questions
from tarsy.store.reads import listing, queue_counts

MODULES = [
    *(importlib.import_module(f"{reads.__name__}.{module.name}") for module in pkgutil.iter_modules(reads.__path__)),
    questions,
]
TRANSCRIPT = re.compile(r"(?:FROM|JOIN|UPDATE) (?:entries|executions|investigations|runs|stages|tool_results|work)\b")
QUEUE_ALONE = [queue_counts._COUNT]
"""Statements that count what has not ended, and show nothing of it."""
BUILDERS = {"paged", "_statement"}
"""The functions that build statements; module values and calls below stand for what they return."""
LISTS = [
    (
        visibility.DELETED if deleted else visibility.VISIBLE,
        listing._statement(
            frozenset(filters), key, descending=True, begins=False, skips=False, is_of_one=is_of_one, deleted=deleted
        ),
    )
    for filters in ((), ("words",), ("words", "phrases"), ("ended", "open", "chain"))
    for key in listing._KEYS
    for is_of_one in (True, False)
    for deleted in (True, False)
]


def statements(module: ModuleType) -> Iterator[sqlalchemy.TextClause]:
    for value in vars(module).values():
        for statement in value.values() if isinstance(value, dict) else (value,):
            if isinstance(statement, sqlalchemy.TextClause):
                yield statement


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_each_read_has_the_condition(module: ModuleType) -> None:
    for statement in statements(module):
        if statement not in QUEUE_ALONE and TRANSCRIPT.search(statement.text):
            assert visibility.VISIBLE in statement.text


def test_each_page_of_a_list_has_the_condition() -> None:
    for condition, statement in LISTS:
        assert condition in statement.text


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_reads_build_no_statement_that_the_walk_misses(module: ModuleType) -> None:
    assert module.__file__
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in BUILDERS:
            called = {
                call.func.id
                for call in ast.walk(node)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            }
            assert "text" not in called, node.name
