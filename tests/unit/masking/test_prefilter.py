"""A pattern is passed over where none of its words stands: so each text that it matches has to have one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from re import _parser  # type: ignore[attr-defined]  # it knows what a pattern consists of
from typing import Any

import pytest
from tarsy.masking import assignments, log_lines, prefilter, rules, secret_patterns, structure

RULES: dict[Callable[..., Any], list[rules.Rule]] = {
    secret_patterns._pem: [secret_patterns._PEM, secret_patterns._PEM_REST],
    secret_patterns._encoded_pem: [secret_patterns._ENCODED_PEM],
    secret_patterns._tables: [secret_patterns._TABLE],
    secret_patterns._diffs: [secret_patterns._DIFF],
    assignments.find: [assignments._LINE, assignments._FLAG, assignments._OTHER_QUOTES],
    structure._structure: [structure._NEEDED, log_lines._NEEDED],
    structure._described: [structure._DESCRIBED],
    structure._printed: [structure._GO_BYTES],
    structure._encoded: [structure._ENCODED],
}
"""Rules by the function that finds their places, if these are more than one look."""


def rules_of(find: Callable[..., Any]) -> list[rules.Rule]:
    return [find.args[0].rule] if isinstance(find, functools.partial) else RULES[find]


CASES = [
    (needs, rule)
    for find, needs in [
        *((finder.find, finder.needs) for finder in secret_patterns.FINDERS),
        *structure.FINDERS.items(),
    ]
    if needs
    for rule in rules_of(find)
]


ANYTHING = "\0"


def forms(parsed: Iterable[tuple[Any, Any]]) -> set[str]:
    """All that a pattern matches, in lower case; what may be many things stands there as ANYTHING."""
    texts = {""}
    for operation, argument in parsed:
        texts = {form + part for form in texts for part in parts(str(operation), argument)}
    return texts


def parts(operation: str, argument: Any) -> set[str]:
    match operation:
        case "AT":
            return {""}
        case "LITERAL":
            return {chr(argument).lower()}
        case "IN" if len(argument) < 4:
            return set().union(*(parts(str(operation), value) for operation, value in argument))
        case "BRANCH":
            return set().union(*map(forms, argument[1]))
        case "SUBPATTERN":
            return forms(argument[-1])
        case "MAX_REPEAT" | "MIN_REPEAT" if argument[:2] == (0, 1):
            return {"", *forms(argument[2])}
        case "MAX_REPEAT" | "MIN_REPEAT" if argument[0] > 0:
            return {form + ANYTHING for form in forms(argument[2])}
    return {ANYTHING}


@pytest.mark.parametrize(("needs", "rule"), CASES, ids=lambda part: part if isinstance(part, bytes) else "")
def test_each_match_has_a_word_that_its_pattern_needs(needs: bytes, rule: rules.Rule) -> None:
    seen = prefilter.Prefilter([needs])
    matched = forms(_parser.parse(rule.pattern.replace(rb"\z", rb"\Z")))
    assert [form for form in matched if not seen.may_find(form.encode("latin-1"))] == []


@pytest.mark.parametrize("before", range(4080, 4100))
def test_prefilter_finds_word_at_any_position(before: int) -> None:
    seen = prefilter.Prefilter([b"curl|wget", b"zip", b""])
    assert seen.may_find(b"x" * before + b"cURL" + b"x" * 4096) == {0, 2}
    assert seen.may_find(b"x" * before + b"cUR") == {2}
