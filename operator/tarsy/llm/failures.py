"""Translation of exceptions from LangChain's integrations into our own errors.

Integrations raise classes of their own that inherit from LangChain's. But errors within a stream, and broken
connections, escape from the SDK below unchanged. So the status counts first, and the text after it.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
from langchain_core import exceptions

from tarsy import transport
from tarsy.llm import http, provider

_OVERFLOW = re.compile(
    r"context_length_exceeded|context_window|context window|maximum (context|prompt) length|prompt is too long"
    r"|request_too_large|Input tokens exceed|exceed context limit",
    re.IGNORECASE,
)
"""How providers, and servers that speak their protocols, say that a request is too large; there is no status for it."""
_FATAL_WORDS = re.compile(
    r"invalid_request|invalid_prompt|invalid_image|authentication|permission|not_found|billing|insufficient_quota"
    r"|policy|model_not_found|invalid_api_key"
)
"""The types of errors within a stream after which another request cannot help."""
_SHAPELESS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The exceptions of SDKs and integrations for a body that is no JSON, or JSON of an unexpected shape."""
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (exceptions.ModelRateLimitError, 429),
    (exceptions.ModelAuthenticationError, 401),
    (exceptions.ModelPermissionDeniedError, 403),
    (exceptions.ModelNotFoundError, 404),
    (exceptions.ModelInvalidRequestError, 400),
)
"""For integrations whose errors have no status."""


def translated(error: Exception, *, name: str, secret: str = "", word: str = "") -> provider.ProviderError:
    """Return our own error for `error` of provider `name`; `word` is its type, if only its text says so."""
    behind = list(_causes(error))
    own = next((cause for cause in behind if isinstance(cause, provider.ProviderError)), None)
    if own is not None:
        return own
    status, word = _status(error), (word or _word(error))[: http.TOLD_MAX]
    text = _text(error, status, secret)
    too_large = isinstance(error, exceptions.ContextOverflowError)
    if too_large or ((status is None or 400 <= status < 500) and status != 429 and _OVERFLOW.search(text + word)):
        return provider.ContextOverflowError(f"{text}; set context_tokens of llm_providers.{name} to what it takes")
    if status is None:
        return _without_status(error, behind, text, word, name)
    code = str(status)
    if status in http.AGAIN or status >= 500:
        return provider.RetryableError(text, after=_retry_after(error), code=code)
    return provider.FatalError(f"{text}; {_what_to_do(status, name)}", code=code)


def _without_status(
    error: Exception, behind: list[BaseException], text: str, word: str, name: str
) -> provider.ProviderError:
    if word and _FATAL_WORDS.search(word):
        return provider.FatalError(f"{text}; {_what_to_do(400, name)}", code=word)
    broken = (httpx2.TransportError, OSError, exceptions.ModelConnectionError, exceptions.ModelTimeoutError)
    if connection := next((cause for cause in behind[::-1] if isinstance(cause, broken)), None):
        is_quoting = isinstance(connection, httpx2.RemoteProtocolError)
        problem = transport.unquoted(str(connection)) if is_quoting else str(connection)
        return provider.RetryableError(f"the connection broke: {problem}", code=word or "connection")
    if isinstance(error, _SHAPELESS) and not word:
        problem = f"the stream is not the API's: {type(error).__name__}: {text}"
        return provider.RetryableError(problem, code="protocol")
    return provider.RetryableError(text or type(error).__name__, code=word)


def _what_to_do(status: int, name: str) -> str:
    of = f"of llm_providers.{name}"
    match status:
        case 401 | 403:
            return f"check api_key_env or api_key_file {of}"
        case 404:
            return f"check model and base_url {of}"
        case 402:
            return f"check the account behind the key {of}"
        case _:
            return f"check model, thinking and native_tools {of}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what lies behind it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _status(error: Exception) -> int | None:
    """The HTTP status of an error's; None within a stream, where one of 200 is none."""
    response = getattr(error, "response", None)
    for code in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(code, int) and code >= 300:
            return code
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), None)


def _word(error: Exception) -> str:
    """Return the provider's name for the error."""
    body: Any = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    code = inner.get("code") or inner.get("type") if isinstance(inner, dict) else None
    return str(code) if isinstance(code, str | int) else ""


def _text(error: Exception, status: int | None, secret: str) -> str:
    body: Any = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    text = f"{status or ''} {_word(error)}: {message}".strip() if message else str(error)
    return provider.without(secret, text[: http.TOLD_MAX])


def _retry_after(error: Exception) -> float | None:
    """Seconds that the provider asks us to wait."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    if _is_number(milliseconds := str(headers.get("retry-after-ms", ""))):
        return float(milliseconds) / 1000
    after = str(headers.get("retry-after", ""))
    if _is_number(after):
        return float(after)
    try:
        date = email.utils.parsedate_tz(after)
        return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None
    except (ValueError, OverflowError):  # no date of this era
        return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) is not None
