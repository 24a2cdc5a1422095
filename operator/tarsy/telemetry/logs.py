"""Logging for the whole process: one line an event, on standard error.

Records carry `extra={"action": ..., ...}` on each change of state; the text format appends those fields, so that a
line can be read by people and cut by tools. Bodies of alerts, prompts and tool results are never logged.
"""

from __future__ import annotations

import logging

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class Formatter(logging.Formatter):
    """`time level logger message key=value ...`, the fields sorted by name."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s  %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class names it
        """Append the extra fields of `record` to its line."""
        fields = "".join(f" {key}={value}" for key, value in sorted(vars(record).items()) if key not in _STANDARD)
        return (super().formatMessage(record) + fields).replace("\r", "\\r").replace("\n", "\\n")


def configure(*, level: str = "INFO") -> None:
    """Send everything at `level` and above to standard error; quiet the libraries that log bodies or each request."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("alembic", "httpx2", "google_genai", "mcp", "uvicorn", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at INFO and DEBUG it logs whole objects
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it leaves our signals alone
