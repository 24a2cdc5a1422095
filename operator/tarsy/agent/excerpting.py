"""Which part of a long tool result a model reads, by the settings of its MCP server, and in which words.

An excerpt is chosen without a model (`transcript.line_excerpts`). If the result then gets a summary, the excerpt is
longer, and the summary is made of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from typing import Any

from tarsy.agent import summaries, templates
from tarsy.config.model import context_windows, platforms
from tarsy.transcript import line_excerpts

ON_LOOP_MAX = 64 * 1024
"""Characters of a result that are looked through on the event loop; longer results are left to a thread."""
ALERT_MAX = 64 * 1024
"""Characters of an alert whose words are looked for."""


def limit(platform_file: platforms.Platform, server: str, provider: str, length: int) -> int | None:
    """Return the limit of the excerpt of a result of `length` characters, in characters; None if it gets none."""
    server_settings = platform_file.mcp_servers.get(server)
    if server_settings is None or server_settings.summarization.mode == "off":
        return None
    if due := summaries.due(platform_file, server, provider, length):
        return due.reads
    if server_settings.summarization.mode == "summary":
        return None
    threshold = server_settings.summarization.size_threshold_tokens * context_windows.CHARACTERS_A_TOKEN
    return max(line_excerpts.LEAST, min(threshold, context_windows.result_characters(platform_file, provider)))


async def excerpt(
    text: str, *, limit: int, alert: str, call: str, looks_into: bool
) -> tuple[str, line_excerpts.Excerpt]:
    """Return the excerpt of a result in at most `limit` characters, as its model reads it, and its places.

    `alert` is the alert's text, and `call` the reference of the result. `looks_into`: the model has tools to see the
    rest.
    """
    template = "excerpt" if looks_into else "excerpt-alone"
    if len(text) <= ON_LOOP_MAX:
        return _excerpt(text, limit, alert, call, template)
    return await asyncio.to_thread(_excerpt, text, limit, alert, call, template)


def _excerpt(text: str, limit: int, alert: str, call: str, template: str) -> tuple[str, line_excerpts.Excerpt]:
    lines, length = line_excerpts.line_count(text), len(text)

    def header(line_count: int) -> str:
        return templates.fill(template, call=call, length=str(length), lines=str(lines), shown=str(line_count))

    room = max(limit - len(header(lines)) - 1, line_excerpts.LEAST // 2)
    chosen = line_excerpts.choose(text, room, alert_words=alert_words(alert))
    return line_excerpts.render(text, chosen, header=header(chosen.shown_lines))


def alert_words(alert: str) -> frozenset[str]:
    """Return the words of an alert that are looked for: of JSON those of its values, without its keys."""
    try:
        values = list(_strings(json.loads(alert)))
    except (ValueError, RecursionError):
        values = [alert]
    return line_excerpts.words("\n".join(values)[:ALERT_MAX])


def _strings(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        member = left.pop()
        if isinstance(member, str):
            yield member
        elif isinstance(member, dict | list):
            members: Collection[Any] = member.values() if isinstance(member, dict) else member
            left.extend(reversed(list(members)))
