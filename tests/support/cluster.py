"""A control plane for the whole run, and a namespace for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support import inherited, installed, shared
from tarsy.kube import client
from tarsy_dev import assets, controlplane, tools


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the control plane before the first test: it may take minutes, and a test's timeout is shorter."""
    if session.config.option.collectonly or not any("programs" in _fixtures(test) for test in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), inherited.proxies():
        assets.everything()
        if any("helm" in _fixtures(test) for test in session.items):
            assets.program(assets.HELM)


def _fixtures(test: pytest.Item) -> list[str]:
    return test.fixturenames if isinstance(test, pytest.Function) else []


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The paths of the programs that are not Python, by name; what was missing has been built before the tests."""
    return assets.everything()


@pytest.fixture(scope="session")
def helm() -> Path:
    """The program helm; where it was missing it has been built before the tests."""
    return assets.program(assets.HELM)


@pytest.fixture(scope="session")
def shared_plane(request: pytest.FixtureRequest, programs: dict[str, Path]) -> controlplane.Administrator:
    """The run's one control plane, with the kinds of `crds/` and a simulated node."""
    plane: controlplane.Administrator = shared.ask(request.config, "plane")
    return plane


@pytest.fixture(scope="module")
def own_plane(
    tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[controlplane.ControlPlane]:
    """Another such control plane, for what kills parts of it or changes its kinds; then `plane` is this one."""
    crds = sorted((tools.ROOT / "crds").glob("*.yaml"))
    with controlplane.ControlPlane(folder=tmp_path_factory.mktemp("plane"), crds=crds, audited=True) as running:
        yield running


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> controlplane.Administrator:
    """The control plane of the test."""
    name = "own_plane" if "own_plane" in request.fixturenames else "shared_plane"
    plane: controlplane.Administrator = request.getfixturevalue(name)
    return plane


@pytest.fixture
def namespace(plane: controlplane.Administrator) -> str:
    """A namespace of the test's own, which ends with the control plane: its deletion would cost more than its tests."""
    name = f"test-{secrets.token_hex(4)}"
    plane.create_namespace(name)
    return name


@pytest.fixture
async def admin(plane: controlplane.Administrator, namespace: str) -> AsyncIterator[client.Cluster]:
    """The product's client of the test's namespace, for who may do everything."""
    cluster = await client.connect(plane.kubeconfig(namespace=namespace))
    yield cluster
    await cluster.close()


@pytest.fixture
async def chart_accounts(
    plane: controlplane.Administrator, admin: client.Cluster
) -> AsyncIterator[installed.Installed]:
    """The accounts that the chart renders for the test's namespace; what they ask for has to be granted to them."""
    accounts = installed.Installed(plane, admin)
    yield accounts
    await accounts.remove()
    assert accounts.refused() == set(), "the chart does not grant what was asked for"


@pytest.fixture
async def cluster(chart_accounts: installed.Installed) -> AsyncIterator[client.Cluster]:
    """The product's client of the test's namespace, with the rights that the chart grants an operator there."""
    cluster = await client.connect(await chart_accounts.kubeconfig())
    yield cluster
    await cluster.close()
