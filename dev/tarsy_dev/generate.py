"""Writes what is generated from the code, and what is generated from the chart.

From the code: the CRDs, the API's description, the platform file's schema and reference, the references
of commands and metrics, the chart's values with theirs. From the chart: `manifests/`. `make lint` fails when they
differ from what is committed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import yaml
from tarsy.api import app
from tarsy.resources import schema

from tarsy_dev import chart, commands, logs_page, metrics_page, reference, tools

CRDS = tools.ROOT / "crds"
OPENAPI = tools.ROOT / "docs" / "openapi.json"


def crds() -> dict[Path, str]:
    """The CRD files and what they should hold."""
    return {
        CRDS / f"{crd['metadata']['name']}.yaml": yaml.safe_dump(crd, sort_keys=False, width=120)
        for crd in (schema.agent_chain(), schema.alert_investigation())
    }


def openapi() -> dict[Path, str]:
    """The API's description, in an order that does not depend on that of the code."""
    return {OPENAPI: json.dumps(app.describe(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"}


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with --check say which differ; 1 if any does."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args(arguments).check
    code = (
        crds()
        | openapi()
        | reference.pages()
        | commands.pages()
        | logs_page.pages()
        | metrics_page.pages()
        | chart.pages()
    )
    stale = _stale(code)
    if not check:
        _write(code, stale)  # the manifests are rendered from it
    manifests = chart.manifests()
    stale += _stale(manifests)
    for path in stale if check else ():
        print(f"{path.relative_to(tools.ROOT)} is out of date: run `make generate`", file=sys.stderr)
    if not check:
        _write(manifests, stale)
    return 1 if check and stale else 0


def _stale(wanted: Mapping[Path, str]) -> list[Path]:
    return [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def _write(wanted: Mapping[Path, str], stale: Collection[Path]) -> None:
    for path in wanted.keys() & stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
