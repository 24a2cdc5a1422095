"""A kubeconfig for an API server of the test's own."""

from __future__ import annotations

import json
from pathlib import Path


def write(path: Path, *, server: str) -> Path:
    """Write one for `server`, a URL, without credentials; its namespace is tarsy. Return `path`."""
    named: dict[str, dict[str, object]] = {
        "contexts": {"context": {"cluster": "one", "user": "one", "namespace": "tarsy"}},
        "clusters": {"cluster": {"server": server}},
        "users": {"user": {}},
    }
    parts = {kind: [{"name": "one", **part}] for kind, part in named.items()}
    path.write_text(json.dumps({"current-context": "one", **parts}))
    return path
