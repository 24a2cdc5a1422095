"""Runbooks by URL. The author of an alert chooses the URL; the platform file limits the hosts.

A URL must be https, with a host that the file allows by its whole name, the usual port and no user. The same holds for
each redirect. The host must resolve to public addresses only (`addresses`). The answer must be declared as text and be
text. It is bounded in time and size, and masked before an agent reads it.

If the environment names a proxy, the proxy resolves the names, and decides which addresses are reached.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import aiohttp
import yarl
from aiohttp import abc

from tarsy import proxies
from tarsy.config.model import runbooks
from tarsy.masking import masker
from tarsy.telemetry import logs
from tarsy.tools.runbooks import addresses
from tarsy.transcript import messages, ports

SECONDS = 30.0
"""The limit for a runbook from name resolution to the last byte, including redirects."""
SIZE_MAX = 1024 * 1024
"""Bytes of a runbook."""
REDIRECTS_MAX = 5
CACHED_SECONDS = 60.0
"""The seconds that a runbook, or the reason why there is none, is cached."""
CACHED_MAX, CACHED_SIZE_MAX = 256, 16 * SIZE_MAX
"""The limits of the cache, in runbooks and in characters."""
URL_MAX = 2048
"""Characters of a URL."""
MASKED_ON_LOOP = 64 * 1024
"""Characters that are masked on the event loop; longer runbooks are masked in a thread."""

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[::1\])(?::(?P<port>[0-9]{1,5}))?(?:[/?#][^\x00-\x20\x7f\\]*)?",
    re.IGNORECASE,
)
"""A URL without a user and with an ASCII host: parsers do not agree on the meaning of other forms."""
_PAGE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/(?:blob|raw)/(?P<file>.+)")
"""The path of a GitHub page that shows a file."""
_FILE = re.compile(
    r"/(?P<owner>[a-z0-9-]{1,39})/(?P<name>(?!\.{1,2}/)[a-z0-9._-]{1,100})"
    r"(?:/(?!\.{1,2}(?:/|\Z))(?:[\w.~!$&'()*+,;=:@-]|%20|%[89A-F][0-9A-F])+)+",
    re.ASCII | re.IGNORECASE,
)
"""The path of a file at `runbooks.TOKEN_DOMAIN` that names its repository unambiguously: no part is empty, `.` or `..`,
and only spaces and non-ASCII characters are escaped."""
_LOOPBACK = (*runbooks.LOOPBACK, "[::1]")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PRIVATE = frozenset({401, 403, 404})
"""GitHub's statuses for files that we may not read."""
_TEXTS = re.compile(r"text/(?!html\b)[\w.+-]+|application/(json|yaml|x-yaml|toml|markdown)", re.ASCII)
_HEADERS = {"Accept": "text/plain, text/*;q=0.9, */*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "TARSy"}

log = logging.getLogger(__name__)


def session(
    *, loopback: bool, names: abc.AbstractResolver | None = None, tls: ssl.SSLContext | bool = True
) -> aiohttp.ClientSession:
    """The HTTP session for runbooks without a proxy: to public addresses, and with `loopback` to this machine.

    `names` resolves names, the system's resolver by default; `tls` has the trusted certificates.
    """
    resolver = addresses.Resolver(names or aiohttp.ThreadedResolver(), loopback=loopback)
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True, limit=0, ssl=tls)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def checked_url(url: str, *, allowed: Collection[str], loopback: bool) -> yarl.URL:
    """The URL to request for `url`. Raises RunbookError if `url` is not allowed.

    For a GitHub page that shows a file, this is the file's URL. With `loopback`, this machine is allowed as well, on
    any port and without TLS.
    """
    match = _URL.fullmatch(url) if len(url) <= URL_MAX else None
    if match is None:
        raise ports.RunbookError("its address is not a plain https URL, such as https://github.com/o/r/blob/main/a.md")
    host = match["host"].lower()
    if host in _LOOPBACK:
        if not loopback:
            raise ports.RunbookError(f"{host} is this machine itself, which is allowed only with --insecure-dev")
    elif match["scheme"].lower() != "https":
        raise ports.RunbookError("its address begins with http, and only https is allowed")
    elif host not in allowed:
        raise ports.RunbookError(f"{host} is not among runbooks.allowed_domains: {', '.join(allowed) or 'none'}")
    elif match["port"] not in (None, "443"):
        raise ports.RunbookError("its address names a port, and only the usual one is allowed")
    try:
        parsed = yarl.URL(url).with_fragment(None)
    except ValueError as error:
        raise ports.RunbookError("its address cannot be read") from error
    if parsed.raw_host != host.strip("[]"):  # the host of the connection
        raise ports.RunbookError("its address can be read in two ways")
    if host == "github.com" and (page := _PAGE.fullmatch(parsed.raw_path)):
        file = f"https://{runbooks.TOKEN_DOMAIN}/{page['repository']}/{page['file']}"
        return checked_url(file, allowed=allowed, loopback=loopback)
    return parsed


def repository(address: yarl.URL) -> str | None:
    """The GitHub repository of a file, as `owner/name` in lower case; None for any other URL."""
    if address.scheme != "https" or address.raw_host != runbooks.TOKEN_DOMAIN or address.port != 443:
        return None
    match = _FILE.fullmatch(address.raw_path)
    return f"{match['owner']}/{match['name']}".lower() if match else None


@dataclass(frozen=True, kw_only=True)
class Token:
    """The token for private repositories."""

    value: str = ""
    problem: str = ""
    """The reason why a configured token is missing."""


def token(settings: runbooks.Runbooks, environment: Mapping[str, str]) -> Token:
    """The token that the platform file names, from the environment or a file."""
    if settings.token_file is not None:
        try:
            secret = settings.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            return Token(problem=f"runbooks.token_file: {error.strerror}")
        except ValueError:  # or a NUL in its name
            return Token(problem="runbooks.token_file: no file of UTF-8 text")
        named = "runbooks.token_file"
    elif settings.token_env is not None:
        secret, named = environment.get(settings.token_env, "").strip(), "runbooks.token_env"
    else:
        return Token()
    if not secret:
        return Token(problem=f"{named}: there is no token")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        return Token(problem=f"{named}: it has characters that no token has")
    return Token(value=secret)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The outcome of a request: the runbook, or the reason why there is none."""

    text: str = ""
    problem: str = ""
    until: float
    """The end of its time in the cache, by the monotonic clock."""


@dataclass(kw_only=True)
class _Fetch:
    """A current request."""

    task: asyncio.Task[_Outcome]
    waiting: int = 0
    """The number of callers that wait for it."""


class Runbooks:
    """Fetches the runbooks of one platform file in this process; callers for the same runbook share the request."""

    def __init__(
        self,
        settings: runbooks.Runbooks,
        *,
        token: Token,
        direct: aiohttp.ClientSession,
        proxied: aiohttp.ClientSession,
        mask: Callable[[str], str],
        loopback: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`direct` is from `session`; `proxied` is for proxies, at any address; `loopback` is as in `checked_url`."""
        self._allowed = settings.allowed_domains
        self._token = token
        self._repositories = frozenset(settings.token_repositories)
        self._direct = direct
        self._proxied = proxied
        self._mask = mask
        self._loopback = loopback
        self._clock = clock
        self._fetches: dict[yarl.URL, _Fetch] = {}
        self._cache: dict[yarl.URL, _Outcome] = {}
        if token.problem:
            log.warning("private runbooks cannot be read: %s", token.problem, extra={"action": "runbook_token_missing"})
        for warning in settings.warnings:
            log.warning("%s", warning, extra={"action": "runbook_token_unused"})

    async def read(self, url: str) -> str:
        """The runbook at `url`, masked and storable. Raises RunbookError if it cannot be read."""
        address = checked_url(url, allowed=self._allowed, loopback=self._loopback)
        outcome = self._cache.get(address)
        if outcome is None or outcome.until <= self._clock():
            outcome = await self._shared_fetch(address)
        if outcome.problem:
            raise ports.RunbookError(outcome.problem)
        return outcome.text

    async def _shared_fetch(self, address: yarl.URL) -> _Outcome:
        """The outcome of one request for all waiting callers; the request is cancelled with the last of them."""
        fetch = self._fetches.get(address)
        if fetch is None:
            with logs.no_fields():
                fetch = _Fetch(task=asyncio.create_task(self._outcome(address)))
            self._fetches[address] = fetch
        fetch.waiting += 1
        try:
            return await asyncio.shield(fetch.task)
        finally:
            fetch.waiting -= 1
            if not fetch.waiting:
                del self._fetches[address]
                if not fetch.task.done():
                    fetch.task.cancel()
                    await asyncio.wait([fetch.task])

    async def _outcome(self, address: yarl.URL) -> _Outcome:
        """Fetch a runbook, and cache the outcome."""
        text = problem = ""
        try:
            async with asyncio.timeout(SECONDS):
                text = await self._masked(await self._fetch(address))
        except ports.RunbookError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"it was not received within {SECONDS:g} s"
        except (aiohttp.ClientConnectionError, OSError) as error:
            problem = str(error) or type(error).__name__
        except (aiohttp.ClientError, ValueError) as error:  # its text may have the URL of a redirect
            problem = f"its answer cannot be read: {type(error).__name__}"
        problem = messages.storable(masker.or_withheld(self._mask, problem[:URL_MAX]))
        outcome = _Outcome(text=text, problem=problem, until=self._clock() + CACHED_SECONDS)
        self._cache.pop(address, None)  # the newest outcome is the last one
        self._cache[address] = outcome
        size = sum(len(page.text) for page in self._cache.values())
        while len(self._cache) > CACHED_MAX or size > CACHED_SIZE_MAX:
            size -= len(self._cache.pop(next(iter(self._cache))).text)
        return outcome

    async def _masked(self, text: str) -> str:
        if len(text) > MASKED_ON_LOOP:
            masked = await asyncio.to_thread(masker.or_withheld, self._mask, text)
        else:
            masked = masker.or_withheld(self._mask, text)
        if masked in (masker.WITHHELD, masker.withheld(len(text.encode()))):
            raise ports.RunbookError("it could not be masked")
        return messages.storable(masked)

    async def _fetch(self, address: yarl.URL) -> str:
        """The text of the file at `address`, or at the end of its redirects."""
        for _ in range(REDIRECTS_MAX + 1):
            proxy = proxies.proxy_for(str(address))
            headers = dict(_HEADERS)
            if self._token.value and self._is_listed(address):
                headers["Authorization"] = f"Bearer {self._token.value}"
            async with (self._proxied if proxy else self._direct).get(
                address,
                headers=headers,
                allow_redirects=False,
                auto_decompress=False,
                proxy=proxy,
                timeout=aiohttp.ClientTimeout(total=None),  # `SECONDS` limits all together
            ) as response:
                if response.status not in _REDIRECTS:
                    return await self._text(response, address)
                location = response.headers.get("Location", "")
            try:
                target = urllib.parse.urljoin(str(address), location)
                address = checked_url(target, allowed=self._allowed, loopback=self._loopback)
            except ports.RunbookError as error:
                raise ports.RunbookError(f"it redirects to an address that is not allowed: {error}") from error
        raise ports.RunbookError(f"it redirects more than {REDIRECTS_MAX} times")

    def _is_listed(self, address: yarl.URL) -> bool:
        """Whether `runbooks.token_repositories` lists the repository of the file."""
        name = repository(address)
        return name is not None and not self._repositories.isdisjoint((name, f"{name.partition('/')[0]}/*"))

    def _token_problem(self, address: yarl.URL) -> str:
        """The reason why `address` was requested without the configured token; "" if there is none."""
        if self._token.problem:
            return self._token.problem
        if not self._token.value or self._is_listed(address):
            return ""
        return f"no token was sent, because runbooks.token_repositories does not list {repository(address) or 'it'}"

    async def _text(self, response: aiohttp.ClientResponse, address: yarl.URL) -> str:
        """The text of an answer. Raises RunbookError if the answer is not a plain text."""
        if response.status != 200:
            host = address.raw_host
            is_private = host == runbooks.TOKEN_DOMAIN and response.status in _PRIVATE
            problem = self._token_problem(address) if is_private else ""
            raise ports.RunbookError(f"{host} answers {response.status}{problem and f': {problem}'}")
        kind, charset = response.content_type, (response.charset or "utf-8").lower()
        if not _TEXTS.fullmatch(kind):
            raise ports.RunbookError(f"it is {kind[:100]!r}, not plain text")
        if charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
            raise ports.RunbookError(f"it is encoded in {charset[:100]!r}, not in UTF-8")
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise ports.RunbookError("it was sent compressed, which was not requested")
        if (response.content_length or 0) > SIZE_MAX:
            raise ports.RunbookError(f"it has more than {SIZE_MAX // 1024} KiB")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > SIZE_MAX:
                raise ports.RunbookError(f"it has more than {SIZE_MAX // 1024} KiB")
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ports.RunbookError("it is not UTF-8") from error
        if "\0" in text or not text.strip():
            raise ports.RunbookError("it is not a text" if text.strip() else "it is empty")
        return text
