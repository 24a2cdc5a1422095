"""One real node for the whole run of `make nightly`.

With TARSY_CLUSTER=kind, by `make test-kind`, the tests that are marked `kind` have a cluster of kind's instead.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support import archives
from tarsy_dev import assets, controlplane, kind
from tarsy_dev.node import builds, machine, requirements

_IS_KIND = os.environ.get("TARSY_CLUSTER") == "kind"
_ARCHIVE = pytest.StashKey[Path]()
"""The archive of the images."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the node's programs and the images before the first test: that may take longer than a test's timeout."""
    fixtures = {
        name for test_item in session.items if isinstance(test_item, pytest.Function) for name in test_item.fixturenames
    }
    is_needed = bool(fixtures & {"node", "cluster_with_images"}) and not _IS_KIND
    if session.config.option.collectonly or not is_needed or requirements.missing(images=True):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for name in assets.NODE_PROGRAMS:
            assets.program(name)
        if fixtures & {"images", "cluster_with_images"}:
            session.config.stash[_ARCHIVE] = builds.archive(
                Path(tempfile.mkdtemp(prefix="tarsy-images-")) / "images.tar"
            )


def pytest_unconfigure(config: pytest.Config) -> None:
    if archive := config.stash.get(_ARCHIVE, None):
        archive.unlink(missing_ok=True)
        archive.parent.rmdir()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[machine.Machine]:
    """A control plane and one node."""
    if _IS_KIND:
        pytest.skip("this test needs a node that is made here")
    if lacks := requirements.missing(images=True):
        pytest.skip(f"a real node needs {lacks}")
    with machine.Machine(folder=tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="session")
def images(node: machine.Machine, request: pytest.FixtureRequest) -> Mapping[str, archives.Image]:
    """The product's image and those around it, built and known to the node, by their names."""
    archive = request.config.stash[_ARCHIVE]
    node.import_image(archive)
    image_archive = archives.read(archive)
    archive.unlink()  # now rather than at the end, which a run that is killed does not reach
    return image_archive


@pytest.fixture(scope="session")
def cluster_with_images(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[controlplane.Administrator]:
    """A cluster whose node has the product's image and those around it."""
    if _IS_KIND:
        with kind.Cluster(folder=tmp_path_factory.mktemp("kind")) as cluster:
            cluster.load_images()
            yield cluster
    else:
        request.getfixturevalue("images")
        yield request.getfixturevalue("node")


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
