"""OCI archives, read: what a registry would have of an image."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """One image of an archive."""

    size: int
    """The bytes that a node pulls: its layers, compressed."""
    config: dict[str, Any]
    """User, labels, entry point and the like."""


def read(archive: Path) -> dict[str, Image]:
    """Return the images of an archive by their names."""
    with tarfile.open(archive) as tar:

        def load(name: str) -> Any:
            member = tar.extractfile(name)
            assert member is not None, name
            return json.load(member)

        def blob(descriptor: dict[str, Any]) -> Any:
            return load(f"./blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}")

        images = {}
        for entry in load("./index.json")["manifests"]:
            manifest = blob(entry)
            size = sum(layer["size"] for layer in manifest["layers"])
            images[entry["annotations"][_NAME]] = Image(size, blob(manifest["config"])["config"])
        return images
