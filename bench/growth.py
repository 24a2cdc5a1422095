"""How the time of parsers and maskers grows with the length of hostile texts.

The unit tests count lines of Python. Time is spent in C, too (`re`, RE2, `str`), and there a quadratic pattern shows
only as time. Each text is timed at one size and at twice that size: a ratio of 2 is linear, 4 is quadratic.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarsy import rawjson
from tarsy.agent import escaping
from tarsy.masking import custom_patterns, known_secrets, lookalikes, masker
from tarsy.transcript import line_excerpts, react, result_lookup
from tarsy.views import escape

from bench import hostile_texts

RATIO_MAX = 3.0
"""The ratio over which the bench fails."""
NOISE_SECONDS = 0.005
"""Times for twice the size below which there is no ratio: the clock and the caches weigh more."""
TRIES = 5
"""Measurements of a text whose ratio is over RATIO_MAX; the best times count."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function and the texts that it is measured with."""

    name: str
    work: Callable[[Any], object]
    texts: Sequence[Callable[[int], str]]
    """Each returns a text of about so many characters."""
    size: int
    encoded: bool = False
    """Whether `work` takes bytes."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The figures of one case."""

    name: str
    texts: int
    ratio: float
    """The largest ratio."""
    steepest: str
    """The beginning of its text."""
    seconds_a_megabyte: float
    """The longest time of a text of twice the size, for a million characters."""


def _repeated(pieces: Sequence[str], *, head: str = "") -> list[Callable[[int], str]]:
    def text(piece: str, size: int) -> str:
        return head + piece * (size // len(piece))

    return [functools.partial(text, piece) for piece in pieces]


def _count_values(raw: bytes) -> None:
    values = rawjson.Values(250_000)
    for start in range(0, len(raw), 2**16):
        values.feed(raw[start : start + 2**16])


def _cases() -> Iterator[Case]:
    """Yield the cases. No masker withholds a text, so that all of it is read."""

    def unhurried(**settings: Any) -> Callable[[str], str]:
        return masker.Masker(clock=lambda: 0.0, **settings).text

    mask = unhurried(groups=["kubernetes", "security"])
    yield Case(
        name="masking",
        work=mask,
        texts=_repeated(hostile_texts.MASKING_PIECES, head=hostile_texts.EVERY_READER),
        size=32_000,
    )
    yield Case(name="masking, long texts", work=mask, texts=list(hostile_texts.MASKING_TEXTS.values()), size=250_000)
    secrets = known_secrets.KnownSecrets(f"{number:04}-secret-value" for number in range(1000))
    yield Case(
        name="masking of known secrets",
        work=unhurried(groups=["security"], secrets=secrets),
        texts=_repeated(hostile_texts.KNOWN_SECRETS),
        size=64_000,
    )
    for pattern in hostile_texts.CUSTOM_PATTERNS:
        compiled = custom_patterns.compile_pattern(name="account", pattern=pattern, replacement=None)
        yield Case(
            name=f"masking of the pattern {pattern}",
            work=unhurried(groups=["security"], own=[compiled]),
            texts=_repeated(hostile_texts.CUSTOM_PIECES),
            size=64_000,
        )
    yield Case(
        name="look-alike characters", work=lookalikes.normalize, texts=_repeated(hostile_texts.LOOKALIKES), size=500_000
    )
    for name, work in (("ReAct text", react.read), ("ReAct arguments", react.arguments)):
        yield Case(name=name, work=work, texts=_repeated(hostile_texts.REACT_PIECES), size=32_000)
    yield Case(
        name="quoting of steps",
        work=escaping.quote_steps,
        texts=_repeated(list(hostile_texts.QUOTED_PIECES.values())),
        size=64_000,
    )
    yield Case(
        name="escaping of Markdown",
        work=lambda text: escape.markdown(text, below=2),
        texts=list(hostile_texts.MARKDOWN_TEXTS.values()),
        size=50_000,
    )
    yield Case(
        name="repair of JSON",
        work=rawjson.repair,
        texts=_repeated(hostile_texts.REPAIRED_PIECES, head="\\ud83d"),
        size=2_000_000,
        encoded=True,
    )
    yield Case(
        name="counting of JSON values",
        work=_count_values,
        texts=_repeated(hostile_texts.COUNTED_PIECES),
        size=2_000_000,
        encoded=True,
    )
    for name, look, size in (
        ("excerpts of results", _excerpt, 4 * 2**20),
        ("searches of results", _search, 200_000),  # in production SEARCH_SECONDS ends a longer one
    ):
        yield Case(name=name, work=look, texts=_repeated(hostile_texts.RESULT_PIECES), size=size)


def _excerpt(text: str) -> str:
    chosen = line_excerpts.choose(text, 20_000, alert_words=frozenset({"web-0", "shop"}))
    return line_excerpts.render(text, chosen, header="")[0]


def _search(text: str) -> str:
    rule = result_lookup.compile_pattern(hostile_texts.RESULT_PATTERN)
    return result_lookup.search(text, rule, context=2, first=1, limit=16_000, clock=lambda: 0.0)


def figures() -> list[Growth]:
    """Measure all cases."""
    gc.collect()
    gc.freeze()  # the collector does not visit what was there before
    try:
        return [_measured(case) for case in _cases()]
    finally:
        gc.unfreeze()


def too_steep(found: Sequence[Growth]) -> list[str]:
    """Return a message for each case whose ratio is over RATIO_MAX."""
    return [
        f"{growth.name}: twice the text takes {growth.ratio:.1f} times as long: {growth.steepest!r}"
        for growth in found
        if growth.ratio > RATIO_MAX
    ]


def _measured(case: Case) -> Growth:
    ratios: list[tuple[float, str]] = []
    slowest = 0.0
    for text in case.texts:
        single, double = (text(size).encode() if case.encoded else text(size) for size in (case.size, 2 * case.size))
        best, best_double = _seconds(case.work, single), _seconds(case.work, double)
        for _ in range(TRIES):
            if best_double < NOISE_SECONDS or best_double <= RATIO_MAX * best:
                break
            best = min(best, _seconds(case.work, single))
            best_double = min(best_double, _seconds(case.work, double))
        ratio = best_double / best if best_double >= NOISE_SECONDS else 0.0
        ratios.append((ratio, str(double[:60])))
        slowest = max(slowest, best_double / len(double) * 1_000_000)
    ratio, steepest = max(ratios)
    return Growth(name=case.name, texts=len(case.texts), ratio=ratio, steepest=steepest, seconds_a_megabyte=slowest)


def _seconds(work: Callable[[Any], object], text: str | bytes) -> float:
    """Return the processor time of this thread."""
    start = time.thread_time()
    work(text)
    return time.thread_time() - start
