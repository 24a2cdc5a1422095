"""Reports of results: by provider in numbers, and by scenario."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree as ET

from tarsy.evaluation import results, statistics


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The runs of one scenario with one provider."""

    scenario: str
    right: int
    judged: int
    """The runs with a verdict: right or wrong; one without an analysis is wrong."""
    runs: int

    @property
    def share(self) -> float:
        """The share of the judged runs that are right."""
        return self.right / self.judged if self.judged else 0.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One provider in numbers; means are over all its runs."""

    provider: str
    runs: int
    right: statistics.Share
    """By scenario, of those with a judged run."""
    always_right: float
    """The share of these scenarios that are right in every judged run."""
    precision: float
    """The mean over judged runs, as `recall`."""
    recall: float
    no_verdict: int
    evidence_seen: float
    evidence_cited: float
    evidence_cut: int
    """Pieces of evidence that a call returned and that no model got."""
    false_claims: int
    leaked_secrets: int
    grounded: float
    gaps: float
    misses: int
    llm_calls: float
    tool_calls: float
    tokens: float
    cost: float | None
    """None if no run has a cost."""
    seconds: float
    opinions: int
    """The runs on which a judge model said right or wrong."""
    judged_right: int
    """Of these, those that it called right."""
    disputed: tuple[str, ...]
    """The runs on which judge and words differ, with the judge's reason."""
    cells: tuple[Cell, ...]


def rows(outcomes: Sequence[results.Result]) -> list[Row]:
    """Return a row for each provider, the best first."""
    by_provider = _grouped(outcomes, lambda result: result.provider)
    listed = [_row(provider, own) for provider, own in by_provider]
    return sorted(listed, key=lambda row: (-row.right.value, row.tokens, row.provider))


def _grouped(
    outcomes: Iterable[results.Result], key: Callable[[results.Result], str]
) -> list[tuple[str, list[results.Result]]]:
    return [(name, list(group)) for name, group in itertools.groupby(sorted(outcomes, key=key), key=key)]


def _row(provider: str, outcomes: Sequence[results.Result]) -> Row:
    cells = [
        Cell(
            scenario=scenario,
            right=sum(result.state == "right" for result in own),
            judged=sum(result.state != "no-verdict" for result in own),
            runs=len(own),
        )
        for scenario, own in _grouped(outcomes, lambda result: result.scenario)
    ]
    judged = [cell for cell in cells if cell.judged]
    evidence = [piece for result in outcomes for piece in result.evidence]
    costs = [result.cost for result in outcomes if result.cost is not None]
    with_verdict = [result for result in outcomes if result.state != "no-verdict"]
    opinions = [result for result in outcomes if result.opinion and result.opinion.verdict != "unclear"]
    return Row(
        provider=provider or "the chain's own",
        runs=len(outcomes),
        right=statistics.share([cell.share for cell in judged]),
        always_right=_mean(float(cell.right == cell.judged) for cell in judged),
        precision=_mean(result.precision for result in with_verdict),
        recall=_mean(result.recall for result in with_verdict),
        no_verdict=sum(result.state == "no-verdict" for result in outcomes),
        evidence_seen=_mean(float(piece.seen) for piece in evidence),
        evidence_cited=_mean(float(piece.cited) for piece in evidence),
        evidence_cut=sum(piece.reachable and not piece.seen for piece in evidence),
        false_claims=sum(len(result.false_claims) for result in outcomes),
        leaked_secrets=sum(result.leaked_secrets for result in outcomes),
        grounded=_mean(float(result.grounded is True) for result in outcomes),
        gaps=_mean(result.gaps for result in outcomes),
        misses=sum(len(result.misses) for result in outcomes),
        llm_calls=_mean(result.llm_calls for result in outcomes),
        tool_calls=_mean(result.tool_calls for result in outcomes),
        tokens=_mean(result.total_tokens for result in outcomes),
        cost=fmean(costs) if costs else None,
        seconds=_mean(result.seconds for result in outcomes),
        opinions=len(opinions),
        judged_right=sum(result.opinion is not None and result.opinion.verdict == "right" for result in opinions),
        disputed=tuple(
            f"{result.scenario} #{result.repeat}, {result.state} by its words, {result.opinion.verdict} by "
            f"{result.opinion.provider}: {result.opinion.reason}"
            for result in opinions
            if result.opinion and result.is_disputed
        ),
        cells=tuple(cells),
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0


_LISTED_MAX = 10
HEADER = (
    *("PROVIDER", "RUNS", "RIGHT", "95% BY SCENARIO", "ALWAYS", "PRECISION", "RECALL", "SEEN", "CITED"),
    *("FALSE CLAIMS", "GROUNDED", "GAPS", "MISSES", "NO VERDICT", "LLM CALLS", "TOOL CALLS", "TOKENS", "COST"),
    *("SECONDS", "JUDGE"),
)


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of HEADER."""
    return (
        row.provider,
        str(row.runs),
        _percent(row.right.value),
        f"{_percent(row.right.low)} to {_percent(row.right.high)}",
        _percent(row.always_right),
        f"{row.precision:.2f}",
        f"{row.recall:.2f}",
        _percent(row.evidence_seen),
        _percent(row.evidence_cited),
        str(row.false_claims),
        _percent(row.grounded),
        f"{row.gaps:.1f}",
        str(row.misses),
        str(row.no_verdict),
        f"{row.llm_calls:.1f}",
        f"{row.tool_calls:.1f}",
        f"{row.tokens:.0f}",
        "" if row.cost is None else f"{row.cost:.4f}",
        f"{row.seconds:.1f}",
        f"{row.judged_right}/{row.opinions}" if row.opinions else "",
    )


def not_run(folder: Path, outcomes: Iterable[results.Result]) -> list[results.Key]:
    """Return the planned runs that have no result, by provider; raises files.FileError."""
    done = {result.key for result in outcomes}
    return sorted((key for key in results.planned(folder) if key not in done), key=lambda key: (key[1], *key))


def warnings(listed: Sequence[Row], missing: Sequence[results.Key] = ()) -> list[str]:
    """Return a sentence for each thing that the numbers must not hide; `missing` are runs without a result."""
    lacks = [
        f"{name or 'the chain'}: {len(keys)} planned runs were not made: "
        + ", ".join(f"{scenario} #{repeat}" for scenario, _, repeat in keys[:_LISTED_MAX])
        + (f" and {len(keys) - _LISTED_MAX} more" if len(keys) > _LISTED_MAX else "")
        for name, group in itertools.groupby(missing, key=lambda key: key[1])
        if (keys := list(group))
    ]
    return [
        *lacks,
        *(f"{row.provider}: the judge differs on {dispute}" for row in listed for dispute in row.disputed),
        *(f"{row.provider}: {row.leaked_secrets} secrets reached a transcript" for row in listed if row.leaked_secrets),
        *(
            f"{row.provider}: {row.evidence_cut} pieces of evidence were returned by a tool and cut before a model"
            for row in listed
            if row.evidence_cut
        ),
    ]


def scenario_table(listed: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of the table of scenarios: the right runs of those that were judged, by provider."""
    names = sorted({cell.scenario for row in listed for cell in row.cells})
    by_name = [{cell.scenario: cell for cell in row.cells} for row in listed]
    table = []
    for name in names:
        counts = (own.get(name) for own in by_name)
        table.append((name, *("-" if cell is None else f"{cell.right}/{cell.judged}" for cell in counts)))
    return ("SCENARIO", *(row.provider for row in listed)), table


def as_json(outcomes: Sequence[results.Result], missing: Sequence[results.Key] = ()) -> str:
    """Return the report as JSON: the rows, all results, and the runs without one."""
    document: dict[str, Any] = {
        "version": results.VERSION,
        "providers": [asdict(row) for row in rows(outcomes)],
        "results": [result.model_dump(mode="json") for result in outcomes],
        "not_run": [
            {"scenario": scenario, "provider": provider, "repeat": repeat} for scenario, provider, repeat in missing
        ],
    }
    return json.dumps(document, indent=1)


def as_markdown(outcomes: Sequence[results.Result], missing: Sequence[results.Key] = ()) -> str:
    """Return the report as Markdown."""
    listed = rows(outcomes)
    header, table = scenario_table(listed)
    parts = [
        "# Evaluation\n",
        _markdown_table(HEADER, map(cells, listed)),
        *map("- {}\n".format, warnings(listed, missing)),
    ]
    return "\n".join([*parts, "## Scenarios\n", _markdown_table(header, table)])


def _markdown_table(header: Sequence[str], table: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *table]
    return "".join(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in line)} |\n" for line in lines)


def as_junit(outcomes: Sequence[results.Result], missing: Sequence[results.Key] = ()) -> str:
    """Return the report as JUnit XML: a suite for each provider, a case for each run; those not made are skipped."""
    root = ET.Element("testsuites", name="tarsy eval")
    by_provider = dict(_grouped(outcomes, lambda result: result.provider))
    for provider in sorted({*by_provider, *(provider for _, provider, _ in missing)}):
        own, left_out = by_provider.get(provider, []), [key for key in missing if key[1] == provider]
        suite = ET.SubElement(root, "testsuite", name=provider or "chain", tests=str(len(own) + len(left_out)))
        suite.set("failures", str(sum(result.state in ("wrong", "failed") for result in own)))
        suite.set("skipped", str(sum(result.state == "no-verdict" for result in own) + len(left_out)))
        for scenario, _, repeat in left_out:
            case = ET.SubElement(suite, "testcase", classname=scenario, name=f"#{repeat}", time="0.0")
            ET.SubElement(case, "skipped", message="it was not run")
        for result in own:
            case = ET.SubElement(
                suite, "testcase", classname=result.scenario, name=f"#{result.repeat}", time=f"{result.seconds:.1f}"
            )
            if result.state == "no-verdict":
                ET.SubElement(case, "skipped", message=_printable(result.problem))
            elif result.state != "right":
                claimed = ", ".join(result.claimed) or "no class"
                named = "the entity named" if result.is_entity_named else "the entity not named"
                message = result.problem or f"claimed {claimed}, {named}; right is {result.expected}"
                ET.SubElement(case, "failure", message=_printable(message))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return "".join(char if char.isprintable() else " " for char in text)


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def comparisons(
    before: Sequence[results.Result], after: Sequence[results.Result]
) -> list[tuple[str, statistics.Difference]]:
    """Return the difference over all providers, as "", and if there are several in both, that of each of them."""
    compared = {"": statistics.difference(shares(before), shares(after))}
    both = sorted({result.provider for result in before} & {result.provider for result in after})
    for provider in both if len(both) > 1 else ():
        first, second = (shares([each for each in own if each.provider == provider]) for own in (before, after))
        compared[provider or "the chain's own"] = statistics.difference(first, second)
    return list(compared.items())


def shares(outcomes: Sequence[results.Result]) -> dict[str, float]:
    """Return the share of right runs by scenario, of those with a judged run, over all providers of the results."""
    judged = [result for result in outcomes if result.state != "no-verdict"]
    return {
        scenario: fmean(float(result.state == "right") for result in own)
        for scenario, own in _grouped(judged, lambda result: result.scenario)
    }
