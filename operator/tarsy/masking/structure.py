"""Kubernetes' secrets, found by the structure of objects.

It masks the values of `data` and `stringData` of every Secret, alone, in a list, in an annotation or a log line; the
literal values of environment variables whose names promise a secret; the keys of a kubeconfig's users; and what
`kubectl describe` and Go print of these. Each value is masked by itself and its key stays: many a pod
does not start because a key is missing, misspelt or empty.

Everything is read twice, as braces (`json_reader`) and as lines (`yaml_reader`), at each depth of JSON strings in JSON
strings.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from tarsy.masking import (
    budgets,
    edits,
    json_reader,
    log_lines,
    mappings,
    markers,
    prefilter,
    repeats,
    rules,
    secret_names,
    yaml_reader,
)

_LEVELS = 5
"""The levels of JSON strings in JSON strings that are read: five times the need of a log line in an alert."""
_NEEDED = rules.rule(
    rb"apiVersion|stringData|%b|(?i:pass|pwd|token|secret|key|credential|creds|auth|dsn|jwt)" % mappings.TYPE
)
"""A text without any of these words has no secret that structure can find."""
_DESCRIBED = rules.rule(rb"(?m)^Data\r?\n====\r?\n((?:[-\w.]+:[ \t]+\S[^\n]*(?:\n|\z))+)")
_DESCRIBED_ENTRY = rules.rule(rb"(?m)^[-\w.]+:[ \t]+(\S[^\r\n]*)")
_SIZE = rules.rule(rb"\d+ bytes\s*")
_MATCH_COST = 10
_VALUE_COST = 15
_GO_BYTES = rules.rule(rb"(?:map\[string\]\[\]byte|StringData:map\[string\]string)\{([^{}\n]+)\}")


_ENCODED = rules.rule(
    rb"((?:[A-Za-z0-9+/]{60,}\r?\n[ \t]*)*[A-Za-z0-9+/]*(?:U2VjcmV0|NlY3Jld|TZWNyZX)[A-Za-z0-9+/]*"
    rb"(?:\r?\n[ \t]*[A-Za-z0-9+/]{60,})*(?:\r?\n[ \t]*[A-Za-z0-9+/]+={0,2}(?:\s|\z))?)={0,2}"
)
"""The word Secret in base64."""
_KIND = rules.rule(rb"kind\\*[\"']?\s*:\s*\\*[\"']?Secret")


def mask(doc: bytes, budget: budgets.Budget, repeated: repeats.Repeats) -> bytes:
    """Return any `doc` with Kubernetes' secrets masked; raises only a BudgetExceededError."""
    may_find = _PREFILTER.may_find(doc)
    changes = [change for number, find in enumerate(FINDERS) if number in may_find for change in find(doc, budget)]
    for view in log_lines.views(doc, budget) if _STRUCTURE in may_find else ():
        structural_edits = edits.merged(_structure(view.text, budget))
        repeated.add(view.text, structural_edits)
        changes += view.translate(repeated.fingerprinted(view.text, structural_edits))
    changes = edits.merged(changes)
    repeated.add(doc, changes)
    return repeated.apply(doc, changes)


def _structure(doc: bytes, budget: budgets.Budget) -> list[edits.Edit]:
    if _NEEDED.search(doc) is None:
        return []
    changes: list[edits.Edit] = []
    for level in range(_LEVELS):
        for reader in (json_reader, yaml_reader):
            if not reader.may_find(doc, level=level):
                continue
            budget.check_time()
            findings = mappings.Findings()
            reader.find(doc, level=level, findings=findings, budget=budget)
            for span in budget.metered(_merged(findings.data), cost=_VALUE_COST):
                changes += reader.values(doc, span, level=level, budget=budget)
            for span in budget.metered(findings.values, cost=_VALUE_COST):
                if not secret_names.is_harmless(doc[slice(*span)]):
                    changes += reader.value(doc, span, level=level)
    return changes


def _merged(spans: list[mappings.Span]) -> list[mappings.Span]:
    merged: list[mappings.Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _described(doc: bytes, budget: budgets.Budget) -> list[edits.Edit]:
    return [
        edits.Edit(entry.start(1), entry.end(1), markers.marker("secret"))
        for section in budget.metered(_DESCRIBED.finditer(doc), cost=_MATCH_COST)
        for entry in budget.metered(_DESCRIBED_ENTRY.finditer(doc, section.start(1), section.end(1)), cost=_MATCH_COST)
        if not _SIZE.fullmatch(entry[1]) and not secret_names.is_empty(entry[1])
    ]


def _printed(doc: bytes, budget: budgets.Budget) -> list[edits.Edit]:
    return [
        edits.Edit(match.start(1), match.end(1), markers.marker("secret"))
        for match in budget.metered(_GO_BYTES.finditer(doc), cost=_MATCH_COST)
        if not secret_names.is_empty(match[1])
    ]


def _encoded(doc: bytes, budget: budgets.Budget) -> list[edits.Edit]:
    """Return the edits of whole Secrets in base64, which may have been cut."""

    def is_secret(text: bytes) -> bool:
        text = text.translate(None, edits.SPACE + b"=")
        return _KIND.search(base64.b64decode(text[: len(text) // 4 * 4])) is not None

    return [
        edits.Edit(match.start(1), match.start(1) + len(match[1].rstrip(edits.SPACE)), markers.marker("secret"))
        for match in budget.metered(_ENCODED.finditer(doc), cost=_MATCH_COST)
        if is_secret(match[1])
    ]


FINDERS: dict[Callable[[bytes, budgets.Budget], list[edits.Edit]], bytes] = {
    _structure: b"apiversion|stringdata|pass|pwd|token|secret|key|credential|creds|auth|dsn|jwt|" + mappings.TYPE_WORDS,
    _described: b"data\n====|data\r\n====",
    _printed: b"map[string]",
    _encoded: b"u2vjcmv0|nly3jld|tzwnyzx",
}
"""The finders, and the words that each needs (see `prefilter`)."""
_STRUCTURE = 0
_PREFILTER = prefilter.Prefilter(FINDERS.values())
