"""Logging for the whole process: one line per record, on standard error, as text or as JSON.

A record about a change of state has `extra={"action": ..., ...}`. `fields` adds fields to all records in a block, such
as the investigation, stage and execution of a run. Bodies of alerts, prompts and tool results are never logged. Names
and errors from outside are logged, so a value is escaped where it could be read as several values.

Libraries for models and MCP servers log parts of requests and answers that they cannot parse. Masking cannot find a
secret in such a part if it is cut. So only the source line of their records, and the types of errors, are written. The
same holds for the records of any other library below WARNING, which quote objects, statements and frames.
"""

from __future__ import annotations

import json
import logging
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

Format = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_NO_FIELDS: Mapping[str, object] = MappingProxyType({})
_context_fields: ContextVar[Mapping[str, object]] = ContextVar("context_fields", default=_NO_FIELDS)
_ESCAPED = re.compile("[^ -<>-~]")
"""The equals sign, and every character outside of printable ASCII."""
_INDENT = "    "
QUOTING = (
    *("aiohttp", "anthropic", "asyncio", "client", "google", "google_auth", "google_genai", "httpcore", "httpcore2"),
    *("httpx", "httpx2", "kubernetes", "langchain", "langchain_anthropic", "langchain_core", "langchain_openai"),
    *("langchain_xai", "langsmith", "mcp", "openai", "urllib3"),
)
"""The loggers of libraries whose messages may quote requests or answers.

`client` is the logger of the MCP SDK's session. asyncio quotes the errors of tasks.
"""


@contextmanager
def fields(**added: object) -> Iterator[None]:
    """Add fields to each record in this block, also in tasks and threads that are started in it."""
    token = _context_fields.set({**_context_fields.get(), **added})
    try:
        yield
    finally:
        _context_fields.reset(token)


@contextmanager
def no_fields() -> Iterator[None]:
    """Remove all fields in this block, for something that outlives the run that creates it, such as a connection."""
    token = _context_fields.set(_NO_FIELDS)
    try:
        yield
    finally:
        _context_fields.reset(token)


class ContextFields(logging.Filter):
    """Adds the `fields` of the current context to a record; fields of the record itself have precedence."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record passes."""
        for key, value in _context_fields.get().items():
            vars(record).setdefault(key, value)
        return True


Mask = Callable[[str], str]
"""Replaces the secrets in a text."""


class _Formatter(logging.Formatter):
    """The common base of both formats. It masks messages, values and tracebacks."""

    def __init__(self, *, mask: Mask = str) -> None:
        super().__init__()
        self._mask = mask

    def _message(self, record: logging.LogRecord) -> str:
        if _is_quoting(record):
            return f"[the library's message is not shown] {record.filename}:{record.lineno}"
        return self._mask(record.getMessage())

    def _traceback(self, record: logging.LogRecord) -> list[str]:
        """Return the lines of traceback and stack. `exc_text` is not used: another formatter may have set it."""
        if _is_quoting(record):
            return [*_without_messages(record.exc_info[1], set())] if record.exc_info else []
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return self._mask("\n".join(parts)).split("\n") if parts else []


class TextFormatter(_Formatter):
    """The format `time level logger  message key=value ...`, with fields sorted by name, and an indented traceback.

    An equals sign separates a field's name and value, and is escaped elsewhere. Unprintable characters are escaped too.
    A value with spaces, quotes or escapes is a JSON string.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of the traceback."""
        fields_text = "".join(f" {key}={_value(self._mask(str(value)))}" for key, value in _fields(record).items())
        message = _printable(self._message(record))
        line = f"{self.formatTime(record)} {record.levelname:7} {record.name}  {message}{fields_text}"
        return "\n".join([line, *(_INDENT + _printable(below, keep="=") for below in self._traceback(record))])


class JSONFormatter(_Formatter):
    """The format with one object per line: time (UTC), level, logger, message, fields, and traceback (`exception`)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, in ASCII."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._message(record),
        }
        document |= {key: self._plain(value) for key, value in _fields(record).items() if key not in document}
        if lines := self._traceback(record):
            document["exception"] = "\n".join(lines)
        return json.dumps(document)

    def _plain(self, value: object) -> object:
        """Return a number, a boolean or None unchanged, and anything else as masked text."""
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._mask(str(value))


_FORMATTERS: Mapping[Format, type[_Formatter]] = {"text": TextFormatter, "json": JSONFormatter}


def configure(*, level: str = "INFO", form: Format = "text", mask: Mask = str) -> None:
    """Log to standard error, masked, at `level` and above. Libraries that log bodies or each request get WARNING.

    If the environment asks a library for more (`OPENAI_LOG`), its messages are not shown either.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form](mask=mask))
    handler.addFilter(ContextFields())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in (*QUOTING, "alembic", "kopf", "uvicorn"):  # at INFO and DEBUG kopf logs whole objects
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it leaves our signals alone


def set_levels(levels: Mapping[Any, str]) -> None:
    """Set the least level of each package or module below `tarsy` in `levels`; all others follow `configure`."""
    for name in _leveled - levels.keys():
        logging.getLogger(f"tarsy.{name}").setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(f"tarsy.{name}").setLevel(level.upper())
    _leveled.clear()
    _leveled.update(levels)


_leveled: set[str] = set()
"""The packages and modules with a level of their own."""


def _is_quoting(record: logging.LogRecord) -> bool:
    """Return whether the message of a record may quote requests, answers, objects or statements."""
    name = record.name.partition(".")[0]
    return name in QUOTING or (name != "tarsy" and record.levelno < logging.WARNING)


def _without_messages(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    """Yield the type and the traceback of an error and of its causes, without their messages."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield type(error).__name__
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _without_messages(inner, seen)
    yield from _without_messages(error.__cause__ or error.__context__, seen)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra_fields = {key: value for key, value in sorted(vars(record).items()) if key not in _STANDARD}
    if _is_quoting(record):
        return {key: value for key, value in extra_fields.items() if key in _context_fields.get()}
    return extra_fields


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not re.search(r'[ "\\=]', text):
        return text
    return '"' + _printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _printable(text: str, *, keep: str = "") -> str:
    """Return `text` with JSON's escapes for unprintable characters and equals signs, except characters in `keep`."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if character in keep or (character != "=" and character.isprintable()):
            return character
        return "\\u003d" if character == "=" else json.dumps(character)[1:-1]

    return _ESCAPED.sub(escape, text)
