"""Results: one file for each run, in a directory that can be continued, reported and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import ConfigDict

from tarsy.evaluation import causes
from tarsy.resources import files

VERSION: Literal[1] = 1
TRANSCRIPT = ".md"
State = Literal["right", "wrong", "failed", "no-verdict"]
"""failed: the investigation has no analysis. no-verdict: the world had no answers for what a wrong run asked."""


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvidenceResult(_Part):
    """The fate of one piece of evidence in a run."""

    shows: str
    seen: bool
    """A model got a result that shows it."""
    reachable: bool
    """A call returned it; if it was not seen, it was cut out of what the model got."""
    cited: bool
    """The analysis uses it."""


class Opinion(_Part):
    """The opinion of a judge model."""

    provider: str
    verdict: Literal["right", "wrong", "unclear"]
    reason: str
    total_tokens: int
    cost: float | None


class Result(_Part):
    """The result of one run of a scenario."""

    version: Literal[1] = VERSION
    scenario: str
    title: str
    tags: tuple[str, ...]
    scenario_digest: str
    chain: str
    chain_digest: str
    provider: str
    """The provider of all model calls; "" if they are the chain's own."""
    repeat: int
    """From 1."""
    state: State
    problem: str = ""
    """Why there is no verdict, or no analysis."""
    phase: str
    claimed: tuple[causes.CauseClass, ...]
    expected: causes.CauseClass
    is_entity_named: bool
    precision: float
    recall: float
    evidence: tuple[EvidenceResult, ...]
    false_claims: tuple[str, ...]
    leaked_secrets: int
    """Secrets of the scenario that are in the transcript."""
    grounded: bool | None
    gaps: int
    misses: tuple[str, ...]
    llm_calls: int
    tool_calls: int
    total_tokens: int
    cost: float | None
    seconds: float
    investigation: str
    """Its name in the transcript."""
    analysis: str = ""
    opinion: Opinion | None = None
    """The second opinion on the analysis, if one was asked for; `state` does not depend on it."""

    @property
    def key(self) -> Key:
        """The scenario, the provider and the repeat."""
        return self.scenario, self.provider, self.repeat

    @property
    def is_disputed(self) -> bool:
        """Whether the judge says right and the words say wrong, or the other way round."""
        is_right = self.state == "right"
        return (
            self.opinion is not None
            and self.opinion.verdict != "unclear"
            and ((self.opinion.verdict == "right") is not is_right)
        )


Key = tuple[str, str, int]
"""Scenario, provider ("" for the chain's own) and repeat of a run."""
PLAN = "plan.json"


def title(key: Key) -> str:
    """Return the name of a run in messages."""
    scenario, provider, repeat = key
    return f"{scenario} {provider or 'chain'} #{repeat}"


class _Plan(_Part):
    runs: tuple[Key, ...]


def planned(folder: Path) -> list[Key]:
    """Return all runs that commands have planned for a directory, sorted; raises files.FileError."""
    path = folder / PLAN
    try:
        return sorted(_Plan.model_validate_json(path.read_text(encoding="utf-8")).runs)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        message = f"not written by this version of tarsy: delete it; the next run writes it: {type(error).__name__}"
        raise files.FileError([files.Problem(file=str(path), line=0, message=message)]) from error


def plan(folder: Path, runs: Iterable[Key]) -> None:
    """Add runs to those that are planned for a directory. Raises files.FileError."""
    folder.mkdir(parents=True, exist_ok=True)
    content = _Plan(runs=tuple(sorted({*planned(folder), *runs}))).model_dump_json()
    _replace(folder / PLAN, content)


def path(folder: Path, scenario: str, provider: str, repeat: int) -> Path:
    """Return the file of a run."""
    return folder / scenario / f"{provider or 'chain'}-{repeat}.json"


def write(folder: Path, result: Result, transcript: str) -> None:
    """Write a run's transcript, then its result, so that a result always has its transcript."""
    file = path(folder, *result.key)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(TRANSCRIPT).write_text(transcript, encoding="utf-8")
    rewrite(folder, result)


def rewrite(folder: Path, result: Result) -> None:
    """Write a run's result, in the place of an earlier one of it."""
    _replace(path(folder, *result.key), result.model_dump_json(indent=1) + "\n")


def _replace(file: Path, content: str) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(content, encoding="utf-8")
    draft.replace(file)


def read(folder: Path) -> list[Result]:
    """Return the results in a directory, sorted; raises files.FileError if there is none, or one cannot be read."""
    results: list[Result] = []
    problems: list[files.Problem] = []
    for file in sorted(folder.glob("*/*.json")):
        try:
            results.append(Result.model_validate_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            reason = "no result of this version of tarsy: delete it, and run it again"
            message = f"{reason}: {type(error).__name__}"
            problems.append(files.Problem(file=str(file), line=0, message=message))
    if not results and not problems:
        message = "no results here: name the directory that tarsy eval run has written (--output)"
        problems.append(files.Problem(file=str(folder), line=0, message=message))
    if problems:
        raise files.FileError(problems)
    return results


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The cost of results, judges included."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, result: Result) -> Spent:
        """Return the sum with another result."""
        parts = (result, result.opinion) if result.opinion else (result,)
        return Spent(
            tokens=self.tokens + sum(part.total_tokens for part in parts),
            cost=self.cost + math.fsum(part.cost or 0.0 for part in parts),
        )


def spent(results: Iterable[Result]) -> Spent:
    """Return what results have cost."""
    total = Spent()
    for result in results:
        total += result
    return total
