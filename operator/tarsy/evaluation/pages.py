"""The report as one HTML file that needs nothing else; it links to the transcripts beside the results."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tarsy.evaluation import reports, results

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { border: 1px solid #d0d7de; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: #f3f5f7; }
.right { color: #116329; } .wrong, .failed { color: #a40e26; } .no-verdict { color: #6b5900; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } th { background: #1c2128; }
th, td { border-color: #3d444d; } a { color: #6cb6ff; } .right { color: #57ab5a; } .wrong, .failed { color: #ff938a; }
.no-verdict { color: #daaa3f; } }
"""


def page(runs: Sequence[results.Result], missing: Sequence[results.Key] = (), *, folder: Path, target: Path) -> str:
    """Return the page; `folder` has the transcripts, `target` is the file of the page; `missing` was not run."""
    listed = reports.rows(runs)
    header, table = reports.scenario_table(listed)
    warnings = "".join(f"<li>{html.escape(each)}</li>" for each in reports.warnings(listed, missing))
    prefix = Path(os.path.relpath(folder, target.parent)).as_posix()
    body = (
        "<h1>Evaluation</h1>"
        + _table(reports.HEADER, map(_escaped, map(reports.cells, listed)))
        + (f"<h2>Attention</h2><ul>{warnings}</ul>" if warnings else "")
        + "<h2>Scenarios: right of judged runs</h2>"
        + _table(header, map(_escaped, table))
        + "<h2>Runs</h2>"
        + _table(
            ("Scenario", "Provider", "Run", "Verdict", "Claimed", "Evidence", "False claims", "Calls", "Transcript"),
            (_run(result, prefix) for result in runs),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>TARSy evaluation</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _escaped(cells: Sequence[str]) -> list[str]:
    return [html.escape(cell) for cell in cells]


def _run(result: results.Result, prefix: str) -> list[str]:
    file = results.path(Path(prefix), *result.key).with_suffix(results.TRANSCRIPT).as_posix()
    evidence = "<br>".join(
        f"{'seen' if piece.seen else 'cut' if piece.reachable else 'not seen'}"
        f"{', cited' if piece.cited else ''}: {html.escape(piece.shows)}"
        for piece in result.evidence
    )
    verdict = f'<span class="{result.state}">{result.state}</span>'
    if result.problem:
        verdict += f"<br>{html.escape(result.problem)}"
    if opinion := result.opinion:
        differs = " (differs)" if result.is_disputed else ""
        verdict += f"<br>{html.escape(f'{opinion.provider} says {opinion.verdict}{differs}: {opinion.reason}')}"
    claimed = html.escape(", ".join(result.claimed) or "no class")
    return [
        f"{html.escape(result.title)}<br>{html.escape(result.scenario)}",
        html.escape(result.provider or "the chain's own"),
        str(result.repeat),
        verdict,
        f"{claimed}<br>right: {result.expected}",
        evidence,
        "<br>".join(map(html.escape, result.false_claims)),
        str(result.tool_calls),
        f'<a href="{html.escape(file)}">transcript</a>',
    ]


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; the cells of `rows` are HTML."""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
