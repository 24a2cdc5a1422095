"""A cluster of kind's, for the tests that install the product. It needs Docker, kind, and a registry of base images."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path
from types import TracebackType

import yaml

from tarsy_dev import controlplane, errors, tools

IMAGES = ("tarsy:0.1.0", "tarsy:kind", "tarsy-model:kind")
"""The images that are built here, by the names that nodes know them by."""


class EngineError(errors.Error):
    """A command of kind's or Docker's failed; the message has the end of its output."""


class Cluster(controlplane.Administrator):
    """A cluster with one node, whose files lie in `folder`. Usable as a context manager, which starts and ends it."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(folder=folder, url="")
        self._name = f"tarsy-test-{secrets.token_hex(3)}"
        self._config = self.folder / "kubeconfig"

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            _run("kind", "create", "cluster", "--name", self._name, "--kubeconfig", str(self._config), "--wait", "180s")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Delete the cluster."""
        _run("kind", "delete", "cluster", "--name", self._name)

    def load_images(self) -> None:
        """Build the product's image and the scripted model's, and load them into the node."""
        product, same, model = IMAGES
        _run("docker", "build", "--tag", product, "--tag", same, ".")
        _run("docker", "build", "--tag", model, "--file", "dev/kind/Dockerfile", "dev")
        _run("kind", "load", "docker-image", *IMAGES, "--name", self._name)

    def kubeconfig(
        self, *, namespace: str = "default", user: str = "admin", token: str | None = None, url: str | None = None
    ) -> Path:
        """Write a kubeconfig of the administrator's whose current namespace is `namespace`, and return its path."""
        if (user, token, url) != ("admin", None, None):
            raise NotImplementedError("a cluster of kind's has kubeconfigs of the administrator only")
        config = yaml.safe_load(self._config.read_text())
        config["contexts"][0]["context"]["namespace"] = namespace
        path = self.folder / f"kubeconfig.{namespace}"
        path.write_text(yaml.safe_dump(config))
        return path

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be made in it, which needs its ServiceAccount."""
        self.kubectl("create", "namespace", name)
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=30s", namespace=name)


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=tools.ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
