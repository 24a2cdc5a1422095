"""Access tokens for Google Cloud: google-auth's ways to one, over our own HTTP.

google-auth blocks, and the SDK gives it `requests`, which cannot be interrupted. Here it runs in a thread too, but each
of its requests is made by the loop: a cancelled caller closes the socket, and the thread ends with it. Only `llm.model`
retries, and no redirect is followed, because these requests carry credentials.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
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
_LARGEST = 1024 * 1024  # bytes of an answer
_LATER = frozenset({408, 429, 500, 502, 503, 504})
_METADATA = "metadata-flavor"
"""The header of requests to the metadata server, which is on the machine itself and behind no proxy."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_LONG_WORD = re.compile(r"\S{60,}")
"""Where a server quotes what it was sent, that is an assertion: for an hour as good as the key."""


class Tokens:
    """The tokens of one provider."""

    def __init__(self, http: aiohttp.ClientSession, *, key: Mapping[str, Any] | None, advice: str) -> None:
        """`key` is a service account's; None is what the environment offers. `advice`: what to do if it is refused."""
        self.project = ""
        """The project of the tokens, known with the first of them."""
        self._http = http
        self._advice = advice
        self._lock = asyncio.Lock()
        self._source: credentials.Credentials | None = None
        if key is not None:
            self._source = service_account.Credentials.from_service_account_info(key, scopes=SCOPES)  # type: ignore[no-untyped-call]
            self.project = str(key.get("project_id") or "")

    @property
    def quota_project(self) -> str | None:
        """The project whose quota is used, where it is another than the one that is asked."""
        return None if self._source is None else self._source.quota_project_id

    async def fresh(self) -> str:
        """A token that is good for minutes, fetched if need be; a ProviderError says why there is none."""
        async with self._lock:
            source = self._source or await self._of_environment()
            if not source.valid:
                await self._do(source.refresh, patient=False)
        token = source.token
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            source.token = None
            raise provider.RetryableError("the token server's answer has no token", code="token")
        return token

    async def _of_environment(self) -> credentials.Credentials:
        default_credentials, project = await self._do(_found, patient=True)
        self._source, self.project = default_credentials, project or ""
        return default_credentials

    async def _do(self, work: Callable[[transport.Request], T], *, patient: bool) -> T:
        """Run google-auth in a thread, for as long as a caller waits for it."""
        requests = _Requests(self._http, patient=patient)
        try:
            return await asyncio.to_thread(work, requests)
        except exceptions.DefaultCredentialsError as error:
            raise provider.FatalError(f"the environment offers no credentials; {self._advice}", code="token") from error
        except exceptions.RefreshError as error:
            raise self._refused(error) from None  # it holds the whole answer, which may quote what was sent
        except exceptions.TransportError as error:
            raise provider.RetryableError(f"no token: {_first_line(error)}", code="token") from error
        except (exceptions.GoogleAuthError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            why = f"the token server's answer is none: {type(error).__name__}"
            raise provider.RetryableError(why, code="token") from error
        finally:
            requests.close()

    def _refused(self, error: exceptions.RefreshError) -> provider.ProviderError:
        answer = error.args[1] if len(error.args) > 1 else None
        code = str(answer.get("error", "")) if isinstance(answer, dict) else ""
        code = code if re.fullmatch("[a-z_]{1,40}", code) else "token"
        if error.retryable:
            return provider.RetryableError(f"no token: {_first_line(error)}", code=code)
        return provider.FatalError(f"the credentials are refused: {_first_line(error)}; {self._advice}", code=code)


def _found(requests: transport.Request) -> tuple[credentials.Credentials, str | None]:
    """Return the credentials that the environment offers: a file, or the machine's metadata server."""
    credentials_found: tuple[credentials.Credentials, str | None] = google.auth.default(scopes=SCOPES, request=requests)
    return credentials_found


class _Requests(transport.Request):
    """google-auth's HTTP, called in its thread and done on the loop; closed, it does no more."""

    def __init__(self, http: aiohttp.ClientSession, *, patient: bool) -> None:
        """`patient`: google-auth may ask again by itself, as it does to find the metadata server."""
        self._http = http
        self._patient = patient
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
    ) -> transport.Response:
        """Send, and wait for the answer."""
        sent = self._send(url, method=method, body=body, headers=headers or {}, timeout=timeout)
        return asyncio.run_coroutine_threadsafe(sent, self._loop).result()

    def close(self) -> None:
        """End what is under way; called on the loop, as `_send` is."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _send(
        self, url: str, *, method: str, body: bytes | str | None, headers: Mapping[str, str], timeout: float | None
    ) -> transport.Response:
        if self._is_closed:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        server = f"{parse.urlsplit(url).scheme}://{parse.urlsplit(url).netloc.rpartition('@')[2]}"
        try:
            with logs.nobodys():
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
            why = f"the token server {server} cannot be reached: {error or type(error).__name__}"
            why_not = exceptions.TransportError(why) if self._patient else _later(why)  # type: ignore[no-untyped-call]
            raise why_not from error
        finally:
            self._task = None
        if 300 <= answer.status < 400:
            raise provider.FatalError(
                f"the token server {server} redirects, and credentials do not go along", code="redirect"
            )
        if answer.status in _LATER:
            raise _later(f"the token server {server} answers {answer.status}", after=answer.headers.get("Retry-After"))
        return _Response(answer.status, answer.headers, content)


class _Response(transport.Response):
    """An answer as google-auth wants it."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._status, self._headers, self._data = status, headers, body

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, in any case."""
        return self._headers

    @property
    def data(self) -> bytes:
        """The body."""
        return self._data


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise ValueError("it sent a compressed answer, which was not asked for")
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > _LARGEST:
            raise ValueError(f"its answer is longer than {_LARGEST} bytes")
    return body


def _later(why: str, *, after: str | None = None) -> provider.RetryableError:
    return provider.RetryableError(why, after=float(after) if after and after.isdecimal() else None, code="token")


def _first_line(error: exceptions.GoogleAuthError) -> str:
    """Return the first line of google-auth's error, mostly the server's words, with nothing that may be a secret."""
    line = str(error.args[0] if error.args else error).split("\n", 1)[0]
    return _LONG_WORD.sub("[...]", line)[:300]
