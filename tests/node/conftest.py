"""One real node for the whole run. Everything here runs by `make test-node` alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support import archives
from tarsy_dev.node import builds, machine, requirements


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[machine.Machine]:
    """A control plane and one node."""
    if lacks := requirements.missing(images=True):
        pytest.skip(f"a real node needs {lacks}")
    with machine.Machine(folder=tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="session")
def images(node: machine.Machine, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, archives.Image]:
    """The product's image and those around it, built and known to the node, by their names."""
    archive = builds.archive(tmp_path_factory.mktemp("images") / "images.tar")
    node.import_image(archive)
    found = archives.read(archive)
    archive.unlink()
    return found


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
