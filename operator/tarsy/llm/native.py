"""Results of providers' own tools, as they are kept with the answer: storable, and counted like its text."""

from __future__ import annotations

import json

from tarsy.llm import provider
from tarsy.transcript import messages


def result(event: provider.CodeExecution | provider.Grounding) -> messages.NativeResult:
    """The result of one."""
    if isinstance(event, provider.CodeExecution):
        details = {"code": event.code, "language": event.language, "outcome": event.outcome}
        return messages.NativeResult(
            tool="code_execution", content=messages.storable(event.output), details=messages.storable_json(details)
        )
    lines, sources = [], []
    for source in event.sources:
        words = (*source.title.split(), source.url, source.problem and f"({source.problem})")
        lines.append(" ".join(filter(None, words)))
        problem = {"problem": source.problem} if source.problem else {}
        sources.append({"title": source.title, "url": source.url} | problem)
    return messages.NativeResult(
        tool=event.tool,
        content=messages.storable("\n".join(lines)),
        details=messages.storable_json({"queries": list(event.queries), "sources": sources}),
    )


def size(result: messages.NativeResult) -> int:
    """Characters of it, as JSON has them: each that is kept has some."""
    return len(result.content) + len(json.dumps(result.details))
