"""Access tokens for Google Cloud: google-auth's sources of tokens, over our own HTTP.

google-auth blocks, and the SDK gives it `requests`, which cannot be interrupted. Here it runs in a thread too, but the
loop sends each of its requests: a cancelled caller closes the socket, and the thread ends with it. The only retries are
those of `llm.limited_model`, and no redirect is followed, because these requests carry credentials.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib import parse

import aiohttp
import google.auth
from google.auth import credentials, exceptions, transport
from google.oauth2 import service_account

from tarsy import proxies
from tarsy.llm import provider
from tarsy.telemetry import logs

T = TypeVar("T")

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_ANSWER_MAX = 1024 * 1024  # bytes
_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_METADATA = "metadata-flavor"
"""The header of requests to the metadata server, which is on the machine itself, and not reached through a proxy."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_LONG_WORD = re.compile(r"\S{60,}")
"""A word that may be a quoted assertion, which is as good as the key for an hour."""


class Tokens:
    """The tokens of one provider."""

    def __init__(self, http: aiohttp.ClientSession, *, key: Mapping[str, Any] | None, advice: str) -> None:
        """`key` is a service account's; None uses the environment's credentials. `advice` is a refusal's remedy."""
        self.project = ""
        """The project of the credentials, known with the first token."""
        self._http = http
        self._advice = advice
        self._lock = asyncio.Lock()
        self._source: credentials.Credentials | None = None
        if key is not None:
            self._source = service_account.Credentials.from_service_account_info(key, scopes=SCOPES)  # type: ignore[no-untyped-call]
            self.project = str(key.get("project_id") or "")

    @property
    def quota_project(self) -> str | None:
        """The project whose quota is used, if it differs from the requested one."""
        return None if self._source is None else self._source.quota_project_id

    async def fresh(self) -> str:
        """Return a token that is valid for minutes; fetches one if necessary. Raises ProviderError if there is none."""
        async with self._lock:
            source = self._source
            if source is None:
                # From a file, or from the machine's metadata server.
                environment: tuple[credentials.Credentials, str | None] = await self._run(
                    lambda requests: google.auth.default(scopes=SCOPES, request=requests), may_retry=True
                )
                source, self.project = environment[0], environment[1] or ""
                self._source = source
            if not source.valid:
                await self._run(source.refresh, may_retry=False)
        token = source.token
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            source.token = None
            raise provider.RetryableError("the token server's answer has no token", code="token")
        return token

    async def _run(self, work: Callable[[transport.Request], T], *, may_retry: bool) -> T:
        """Run google-auth in a thread, for as long as a caller waits for it."""
        requests = _Requests(self._http, may_retry=may_retry)
        try:
            return await asyncio.to_thread(work, requests)
        except exceptions.DefaultCredentialsError as error:
            raise provider.FatalError(f"the environment offers no credentials; {self._advice}", code="token") from error
        except exceptions.RefreshError as error:
            raise self._refusal(error) from None  # it holds the whole answer, which may quote the request
        except exceptions.TransportError as error:
            raise provider.RetryableError(f"no token: {_first_line(error)}", code="token") from error
        except (exceptions.GoogleAuthError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            problem = f"the token server's answer is none: {type(error).__name__}"
            raise provider.RetryableError(problem, code="token") from error
        finally:
            requests.close()

    def _refusal(self, error: exceptions.RefreshError) -> provider.ProviderError:
        answer = error.args[1] if len(error.args) > 1 else None
        code = str(answer.get("error", "")) if isinstance(answer, dict) else ""
        code = code if re.fullmatch("[a-z_]{1,40}", code) else "token"
        if error.retryable:
            return provider.RetryableError(f"no token: {_first_line(error)}", code=code)
        return provider.FatalError(f"the credentials are refused: {_first_line(error)}; {self._advice}", code=code)


class _Requests(transport.Request):
    """HTTP for google-auth: called in its thread, sent by the loop, until it is closed."""

    def __init__(self, http: aiohttp.ClientSession, *, may_retry: bool) -> None:
        """With `may_retry` google-auth may retry by itself, as it does to find the metadata server."""
        self._http = http
        self._may_retry = may_retry
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._is_closed = False

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> Any:
        """Send a request, and wait for the answer."""
        sending = self._send(url, method=method, body=body, headers=headers or {}, timeout=timeout)
        return asyncio.run_coroutine_threadsafe(sending, self._loop).result()

    def close(self) -> None:
        """Cancel the current request; called on the loop, like `_send`."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _send(
        self, url: str, *, method: str, body: bytes | str | None, headers: Mapping[str, str], timeout: float | None
    ) -> _Response:
        if self._is_closed:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        server = f"{parse.urlsplit(url).scheme}://{parse.urlsplit(url).netloc.rpartition('@')[2]}"
        try:
            with logs.no_fields():
                async with self._http.request(
                    method,
                    url,
                    data=body,
                    headers={**headers, "Accept-Encoding": "identity"},
                    auto_decompress=False,
                    allow_redirects=False,
                    proxy=None if _METADATA in headers else proxies.proxy_for(url),
                    timeout=aiohttp.ClientTimeout(total=timeout),
                ) as answer:
                    content = await _body(answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = f"the token server {server} cannot be reached: {error or type(error).__name__}"
            if self._may_retry:
                raise exceptions.TransportError(problem) from error  # type: ignore[no-untyped-call]
            raise _retryable(problem) from error
        finally:
            self._task = None
        if 300 <= answer.status < 400:
            raise provider.FatalError(
                f"the token server {server} redirects, and credentials do not go along", code="redirect"
            )
        if answer.status in _RETRYABLE:
            raise _retryable(
                f"the token server {server} answers {answer.status}", after=answer.headers.get("Retry-After")
            )
        return _Response(answer.status, answer.headers, content)


class _Response(NamedTuple):
    """The attributes of an answer that google-auth reads."""

    status: int
    headers: Mapping[str, str]
    data: bytes


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise ValueError("it sent a compressed answer, which was not requested")
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > _ANSWER_MAX:
            raise ValueError(f"its answer is longer than {_ANSWER_MAX} bytes")
    return body


def _retryable(problem: str, *, after: str | None = None) -> provider.RetryableError:
    return provider.RetryableError(problem, after=float(after) if after and after.isdecimal() else None, code="token")


def _first_line(error: exceptions.GoogleAuthError) -> str:
    """Return the first line of google-auth's error, without words that may be secrets."""
    line = str(error.args[0] if error.args else error).split("\n", 1)[0]
    return _LONG_WORD.sub("[...]", line)[:300]
