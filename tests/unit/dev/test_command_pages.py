"""The reference of the commands, and the examples in their help."""

from __future__ import annotations

import pytest
from tarsy_dev import commands

ALL = dict(commands.commands())


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_an_example_of_itself(name: str) -> None:
    examples = commands.examples(ALL[name])

    assert examples
    assert all(example.startswith(f"tarsy {name}") for example in examples)
