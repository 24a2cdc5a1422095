"""`python -m bench`: measure, and print a table, or JSON with --json. About a minute."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from tarsy_dev import errors

from bench import measure, rig

LONGEST = 90.0  # seconds of measuring, once everything runs


def main() -> int:
    """Run the bench; what is wrong with it goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what TARSy adds to models and tools.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--notifications", type=int, default=50, help="posted one after another (default 50)")
    parser.add_argument("--conversations", type=int, default=20, help="of ten iterations, on each side (default 20)")
    arguments = parser.parse_args()
    found: measure.Figures | None = None
    try:
        with tempfile.TemporaryDirectory(prefix="tarsy-bench-") as folder, rig.running(Path(folder)) as parts:
            measuring = measure.figures(
                parts, notifications=arguments.notifications, conversations=arguments.conversations
            )
            found = asyncio.run(asyncio.wait_for(measuring, LONGEST))
    except* TimeoutError:
        print(f"not measured within {LONGEST:g} s", file=sys.stderr)
    except* errors.Error as failed:  # a group: it has come through the task groups of the MCP client
        print(*failed.exceptions, sep="\n", file=sys.stderr)
    if found is None:
        return 1
    print(json.dumps(dataclasses.asdict(found), indent=2) if arguments.json else _table(found))
    return 0


def _table(found: measure.Figures) -> str:
    def row(name: str, times: measure.Times, cpu: str = "") -> str:
        return f"{name:44}{times.median:10.1f}{times.p95:10.1f}{times.n:8}{cpu:>12}"

    tarsy, bare = found.tarsy, found.bare
    return "\n".join(
        [
            f"{'milliseconds':44}{'median':>10}{'p95':>10}{'n':>8}{'processor':>12}",
            row("webhook to the model's first request", found.arrival),
            row("an iteration: answer to next request", tarsy.added, f"{tarsy.cpu:.1f}"),
            row("the same without TARSy (bare loop)", bare.added, f"{bare.cpu:.1f}"),
            f"{'ratio':44}{tarsy.added.median / bare.added.median:10.2f}{'':18}{tarsy.cpu / bare.cpu:12.2f}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
