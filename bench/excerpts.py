"""What an excerpt of a long result costs and keeps: floods with one line that matters, at many places.

Run it with `python -m bench.excerpts`. It counts characters and lines, and measures no time, so its figures are the
same everywhere; docs/quality.md has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from tarsy.transcript import excerpts, line_excerpts, result_lookup

LIMIT, CUT = 20_000, 64 * 1024
PLACES = 40
"""The places of the line that matters, evenly spread over a flood."""
LINES = 4_000

FLOODS: dict[str, Callable[[int], str]] = {
    "one line, repeated": lambda _: "GET /healthz 200",
    "access log": lambda n: f"10.0.{n % 250}.{n % 91} - [26/Nov/2026:10:{n // 60 % 60:02}:{n % 60:02}] GET /a/{n} 200",
    "log of many services": lambda n: (
        f"level=info svc={'abcdefgh'[n % 8] * (n % 5 + 1)} msg=done took={n % 97}ms id={n:x}"
    ),
    "errors of another kind": lambda n: f"ERROR upstream 10.0.0.{n % 250} timed out after {n % 30} s",
    "text without repeats": lambda n: " ".join(
        "".join(chr(97 + n * (k + 3) * p % 26) for k in range(6)) for p in (3, 5, 7)
    ),
    "JSON on one line": lambda n: json.dumps({"pod": f"web-{n}", "phase": "Running", "restarts": n % 3}),
}
MATTERS = {
    "an error": "FATAL: could not open /data/db: no space left on device",
    "a word of the alert": "lease of shop-db-0 is held by shop-db-1",
    "neither": "cache rebuilt from the snapshot of yesterday",
}
WORDS = line_excerpts.words("KubePodCrashLooping shop-db-0")


def floods(make: Callable[[int], str], line: str) -> Iterator[str]:
    """Yield the flood with the line at each place."""
    separator = ", " if make(0).startswith("{") else "\n"
    for place in range(PLACES):
        lines = [make(number) for number in range(LINES)]
        lines[place * LINES // PLACES + 17] = json.dumps({"pod": line}) if separator == ", " else line
        yield separator.join(lines)


def main() -> None:
    """Print a row for each kind of flood, as Markdown."""
    print("| Result | Characters | Excerpt | " + " | ".join(MATTERS) + " | cut in its middle | found by a search |")
    print("|---" * (len(MATTERS) + 5) + "|")
    for name, make in FLOODS.items():
        kept, cut, found, total, length, sizes = [], 0, 0, 0, 0, []
        for line in MATTERS.values():
            hits = 0
            for text in floods(make, line):
                chosen = line_excerpts.choose(text, LIMIT, alert_words=WORDS)
                shown, _ = line_excerpts.render(text, chosen, header="")
                rule = result_lookup.compile_pattern(line[:12].replace("/", "."))
                hits += line in shown
                cut += line in excerpts.middle_cut(text, CUT)
                found += line in result_lookup.search(text, rule, context=0, first=1, limit=16_000)
                total, length = total + 1, max(length, len(text))
                sizes.append(len(shown))
            kept.append(f"{hits}/{PLACES}")
        row = [name, f"{length:,}", f"{sum(sizes) // total:,}", *kept, f"{cut}/{total}", f"{found}/{total}"]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
