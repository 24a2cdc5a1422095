"""The message that tells an agent of alerts that joined its investigation while it worked.

It names the first alerts and counts the rest. What comes from the alerts stands between markers, as all data.
"""

from __future__ import annotations

from tarsy.agent import escaping, prompts, templates
from tarsy.transcript import excerpts, messages, ports

EVERY_SECONDS = 60.0
"""The time between two such messages, by the clock of the run."""
NAMED_MAX = 20
"""Alerts that a message names."""
BYTES_MAX = 4096
"""The maximum of the text between the markers, in bytes of UTF-8."""
_LINE_MAX = 200
_TYPES_BYTES = 1024


def message(joined: ports.JoinedAlerts, *, react: bool) -> messages.Message:
    """Return the message about `joined`; for ReAct, lines that look like its steps are quoted."""
    lines: list[str] = []
    left = BYTES_MAX - _TYPES_BYTES
    for alert in joined.named[:NAMED_MAX]:
        facts = [alert.alert_type, alert.severity, *(f"{name}={value}" for name, value in alert.labels.items())]
        line = "- " + excerpts.one_line(_clean(", ".join(filter(None, facts)), react=react), _LINE_MAX)
        left -= len(line.encode()) + 1
        if left < 0:
            break
        lines.append(line)
    types = ", ".join(f"{count} {alert_type}" for alert_type, count in joined.types.items())
    counted = excerpts.one_line(_clean(types, react=react), _TYPES_BYTES // 4 - 50)  # a character has up to 4 bytes
    more = joined.total - len(lines)
    rest = f"{more} of them are not named. " if more else ""
    text = templates.fill("joined", count=f"{joined.total:,}")
    around = prompts.between_markers("\n".join([*lines, f"{rest}By type: {counted}"]))
    return messages.Message(role="user", text=messages.storable(f"{text}\n\n{around}"))


def _clean(text: str, *, react: bool) -> str:
    return escaping.escape_comments(escaping.quote_steps(text) if react else text)
