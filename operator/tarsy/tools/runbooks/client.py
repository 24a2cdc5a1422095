"""Runbooks by address. The author of an alert chooses the address; the platform file limits the hosts.

An address is https, at a host that the file allows by its whole name, on the usual port, and names no user; so is each
redirect. Its host must resolve to public addresses alone (`addresses`). Its answer counts as text if it declares that
and is text, is bounded in time and size, and is masked before it is read.

Behind a proxy of the environment, the proxy resolves the names, and decides which addresses are reached.
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
"""For a runbook, with all that it takes: names, redirections, and the wait for the last byte."""
SIZE_MAX = 1024 * 1024
"""Bytes of a runbook."""
REDIRECTIONS_MAX = 5
CACHED_SECONDS = 60.0
"""How long what came of an address is remembered, be it nothing."""
CACHED_MAX, CACHED_SIZE_MAX = 256, 16 * SIZE_MAX
"""How many addresses are remembered, and characters of what came of them."""
LONGEST = 2048
"""Characters of an address."""
AT_ONCE = 64 * 1024
"""Characters that are masked on the loop; more are in a thread."""

_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[::1\])(?::(?P<port>[0-9]{1,5}))?(?:[/?#][^\x00-\x20\x7f\\]*)?",
    re.IGNORECASE,
)
"""An address without a user, whose host is written in ASCII: what other forms mean, parsers do not agree on."""
_PAGE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/(?:blob|raw)/(?P<file>.+)")
"""The path of a page of GitHub that shows a file."""
_FILE = re.compile(
    r"/(?P<owner>[a-z0-9-]{1,39})/(?P<name>(?!\.{1,2}/)[a-z0-9._-]{1,100})"
    r"(?:/(?!\.{1,2}(?:/|\Z))(?:[\w.~!$&'()*+,;=:@-]|%20|%[89A-F][0-9A-F])+)+",
    re.ASCII | re.IGNORECASE,
)
"""The path of a file at `runbooks.TOKEN_DOMAIN` that names its repository in one way only: no part is empty, `.` or
`..`, and nothing is escaped but spaces and what is no ASCII."""
_LOOPBACK = (*runbooks.LOOPBACK, "[::1]")
_REDIRECTIONS = frozenset({301, 302, 303, 307, 308})
_PRIVATE = frozenset({401, 403, 404})
"""The statuses of GitHub for files that it does not show to us."""
_TEXTS = re.compile(r"text/(?!html\b)[\w.+-]+|application/(json|yaml|x-yaml|toml|markdown)", re.ASCII)
_HEADERS = {"Accept": "text/plain, text/*;q=0.9, */*;q=0.1", "Accept-Encoding": "identity", "User-Agent": "TARSy"}

log = logging.getLogger(__name__)


def session(
    *, loopback: bool, names: abc.AbstractResolver | None = None, tls: ssl.SSLContext | bool = True
) -> aiohttp.ClientSession:
    """Return the session for runbooks without a proxy: to public addresses, or this machine's with `loopback`.

    `names` resolves names, the system's resolver by default; `tls` has the trusted certificates.
    """
    resolver = addresses.Resolver(names or aiohttp.ThreadedResolver(), loopback=loopback)
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True, limit=0, ssl=tls)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def checked(url: str, *, allowed: Collection[str], loopback: bool) -> yarl.URL:
    """`url` as it is asked for; a RunbookError says why it is not.

    Of a page of GitHub that shows a file that is the file; `loopback` lets this machine be asked, on any port and
    without TLS.
    """
    match = _ADDRESS.fullmatch(url) if len(url) <= LONGEST else None
    if match is None:
        raise ports.RunbookError("its address is no plain https URL, such as https://github.com/o/r/blob/main/a.md")
    host = match["host"].lower()
    if host in _LOOPBACK:
        if not loopback:
            raise ports.RunbookError(f"{host} is this machine itself, which is asked with --insecure-dev only")
    elif match["scheme"].lower() != "https":
        raise ports.RunbookError("its address begins with http, and only https is asked")
    elif host not in allowed:
        raise ports.RunbookError(f"{host} is not among runbooks.allowed_domains: {', '.join(allowed) or 'none'}")
    elif match["port"] not in (None, "443"):
        raise ports.RunbookError("its address names a port, and only the usual one is asked")
    try:
        parsed = yarl.URL(url).with_fragment(None)
    except ValueError as error:
        raise ports.RunbookError("its address cannot be read") from error
    if parsed.raw_host != host.strip("[]"):  # that is what is connected to
        raise ports.RunbookError("its address can be read in two ways")
    if host == "github.com" and (page := _PAGE.fullmatch(parsed.raw_path)):
        file = f"https://{runbooks.TOKEN_DOMAIN}/{page['repository']}/{page['file']}"
        return checked(file, allowed=allowed, loopback=loopback)
    return parsed


def repository(address: yarl.URL) -> str | None:
    """The repository of GitHub, `owner/name` in small letters, whose file `address` is; None if it is no such file."""
    if address.scheme != "https" or address.raw_host != runbooks.TOKEN_DOMAIN or address.port != 443:
        return None
    match = _FILE.fullmatch(address.raw_path)
    return f"{match['owner']}/{match['name']}".lower() if match else None


@dataclass(frozen=True, kw_only=True)
class Token:
    """The token for private repositories."""

    value: str = ""
    problem: str = ""
    """Why there is none, although there should be."""


def token(settings: runbooks.Runbooks, environment: Mapping[str, str]) -> Token:
    """The token that the platform file names, as it is now; it may read a file."""
    if settings.token_file is not None:
        try:
            secret = settings.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            return Token(problem=f"runbooks.token_file: {error.strerror}")
        except ValueError:  # a NUL in its name, too
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
    """The outcome of an address: its text, or the reason why there is none."""

    text: str = ""
    problem: str = ""
    until: float
    """For so long it is remembered, by the monotonic clock."""


@dataclass(kw_only=True)
class _Fetch:
    """A fetch that is under way."""

    task: asyncio.Task[_Outcome]
    waiting: int = 0
    """How many wait for it."""


class Runbooks:
    """Fetches the runbooks of one platform file, in one process; who asks for the same one shares the request."""

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
        """`direct` is a `session`; `proxied` one for proxies, which are at any address; `loopback` as in `checked`."""
        self._allowed = settings.allowed_domains
        self._token = token
        self._repositories = frozenset(settings.token_repositories)
        self._direct = direct
        self._proxied = proxied
        self._mask = mask
        self._loopback = loopback
        self._clock = clock
        self._under_way: dict[yarl.URL, _Fetch] = {}
        self._known: dict[yarl.URL, _Outcome] = {}
        if token.problem:
            log.warning("private runbooks cannot be read: %s", token.problem, extra={"action": "runbook_token_missing"})
        for warning in settings.warnings:
            log.warning("%s", warning, extra={"action": "runbook_token_unused"})

    async def read(self, url: str) -> str:
        """The runbook at `url`, masked and storable; a RunbookError says why there is none."""
        address = checked(url, allowed=self._allowed, loopback=self._loopback)
        outcome = self._known.get(address)
        if outcome is None or outcome.until <= self._clock():
            outcome = await self._shared(address)
        if outcome.problem:
            raise ports.RunbookError(outcome.problem)
        return outcome.text

    async def _shared(self, address: yarl.URL) -> _Outcome:
        """Return the outcome of an address, by one request for all waiting callers; it ends without them."""
        fetch = self._under_way.get(address)
        if fetch is None:
            with logs.nobodys():
                fetch = _Fetch(task=asyncio.create_task(self._outcome(address)))
            self._under_way[address] = fetch
        fetch.waiting += 1
        try:
            return await asyncio.shield(fetch.task)
        finally:
            fetch.waiting -= 1
            if not fetch.waiting:
                del self._under_way[address]
                if not fetch.task.done():
                    fetch.task.cancel()
                    await asyncio.wait([fetch.task])

    async def _outcome(self, address: yarl.URL) -> _Outcome:
        """Fetch it once, and remember what came of it."""
        text = problem = ""
        try:
            async with asyncio.timeout(SECONDS):
                text = await self._masked(await self._fetched(address))
        except ports.RunbookError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"it was not there after {SECONDS:g} s"
        except (aiohttp.ClientConnectionError, OSError) as error:
            problem = str(error) or type(error).__name__
        except (aiohttp.ClientError, ValueError) as error:  # whose text may have the address of a redirection
            problem = f"its answer cannot be read: {type(error).__name__}"
        problem = messages.storable(masker.or_withheld(self._mask, problem[:LONGEST]))
        outcome = _Outcome(text=text, problem=problem, until=self._clock() + CACHED_SECONDS)
        self._keep(address, outcome)
        return outcome

    def _keep(self, address: yarl.URL, outcome: _Outcome) -> None:
        self._known.pop(address, None)  # what is newest stands last
        self._known[address] = outcome
        size = sum(len(page.text) for page in self._known.values())
        while len(self._known) > CACHED_MAX or size > CACHED_SIZE_MAX:
            size -= len(self._known.pop(next(iter(self._known))).text)

    async def _masked(self, text: str) -> str:
        if len(text) > AT_ONCE:
            masked = await asyncio.to_thread(masker.or_withheld, self._mask, text)
        else:
            masked = masker.or_withheld(self._mask, text)
        if masked in (masker.WITHHELD, masker.withheld(len(text.encode()))):
            raise ports.RunbookError("it could not be masked")
        return messages.storable(masked)

    async def _fetched(self, address: yarl.URL) -> str:
        """The text of the file at `address`, or at the one that it redirects to in the end."""
        for _ in range(REDIRECTIONS_MAX + 1):
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
                timeout=aiohttp.ClientTimeout(total=None),  # ours is for all together
            ) as response:
                if response.status not in _REDIRECTIONS:
                    return await self._text(response, address)
                location = response.headers.get("Location", "")
            try:
                there = urllib.parse.urljoin(str(address), location)
                address = checked(there, allowed=self._allowed, loopback=self._loopback)
            except ports.RunbookError as error:
                raise ports.RunbookError(f"it redirects where nobody is asked: {error}") from error
        raise ports.RunbookError(f"it redirects more than {REDIRECTIONS_MAX} times")

    def _is_listed(self, address: yarl.URL) -> bool:
        """Whether `runbooks.token_repositories` lists the repository of that file."""
        name = repository(address)
        return name is not None and not self._repositories.isdisjoint((name, f"{name.partition('/')[0]}/*"))

    def _no_token(self, address: yarl.URL) -> str:
        """The reason why `address` was asked without a token; empty if it was asked with it, or none is configured."""
        if self._token.problem:
            return self._token.problem
        if not self._token.value or self._is_listed(address):
            return ""
        return f"no token was sent, because runbooks.token_repositories does not list {repository(address) or 'it'}"

    async def _text(self, response: aiohttp.ClientResponse, address: yarl.URL) -> str:
        """The text that an answer of `address` is; a RunbookError where it is something else."""
        if response.status != 200:
            host = address.raw_host
            is_private = host == runbooks.TOKEN_DOMAIN and response.status in _PRIVATE
            why = self._no_token(address) if is_private else ""
            raise ports.RunbookError(f"{host} answers {response.status}{why and f': {why}'}")
        kind, charset = response.content_type, (response.charset or "utf-8").lower()
        if not _TEXTS.fullmatch(kind):
            raise ports.RunbookError(f"it is {kind[:100]!r}, and no plain text")
        if charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
            raise ports.RunbookError(f"it is written in {charset[:100]!r}, and not in UTF-8")
        if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise ports.RunbookError("it came compressed, which was not asked for")
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
            raise ports.RunbookError("it is no text" if text.strip() else "it is empty")
        return text
