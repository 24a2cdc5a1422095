"""Verdicts: what an analysis claims, and how much of it is right. Deterministic: no model judges.

An analysis is free text. Its conclusion is the section under a heading such as "Root cause", or else the sentences that
speak of a cause, or else all of it. A class is claimed by its words (`causes`) in a clause of the conclusion that does
not deny them. The entity is named by its name, by the name of an object that it owns, or by one of the scenario's other
names; if the conclusion names no object of the world, the whole analysis counts.

A claim of the right class and entity is right, also if it claims one class beside it. It is not if it claims more: to
name everything is not to know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarsy.evaluation import causes, scenarios

SCORE_MIN = 2 / 3
"""The least score of a right verdict: one wrong class beside the right one."""
_HEADING = re.compile(
    r"^[\s#*_\d.)]*"
    r"(?:(?:most )?(?:likely|probable) )?(?:root[ -]?cause|cause|conclusion|verdict)(?: analysis)?\b(?P<rest>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_NEXT_HEADING = re.compile(
    r"^\s*(?:#{1,6}\s|\*\*[^*\n]{1,60}\*\*:?\s*$|\*\*[^*\n]{1,60}:\*\*|\d+[.)]\s+\*{0,2}[A-Z][^\n.]{0,40}:"
    r"|(?-i:[A-Z])\w*(?: [\w/&'-]+){0,3}:\s*$"  # a line that is a label
    r"|(?:supporting )?(?:evidence|impact|effects?|recommend\w*|remediation|fix|next steps?|what (?:to do|could not)"
    r"|actions?|prevention|verification|(?:not )?verified|unverified|ruled out|gaps|timeline|symptoms?)\b"
    r"[^:\n]{0,40}:)",
    re.IGNORECASE,
)
_CODE_BLOCK = re.compile(r"^\s*(```|~~~).*?(?:^\s*\1|\Z)", re.MULTILINE | re.DOTALL)
_OF_CAUSE = re.compile(
    r"\b(?:root cause|caused by|causes?|because|due to|reason|results? from|as a result of|explains)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\[*_`(-])|;\s|\n+")
_CLAUSE = re.compile(r"[,:]\s|\s[–—-]\s|\b(?:but|although|however|whereas|while)\b", re.IGNORECASE)  # noqa: RUF001
_DENIAL = re.compile(
    r"\b(?:no|not|never|neither|nor|without|cannot|rules? out|ruled out|excluded?|unlikely|unrelated|rather than"
    r"|instead of|red herring|\w+n't)\b",
    re.IGNORECASE,
)
_TOKEN_START, _TOKEN_END = r"(?<![A-Za-z0-9_.-])", r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9])"


@dataclass(frozen=True, kw_only=True)
class CauseVerdict:
    """The judgement of an analysis' cause."""

    claimed: tuple[causes.CauseClass, ...]
    """The classes that its conclusion claims."""
    is_entity_named: bool
    precision: float
    """The share of the claimed classes that is right; 0 if none is claimed."""
    recall: float
    """1 if the right class is claimed and the entity named; 0.5 for one of them."""

    @property
    def score(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    @property
    def is_right(self) -> bool:
        """Whether the cause is right."""
        return self.recall == 1 and self.score >= SCORE_MIN - 1e-9


def conclusion(analysis: str) -> str:
    """Return the part of an analysis that says the cause, without blocks of code, which quote what was seen."""
    analysis = _CODE_BLOCK.sub("", analysis)
    lines = analysis.splitlines()
    for number, line in enumerate(lines):
        match = _HEADING.match(line)
        if match is None:
            continue
        is_emphasized = line.lstrip().startswith(("#", "*", "_"))
        if not is_emphasized and match["rest"] and not match["rest"].lstrip("*_ ").startswith(":"):
            continue  # a sentence that begins with the word
        section = [match["rest"].strip(" :*_#")]
        for following in lines[number + 1 :]:
            if _NEXT_HEADING.match(following) and (any(section) or following.startswith("#")):
                break
            section.append(following)
        if text := "\n".join(section).strip():
            return text
    about = [sentence for sentence in _SENTENCE.split(analysis) if _OF_CAUSE.search(sentence)]
    return "\n".join(about) or analysis


def claimed_classes(text: str) -> tuple[causes.CauseClass, ...]:
    """Return the classes that a text claims, in the order of the list. Of phrases that overlap, the longest counts."""
    claimed: set[causes.CauseClass] = set()
    for sentence in _SENTENCE.split(text):
        for clause in map(str.lower, _clauses(sentence)):
            matches = [
                (*match.span(), name) for name, pattern in causes.PATTERNS.items() for match in pattern.finditer(clause)
            ]
            if matches and not _denies(clause, [(start, end) for start, end, _ in matches]):
                claimed |= {name for start, end, name in matches if not _is_within_longer(start, end, name, matches)}
    return tuple(name for name in causes.CLASSES if name in claimed)


def _is_within_longer(start: int, end: int, name: str, matches: list[tuple[int, int, causes.CauseClass]]) -> bool:
    return any(
        other != name and first < end and start < last and last - first > end - start for first, last, other in matches
    )


def _clauses(sentence: str) -> list[str]:
    """Return the sentence, or its clauses if one of them denies something: only then does the border matter."""
    return [each for each in _CLAUSE.split(sentence) if each] if _DENIAL.search(sentence) else [sentence]


def _denies(clause: str, spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether a clause denies something outside of these spans, whose own words may be denials."""
    for start, end in spans:
        clause = clause[:start] + " " * (end - start) + clause[end:]
    return _DENIAL.search(clause) is not None


def names(text: str, name: str) -> bool:
    """Return whether a text has a name as a whole word."""
    return re.search(f"{_TOKEN_START}{re.escape(name)}{_TOKEN_END}", text, re.IGNORECASE) is not None


def entity_names(cause: scenarios.Cause, objects: Collection[Mapping[str, Any]]) -> set[str]:
    """Return the names by which an analysis may name the entity: its own, those of what it owns, the other ones."""
    owned = {(cause.kind, cause.namespace, cause.name)}
    is_growing = True
    while is_growing:
        more = {
            (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
            for each in objects
            for owner in each["metadata"].get("ownerReferences") or ()
            if (owner["kind"], each["metadata"].get("namespace", ""), owner["name"]) in owned
        }
        is_growing = not more <= owned
        owned |= more
    return {name for _, _, name in owned} | set(cause.also_named)


def judge(analysis: str, cause: scenarios.Cause, objects: Collection[Mapping[str, Any]]) -> CauseVerdict:
    """Return the judgement of an analysis of a world with these objects."""
    concluded = conclusion(analysis)
    claimed = claimed_classes(concluded)
    has_class = cause.cause_class in claimed
    if cause.cause_class == "nothing":
        is_named = True
    else:
        own = entity_names(cause, objects)
        is_named = any(names(concluded, name) for name in own)
        all_names = {each["metadata"]["name"] for each in objects}
        if not is_named and not any(names(concluded, name) for name in all_names):
            is_named = any(names(analysis, name) for name in own)
    recall = float(has_class) if cause.cause_class == "nothing" else (has_class + is_named) / 2
    return CauseVerdict(
        claimed=claimed,
        is_entity_named=is_named,
        precision=1 / len(claimed) if has_class else 0.0,
        recall=recall,
    )


def matches(pattern: str, text: str) -> bool:
    """Return whether a scenario's pattern matches somewhere in a text."""
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def false_claims(analysis: str, claims: Sequence[scenarios.ForbiddenClaim]) -> Iterator[scenarios.ForbiddenClaim]:
    """Yield the claims that an analysis makes: in a clause that does not deny them.

    A denial within the matched words counts, too, unless the pattern itself has one.
    """
    clauses = [clause for sentence in _SENTENCE.split(analysis) for clause in _clauses(sentence)]
    for claim in claims:
        pattern = re.compile(claim.matches, re.IGNORECASE)
        own_denial = _DENIAL.search(claim.matches)
        for clause in clauses:
            spans = [match.span() for match in pattern.finditer(clause)]
            if spans and not _denies(clause, spans if own_denial else ()):
                yield claim
                break
