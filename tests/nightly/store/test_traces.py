"""Traces of investigations on a real database, as a collector has them: one piece, whatever kills the workers."""

from __future__ import annotations

import subprocess
import sys

_OFF = """
import sys
import tarsy.process.lifecycle
from tarsy.config.load import traces
from tarsy.config.model import platforms
assert traces.destination(platforms.Traces(), {}) is None
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry.proto", "google.protobuf"))))
"""


def test_a_process_without_traces_imports_neither_otlp_nor_protobuf() -> None:
    found = subprocess.run([sys.executable, "-c", _OFF], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
