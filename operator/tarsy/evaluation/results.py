"""Results: one file for each run, in a directory that can be continued, reported and compared."""

from __future__ import annotations

from collections.abc import Iterable
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
    """What became of one piece of evidence in a run."""

    shows: str
    seen: bool
    """A model got a result that shows it."""
    reachable: bool
    """A call returned it; if it was not seen, it was cut out of what the model got."""
    cited: bool
    """The analysis uses it."""


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

    @property
    def key(self) -> tuple[str, str, int]:
        """The scenario, the provider and the repeat."""
        return self.scenario, self.provider, self.repeat


def path(folder: Path, scenario: str, provider: str, repeat: int) -> Path:
    """Return the file of a run."""
    return folder / scenario / f"{provider or 'chain'}-{repeat}.json"


def write(folder: Path, result: Result, transcript: str) -> None:
    """Write a run's transcript, then its result, so that a result always has its transcript."""
    file = path(folder, *result.key)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(TRANSCRIPT).write_text(transcript, encoding="utf-8")
    draft = file.with_suffix(".draft")
    draft.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draft.replace(file)


def read(folder: Path) -> list[Result]:
    """Return the results in a directory, sorted; raises files.FileError if there is none, or one cannot be read."""
    found: list[Result] = []
    problems: list[files.Problem] = []
    for file in sorted(folder.glob("*/*.json")):
        try:
            found.append(Result.model_validate_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            reason = "no result of this version of tarsy: delete it, and run it again"
            message = f"{reason}: {type(error).__name__}"
            problems.append(files.Problem(file=str(file), line=0, message=message))
    if not found and not problems:
        message = "no results here: name the directory that tarsy eval run has written (--output)"
        problems.append(files.Problem(file=str(folder), line=0, message=message))
    if problems:
        raise files.FileError(problems)
    return found


def spent(results: Iterable[Result]) -> int:
    """Return the tokens of results."""
    return sum(result.total_tokens for result in results)
