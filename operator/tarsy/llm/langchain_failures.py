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
"""The words for a request that is too large, of providers and servers with their protocols; there is no status."""
_FATAL_WORDS = re.compile(
    r"invalid_request|invalid_prompt|invalid_image|authentication|permission|not_found|billing|insufficient_quota"
    r"|policy|model_not_found|invalid_api_key"
)
"""The types of errors within a stream that another request cannot help."""
_UNEXPECTED_BODY = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The exceptions of SDKs and integrations for a body that is no JSON, or JSON of an unexpected shape."""
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (exceptions.ModelRateLimitError, 429),
    (exceptions.ModelAuthenticationError, 401),
    (exceptions.ModelPermissionDeniedError, 403),
    (exceptions.ModelNotFoundError, 404),
    (exceptions.ModelInvalidRequestError, 400),
)
"""The statuses for errors of integrations that have none."""


def translated(error: Exception, *, name: str, secret: str = "", word: str = "") -> provider.ProviderError:
    """Our own error for `error` of provider `name`; `word` is its type, if only its text has that."""
    causes = list(_causes(error))
    own = next((cause for cause in causes if isinstance(cause, provider.ProviderError)), None)
    if own is not None:
        return own
    body: Any = getattr(error, "body", None)
    detail = body.get("error", body) if isinstance(body, dict) else None
    detail = detail if isinstance(detail, dict) else {}
    status, code = _status(error), detail.get("code") or detail.get("type")
    own_word = str(code) if isinstance(code, str | int) else ""
    message = detail.get("message")
    text = f"{status or ''} {own_word}: {message}".strip() if message else str(error)
    text = provider.without(secret, text[: http.ERROR_TEXT_MAX])
    word = (word or own_word)[: http.ERROR_TEXT_MAX]
    too_large = isinstance(error, exceptions.ContextOverflowError)
    if too_large or ((status is None or 400 <= status < 500) and status != 429 and _OVERFLOW.search(text + word)):
        return provider.ContextOverflowError(f"{text}; set context_tokens of llm_providers.{name} to its limit")
    if status is None:
        return _without_status(error, causes, text, word, name)
    if status in http.RETRYABLE or status >= 500:
        return provider.RetryableError(text, after=_retry_after(error), code=str(status))
    return provider.FatalError(f"{text}; {_remedy(status, name)}", code=str(status))


def _without_status(
    error: Exception, causes: list[BaseException], text: str, word: str, name: str
) -> provider.ProviderError:
    if word and _FATAL_WORDS.search(word):
        return provider.FatalError(f"{text}; {_remedy(400, name)}", code=word)
    broken = (httpx2.TransportError, OSError, exceptions.ModelConnectionError, exceptions.ModelTimeoutError)
    if connection := next((cause for cause in causes[::-1] if isinstance(cause, broken)), None):
        is_quoting = isinstance(connection, httpx2.RemoteProtocolError)
        problem = transport.unquoted(str(connection)) if is_quoting else str(connection)
        return provider.RetryableError(f"the connection broke: {problem}", code=word or "connection")
    if isinstance(error, _UNEXPECTED_BODY) and not word:
        problem = f"the stream is not the API's: {type(error).__name__}: {text}"
        return provider.RetryableError(problem, code="protocol")
    return provider.RetryableError(text or type(error).__name__, code=word)


def _remedy(status: int, name: str) -> str:
    settings = f"of llm_providers.{name}"
    match status:
        case 401 | 403:
            return f"check api_key_env or api_key_file {settings}"
        case 404:
            return f"check model and base_url {settings}"
        case 402:
            return f"check the account behind the key {settings}"
        case _:
            return f"check model, thinking and native_tools {settings}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and the chain of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error; None for an error within a stream, whose response has status 200."""
    response = getattr(error, "response", None)
    for code in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(code, int) and code >= 300:
            return code
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), None)


def _retry_after(error: Exception) -> float | None:
    """Return the seconds that the provider asks us to wait: a number of them, or until a date."""
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
