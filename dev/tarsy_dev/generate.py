"""Writes what is generated from the code: the CRDs. `make lint` fails when they differ from what is committed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from tarsy.resources import schema

from tarsy_dev import tools

CRDS = tools.ROOT / "crds"


def crds() -> dict[Path, str]:
    """The CRD files and what they should hold."""
    return {
        CRDS / f"{crd['metadata']['name']}.yaml": yaml.safe_dump(crd, sort_keys=False, width=120)
        for crd in (schema.agent_chain(), schema.alert_investigation())
    }


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with --check say which differ; 1 if any does."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args(arguments).check
    stale = [path for path, text in crds().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(tools.ROOT)} is out of date: run `make generate`", file=sys.stderr)
        else:
            path.write_text(crds()[path], encoding="utf-8")
    return 1 if check and stale else 0
