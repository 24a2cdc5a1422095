"""Examples as schemas: whether an answer has all that an example of it has, and of the same types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def like(example: Any, answer: Any) -> None:
    """Fail unless each field of the example is in the answer, of the same type; what else the answer has is its own.

    A null of the example may be anything. To each item of a list there has to be one in the answer that is like it.
    """
    wrong = list(differences(example, answer))
    assert not wrong, wrong


def differences(example: Any, answer: Any, path: str = "") -> Iterator[str]:
    """Where an answer is not like the example."""
    match example:
        case None:
            return
        case dict() if isinstance(answer, dict):
            for name, value in example.items():
                if name in answer:
                    yield from differences(value, answer[name], f"{path}.{name}")
                else:
                    yield f"{path}.{name} is missing"
        case list() if isinstance(answer, list):
            for index, expected in enumerate(example):
                attempts = [list(differences(expected, actual, f"{path}.{index}")) for actual in answer]
                if [] not in attempts:
                    yield from min(attempts, key=len, default=[f"{path}.{index} has no like"])
        case _:
            if type(example) is not type(answer):
                yield f"{path}: {answer!r} is no {type(example).__name__}"


def same(example: Any, answer: Any, *names: str) -> None:
    """Fail unless the answer has the example's own values for these fields."""
    assert {name: answer[name] for name in names} == {name: example[name] for name in names}
