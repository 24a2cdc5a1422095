"""The figures as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import flood as floods
from bench import growth, measure, meter, whole
from bench import million as million_rows


def iterations(found: measure.Figures) -> Iterator[str]:
    """The lines of the arrival and of the iterations."""

    def row(name: str, times: meter.Times, cpu: str = "") -> str:
        return f"{name:44}{times.median:10.1f}{times.p95:10.1f}{times.n:8}{cpu:>12}"

    tarsy, bare = found.tarsy, found.bare
    yield f"{'milliseconds':44}{'median':>10}{'p95':>10}{'n':>8}{'processor':>12}"
    yield row("webhook to the model's first request", found.arrival)
    yield row("an alert at intake, ten senders", found.intake.answer, f"{found.intake.cpu:.1f}")
    yield row("an iteration: answer to next request", tarsy.added, f"{tarsy.cpu:.1f}")
    yield row("the same without TARSy (bare loop)", bare.added, f"{bare.cpu:.1f}")

    def ratio(name: str, time: float, cpu: float) -> str:
        return f"{name:44}{time / bare.added.median:10.2f}{'':18}{cpu / bare.cpu:12.2f}"

    yield ratio("ratio to bare: webhook to request, intake", found.arrival.median, found.intake.cpu)
    yield ratio("  an iteration", tarsy.added.median, tarsy.cpu)
    for name, sides in found.providers.items():
        times, cpu = sides.tarsy.added.median / sides.bare.added.median, sides.tarsy.cpu / sides.bare.cpu
        yield f"{f'  the same with {name}, to its own bare loop':44}{times:10.2f}{'':18}{cpu:12.2f}"


def workload(found: whole.Figures) -> Iterator[str]:
    """The lines of workload W."""
    alone, many = found.alone, found.many
    yield from _shape(f"W alone: {alone.tarsy.n} of each, one after another", alone)
    yield ""
    yield from _shape(f"W many: {many.tarsy.n} of each, {found.at_once} at once", many)
    two = found.two_a_minute
    yield f"{'  with two processes':44}{two:10.1f}{many.tarsy.a_minute:10.1f}{two / many.tarsy.a_minute:10.2f} of one"


def _shape(title: str, found: whole.Shape) -> Iterator[str]:
    def row(name: str, tarsy: float, bare: float) -> str:
        return f"{name:44}{tarsy:10.1f}{bare:10.1f}{tarsy / bare:10.2f}"

    tarsy, bare = found.tarsy, found.bare
    yield f"{title:44}{'TARSy':>10}{'bare':>10}{'ratio':>10}"
    if tarsy.wall and bare.wall:
        yield row("wall time of one, ms: median", tarsy.wall.median, bare.wall.median)
        yield row("  p95", tarsy.wall.p95, bare.wall.p95)
        yield row("  longest", tarsy.wall.longest, bare.wall.longest)
    yield row("first request to conclusion, ms: median", tarsy.conversation.median, bare.conversation.median)
    yield row("  p95", tarsy.conversation.p95, bare.conversation.p95)
    yield row("processor of one, ms: operator or bare loop", tarsy.cpu, bare.cpu)
    yield row("  Postgres", tarsy.postgres, bare.postgres)
    yield row("  both", tarsy.cpu + tarsy.postgres, bare.cpu + bare.postgres)
    yield row("transactions that wrote, of one", tarsy.transactions, bare.transactions)
    yield row("WAL of one, KiB", tarsy.wal, bare.wal)
    yield row("ended in a minute", tarsy.a_minute, bare.a_minute)


def growths(found: Sequence[growth.Growth]) -> Iterator[str]:
    """The lines of the growth of time with the length of hostile texts."""
    yield f"{'time for twice the text, as a ratio':58}{'texts':>8}{'ratio':>8}{'s/MB':>8}"
    for one in found:
        yield f"{one.name:58}{one.texts:8}{one.ratio:8.2f}{one.seconds_a_megabyte:8.2f}"


def million(found: million_rows.Figures) -> Iterator[str]:
    """The lines of a million investigations."""
    title = f"{found.rows:,} investigations, nine in ten purged in {found.purge_seconds:.0f} s"
    yield f"{title:54}{'fresh, ms':>12}{'purged':>10}{'vacuumed':>10}{'pages: fresh':>16}{'purged':>10}{'vacuumed':>10}"
    for one in found.operations:
        times = f"{one.milliseconds:12.1f}{one.purged:10.2f}{one.vacuumed:10.2f}"
        yield f"{one.name:54}{times}{one.pages:16}{one.pages_purged:10}{one.pages_vacuumed:10}"
    for scan in found.scanned:
        yield f"reads a large table from end to end: {scan}"


def flood(found: floods.Figures) -> Iterator[str]:
    """The lines of a flood."""
    tarsy, bare = found.tarsy, found.bare
    statuses = ", ".join(f"{count} times {status}" for status, count in sorted(found.statuses.items()))
    yield f"{f'{found.alerts:,} new alerts in {found.seconds:g} s, ten each':44}{'TARSy':>10}{'bare':>10}{'ratio':>10}"
    for name, ours, theirs in (
        ("a notification, ms: median", tarsy.answers.median, bare.answers.median),
        ("  p95", tarsy.answers.p95, bare.answers.p95),
        ("  longest", tarsy.answers.longest, bare.answers.longest),
        ("one that was taken, ms: median", tarsy.taken.median, bare.taken.median),
        ("  p95", tarsy.taken.p95, bare.taken.p95),
        ("processor of an alert, ms", tarsy.cpu, bare.cpu),
    ):
        yield f"{name:44}{ours:10.1f}{theirs:10.1f}{ours / theirs:10.2f}"
    taken, drained = found.taken_seconds, found.drained_seconds
    yield f"answered {statuses}; all taken after {taken:.0f} s, nothing left to do {drained:.0f} s later"
    if joined := found.joined:
        own = found.own
        yield f"{'an alert':44}{'its own':>10}{'joined':>10}{'ratio':>10}"
        for name, alone, together in (
            ("processor of the operator, ms", own.cpu, joined.cpu),
            ("processor of Postgres, ms", own.postgres, joined.postgres),
            ("transactions that wrote", own.transactions, joined.transactions),
            ("WAL, KiB", own.wal, joined.wal),
        ):
            yield f"{name:44}{alone:10.2f}{together:10.2f}{together / alone:10.2f}"
