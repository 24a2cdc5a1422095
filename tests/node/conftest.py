"""One real node for the whole run. Everything here runs by `make test-node` alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tarsy_dev.node import machine, requirements


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[machine.Machine]:
    """A control plane and one node."""
    if lacks := requirements.missing():
        pytest.skip(f"a real node needs {lacks}")
    with machine.Machine(folder=tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def namespaces(node: machine.Machine) -> Iterator[Callable[[str], str]]:
    """Makes namespaces of the test's own, which go with it: call it with the beginning of a name."""
    made = []

    def make(name: str) -> str:
        made.append(f"{name}-{secrets.token_hex(3)}")
        node.create_namespace(made[-1])
        return made[-1]

    yield make
    node.kubectl("delete", "namespace", *made, "--wait=false")
