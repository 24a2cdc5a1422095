"""No test bets on the machine being idle: an upper bound of seconds is a guard against hanging, and generous.

Exact times leap (`support.leaping`). Work is counted in lines (`support.steps`), statements and bytes. Speed, and how
the time of work in C grows, is measured by `make bench`. Those of `tests/nightly` may have bounds of seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
GATE = [path for path in TESTS.rglob("test_*.py") if TESTS / "nightly" not in path.parents]
GENEROUS = 20
"""Seconds."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}


def is_marked(node: ast.AST, *marks: str) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in marks for one in ast.walk(node))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions that do not leap."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and is_marked(node.value, "leaps"):
            return
        marks = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
            is_marked(mark, "leaps") for mark in marks
        ):
            yield node


def is_timed(node: ast.AST, names: set[str]) -> bool:
    """Whether it is made of what a clock says."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id in names:
            return True
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in CLOCKS:
            return True
    return False


def bets(source: str) -> Iterator[int]:
    """The lines in which a test holds what a clock says to few seconds."""
    if not any(f".{clock}" in source for clock in CLOCKS):
        return
    for function in functions(ast.parse(source)):
        names: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and is_timed(node.value, names) and isinstance(node.value, ast.BinOp):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            for left, how, right in zip(sides, node.ops, sides[1:], strict=False):
                if (
                    isinstance(how, ast.Lt | ast.LtE)
                    and is_timed(left, names)
                    and isinstance(right, ast.Constant)
                    and isinstance(right.value, int | float)
                    and right.value < GENEROUS
                ):
                    yield node.lineno


def test_no_test_holds_what_a_clock_says_to_few_seconds() -> None:
    found = [f"{path.relative_to(TESTS)}:{line}" for path in GATE for line in bets(path.read_text())]
    assert found == []


def test_no_test_fails_because_its_examples_are_drawn_slowly() -> None:
    """A list of health checks replaces that of tests/conftest.py, which has this one."""
    found = [
        f"{path.relative_to(TESTS)}:{node.value.lineno}"
        for path in GATE
        if "suppress_health_check=[" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.List)
        if node.arg == "suppress_health_check" and not is_marked(node.value, "too_slow")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_bet"),
    [
        ("assert time.monotonic() - began < 2", True),
        ("assert 0.3 < loop.time() - began <= 0.5", True),
        ("took = time.perf_counter() - began; assert took < 1", True),
        ("assert time.monotonic() - began > 0.3", False),
        ("assert time.monotonic() - began < 20", False),
        ("began = time.monotonic(); assert count < 2", False),
        ("until = time.monotonic() + 2; assert until", False),
    ],
)
def test_what_is_a_bet_is_found_unless_the_test_leaps(line: str, is_bet: bool) -> None:
    function = f"def test() -> None:\n    {line}\n"
    assert bool(list(bets(function))) == is_bet
    assert not list(bets(f"@pytest.mark.leaps\n{function}"))
    assert not list(bets(f"pytestmark = pytest.mark.leaps\n{function}"))
