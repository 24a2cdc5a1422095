"""`python -m bench`: measure, and print tables, or JSON with --json. Under four minutes."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tarsy_dev import errors

from bench import flood, growth, measure, million, rig, table, whole

T = TypeVar("T")

LONGEST = 300.0  # seconds of measuring, once everything runs; thrice what an idle machine of two cores takes
FLOODED = 3600.0  # the same of a flood, whose investigations all end


def main() -> int:
    """Run the bench; what is wrong with it goes to stderr."""
    arguments = _parser().parse_args()
    iterations: measure.Figures | None = None
    workload: whole.Figures | None = None
    growths: list[growth.Growth] = []
    rows: million.Figures | None = None
    flooded: flood.Figures | None = None
    done = False
    try:
        if arguments.only in (None, "iterations"):
            iterations = _iterations(arguments)
        if arguments.only in (None, "whole"):
            workload = _workload(arguments)
        if arguments.only in (None, "growth"):
            growths = growth.figures()
        if arguments.only == "flood":
            flooded = _flooded(arguments)
        if arguments.only == "million":
            rows = asyncio.run(million.figures(arguments.rows))
        done = True
    except* TimeoutError:
        print("not measured in time", file=sys.stderr)
    except* errors.Error as failed:
        print(*_said(failed), sep="\n", file=sys.stderr)
    print(
        _json(iterations, workload, growths, rows, flooded)
        if arguments.json
        else _tables(iterations, workload, growths, rows, flooded)
    )
    steep = growth.too_steep(growths)
    if steep:
        print(*steep, sep="\n", file=sys.stderr)
    return 0 if done and not steep else 1


def _said(failed: BaseExceptionGroup[errors.Error]) -> Iterator[errors.Error]:
    """What is in a group: errors come through the task groups of the MCP client and of ours."""
    for error in failed.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _said(error)
        else:
            yield error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what TARSy adds to models and tools.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", choices=("iterations", "whole", "growth", "million", "flood"), help="one part")
    parser.add_argument(
        "--rows",
        type=_count,
        default=1_000_000,
        metavar="N",
        help="investigations of `--only million`, which no run has else",
    )
    parser.add_argument(
        "--flood-causes",
        type=int,
        default=0,
        metavar="N",
        help="of one more flood of `--only flood`, whose alerts join an investigation for each cause (default none)",
    )
    parser.add_argument(
        "--flood-model-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="before each answer of the model in `--only flood`; real models take some (default 0)",
    )
    for name, default, what in (
        ("--notifications", 50, "posted one after another"),
        ("--conversations", 20, "of ten iterations, on each side"),
        ("--w-alone", 40, "whole investigations one after another, on each side"),
        ("--w-many", 200, "whole investigations, many at once, on each side"),
        ("--w-at-once", 50, "how many of those at a time"),
        ("--flood-alerts", 10_000, "of `--only flood`, which no run has else"),
        ("--flood-seconds", 60, "in which they are posted"),
    ):
        parser.add_argument(name, type=_count, default=default, metavar="N", help=f"{what} (default {default})")
    return parser


def _count(text: str) -> int:
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError("at least 2, for there are medians and quantiles of them")
    return count


def _iterations(arguments: argparse.Namespace) -> measure.Figures:
    return _measured(
        lambda parts: measure.figures(
            parts, notifications=arguments.notifications, conversations=arguments.conversations
        )
    )


def _workload(arguments: argparse.Namespace) -> whole.Figures:
    return _measured(
        lambda parts: whole.figures(parts, alone=arguments.w_alone, many=arguments.w_many, at_once=arguments.w_at_once),
        durable=True,
        slots=arguments.w_at_once,
    )


def _flooded(arguments: argparse.Namespace) -> flood.Figures:
    return _measured(
        lambda parts: flood.figures(
            parts, alerts=arguments.flood_alerts, seconds=arguments.flood_seconds, causes=arguments.flood_causes
        ),
        durable=True,
        model_seconds=arguments.flood_model_seconds,
        within=FLOODED,
    )


def _measured(
    measuring: Callable[[rig.Rig], Coroutine[Any, Any, T]],
    *,
    durable: bool = False,
    slots: int = 50,
    model_seconds: float = 0.0,
    within: float = LONGEST,
) -> T:
    """Measure on a rig of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="tarsy-bench-") as folder,
        rig.running(Path(folder), durable=durable, slots=slots, model_seconds=model_seconds) as parts,
    ):
        return asyncio.run(asyncio.wait_for(measuring(parts), within))


def _json(
    iterations: measure.Figures | None,
    workload: whole.Figures | None,
    growths: Sequence[growth.Growth],
    rows: million.Figures | None,
    flooded: flood.Figures | None,
) -> str:
    found = {} if iterations is None else dataclasses.asdict(iterations)
    if workload is not None:
        found["whole"] = dataclasses.asdict(workload)
    if growths:
        found["growth"] = [dataclasses.asdict(figure) for figure in growths]
    if rows is not None:
        found["million"] = dataclasses.asdict(rows)
    if flooded is not None:
        found["flood"] = dataclasses.asdict(flooded)
    return json.dumps(found, indent=2)


def _tables(
    iterations: measure.Figures | None,
    workload: whole.Figures | None,
    growths: Sequence[growth.Growth],
    rows: million.Figures | None,
    flooded: flood.Figures | None,
) -> str:
    tables = [
        *([] if iterations is None else [table.iterations(iterations)]),
        *([] if workload is None else [table.workload(workload)]),
        *([table.growths(growths)] if growths else []),
        *([] if rows is None else [table.million(rows)]),
        *([] if flooded is None else [table.flood(flooded)]),
    ]
    return "\n\n".join("\n".join(lines) for lines in tables)


if __name__ == "__main__":
    sys.exit(main())
