"""Logging for the whole process: one line an event, on standard error, as text or as JSON.

Records carry `extra={"action": ..., ...}` on each change of state, and what `fields` has put around them: of a run its
investigation, stage and execution. Bodies of alerts, prompts and tool results are never logged; names and errors that
came from outside are, and so a value is written in a way that cannot be taken for more than one value.

Libraries that speak to models and MCP servers quote what they could not read: requests, answers, and pieces of them, in
which no mask finds a secret that is cut. Of their records only the place and the kinds of the errors are written.
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
from typing import Literal

Format = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_NOBODYS: Mapping[str, object] = MappingProxyType({})
_around: ContextVar[Mapping[str, object]] = ContextVar("around", default=_NOBODYS)
_SUSPECT = re.compile("[^ -<>-~]")
_INDENT = "    "
QUOTING = (
    *("aiohttp", "anthropic", "asyncio", "client", "google", "google_auth", "google_genai", "httpcore", "httpcore2"),
    *("httpx", "httpx2", "kubernetes", "langchain", "langchain_anthropic", "langchain_core", "langchain_openai"),
    *("langchain_xai", "langsmith", "mcp", "openai", "urllib3"),
)
"""The loggers of libraries whose words may quote what they sent or received; `client` is the MCP SDK's session.

asyncio quotes the errors of tasks.
"""


@contextmanager
def fields(**added: object) -> Iterator[None]:
    """Put `added` on every line that is logged in this block, and in tasks and threads that are started in it."""
    token = _around.set({**_around.get(), **added})
    try:
        yield
    finally:
        _around.reset(token)


@contextmanager
def nobodys() -> Iterator[None]:
    """Take all `fields` away in this block: for what is made by one run and serves others too, such as a connection."""
    token = _around.set(_NOBODYS)
    try:
        yield
    finally:
        _around.reset(token)


class Around(logging.Filter):
    """Adds the `fields` of the current context to a record; fields of the record itself win."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        for key, value in _around.get().items():
            vars(record).setdefault(key, value)
        return True


Mask = Callable[[str], str]
"""Replaces the secrets in a text."""


class _Formatter(logging.Formatter):
    """The common base of both formats: all text from elsewhere is masked before it is written."""

    def __init__(self, *, mask: Mask = str) -> None:
        super().__init__()
        self._mask = mask

    def _message(self, record: logging.LogRecord) -> str:
        if _is_quoting(record):
            return f"[the library's words are not shown] {record.filename}:{record.lineno}"
        return self._mask(record.getMessage())

    def _below(self, record: logging.LogRecord) -> list[str]:
        """The lines of traceback and stack; not the record's own copy, which any other formatter may have made."""
        if _is_quoting(record):
            return [*_without_words(record.exc_info[1], set())] if record.exc_info else []
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        return self._mask("\n".join(parts)).split("\n") if parts else []


class TextFormatter(_Formatter):
    """`time level logger  message key=value ...`, the fields sorted by name; a traceback follows, indented.

    An equals sign stands in a line only between a field's name and its value: in message and values it is an escape.
    What does not print is an escape too, and a value with spaces, quotes or escapes is a JSON string.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the lines of the traceback."""
        fields_text = "".join(f" {key}={_value(self._mask(str(value)))}" for key, value in _fields(record).items())
        message = _printable(self._message(record))
        line = f"{self.formatTime(record)} {record.levelname:7} {record.name}  {message}{fields_text}"
        return "\n".join([line, *(_INDENT + _printable(below, but="=") for below in self._below(record))])


class JSONFormatter(_Formatter):
    """An object a line: time (UTC), level, logger, message, the fields, and the traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, in ASCII."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._message(record),
        }
        document |= {key: self._plain(value) for key, value in _fields(record).items() if key not in document}
        if below := self._below(record):
            document["exception"] = "\n".join(below)
        return json.dumps(document)

    def _plain(self, value: object) -> object:
        """`value` as JSON has it."""
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._mask(str(value))


_FORMATTERS: Mapping[Format, type[_Formatter]] = {"text": TextFormatter, "json": JSONFormatter}


def configure(*, level: str = "INFO", form: Format = "text", mask: Mask = str) -> None:
    """Send all at `level` and above to standard error, masked; quiet the libraries that log bodies or each request.

    A library that the environment tells to say more (`OPENAI_LOG`) shows no words either.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form](mask=mask))
    handler.addFilter(Around())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in (*QUOTING, "alembic", "kopf", "uvicorn"):  # at INFO and DEBUG kopf logs whole objects
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it leaves our signals alone


def _is_quoting(record: logging.LogRecord) -> bool:
    """Return whether the words of a record may quote requests or answers."""
    return record.name.partition(".")[0] in QUOTING


def _without_words(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    """Yield the kind and the traceback of an error, and of those that led to it, without what they say."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield type(error).__name__
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _without_words(inner, seen)
    yield from _without_words(error.__cause__ or error.__context__, seen)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    extra_fields = {key: value for key, value in sorted(vars(record).items()) if key not in _STANDARD}
    around = _around.get()
    return {key: value for key, value in extra_fields.items() if key in around} if _is_quoting(record) else extra_fields


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not re.search(r'[ "\\=]', text):
        return text
    return '"' + _printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _printable(text: str, *, but: str = "") -> str:
    """`text` with JSON's escapes for what does not print and for equals signs, but for the characters in `but`."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        if character in but or (character != "=" and character.isprintable()):
            return character
        return "\\u003d" if character == "=" else json.dumps(character)[1:-1]

    return _SUSPECT.sub(escaped, text)
