"""Runbooks over real sockets: which server is asked what, with what, for how long, and which answers are taken for
text.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import abc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support import clocks, time_limits
from tarsy.config.model import runbooks as settings
from tarsy.masking import masker
from tarsy.tools.runbooks import client
from tarsy.transcript import ports
from tarsy_dev import loopback, patience

RAW = "raw.githubusercontent.com"
OTHER = "runbooks.example.com"
HOSTS = ("github.com", RAW, OTHER)
PAGE = "https://github.com/o/r/blob/main/crash.md"
FILE = "/o/r/main/crash.md"
TEXT = "# Crash loops\n\nLook at the limits first. 💥"
TOKEN = "ghp_" + "a1B2" * 9

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes | str = TEXT, *headers: str, status: str = "200 OK") -> bytes:
    """An answer in HTTP."""
    content = body.encode() if isinstance(body, str) else body
    head = headers or ("Content-Type: text/plain; charset=utf-8",)
    lines = [f"HTTP/1.1 {status}", *head, f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


def redirection(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {location}", status=status)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    name: str | None
    """Name that TLS was asked for."""


@dataclass(kw_only=True)
class Site:
    """A server with TLS for all hosts, which answers by path; what it is asked is noted."""

    port: int
    trusts: ssl.SSLContext
    """Context with which a client takes its certificates."""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    closed: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released with each connection that its client has closed."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            secured = writer.get_extra_info("ssl_object")
            self.asked.append(Asked(line=head[0], headers=headers, name=getattr(secured, "server_name_told", None)))
            reply = self.answers.get(head[0].split()[1], answer(b"", status="404 Not Found"))
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                await reply(writer)
            await writer.drain()
            await reader.read()
        self.closed.release()
        writer.close()

    @property
    def lines(self) -> list[str]:
        return [f"{request.headers['host']} {request.line.split()[1]}" for request in self.asked]


class Names(abc.AbstractResolver):
    """Addresses that names stand for, in the order in which it is asked; the last one stays."""

    def __init__(self, *addresses: Sequence[tuple[str, int]]) -> None:
        self._found = [*addresses]
        self.asked: list[str] = []

    async def resolve(
        self,
        host: str,
        port: int = 0,  # noqa: ARG002 - the interface's
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[abc.ResolveResult]:
        self.asked.append(host)
        addresses = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        return [
            abc.ResolveResult(hostname=host, host=address, port=port, family=_family(address), proto=0, flags=0)
            for address, port in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def certificate(names: Sequence[str], folder: Path) -> Path:
    """A certificate for `names` that signs itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / f"{names[0]}.pem"
    private_key = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    file.write_bytes(private_key + made.public_bytes(encoding))
    return file


@contextlib.asynccontextmanager
async def serving(file: Path | None) -> AsyncIterator[Site]:
    """A site with that certificate, or without TLS."""
    listening = loopback.listen()
    site = Site(port=listening.getsockname()[1], trusts=ssl.create_default_context(cafile=file))
    secured = None
    if file is not None:
        secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        secured.load_cert_chain(file)

        def note_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            connection.server_name_told = name  # type: ignore[attr-defined]

        secured.sni_callback = note_name
    server = await asyncio.start_server(site.serve, sock=listening, ssl=secured)
    try:
        yield site
    finally:
        server.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(certificate(HOSTS, tmp_path)) as served:
        yield served


@contextlib.asynccontextmanager
async def reading(
    site: Site,
    names: Names | None = None,
    *,
    token: client.Token | None = None,
    repositories: Sequence[str] = ("o/r",),
    mask: Callable[[str], str] = str,
    clock: clocks.Clock | None = None,
    in_development: bool = False,
) -> AsyncIterator[client.Runbooks]:
    """Runbooks of hosts that all stand for `site`: its address passes, and no address in a URL does."""
    names = names or Names([(loopback.HOST, site.port)])
    async with client.session(loopback=True, names=names, tls=site.trusts) as direct, aiohttp.ClientSession() as other:
        yield client.Runbooks(
            settings.Runbooks(allowed_domains=[*HOSTS], token_repositories=[*repositories]),
            token=token or client.Token(),
            direct=direct,
            proxied=other,
            mask=mask,
            loopback=in_development,
            clock=clock or clocks.Clock(),
        )


async def problem(runbooks: client.Runbooks, url: str = PAGE) -> str:
    """Why there is no runbook."""
    async with patience.limit():
        with pytest.raises(ports.RunbookError) as caught:
            await runbooks.read(url)
    return str(caught.value)


async def test_runbook_is_fetched_from_the_checked_address_under_its_own_host_name(site: Site) -> None:
    site.answers[FILE] = answer()
    async with reading(site) as runbooks:
        assert await runbooks.read(PAGE) == TEXT
    (asked,) = site.asked
    assert asked.line == f"GET {FILE} HTTP/1.1"
    assert (asked.headers["host"], asked.name) == (RAW, RAW)
    assert asked.headers["accept-encoding"] == "identity"
    assert "authorization" not in asked.headers
    assert "cookie" not in asked.headers


async def test_this_machine_is_read_in_development_on_any_port_without_tls() -> None:
    async with serving(None) as site, reading(site, in_development=True) as runbooks:
        site.answers["/a.md"] = answer()
        assert await runbooks.read(f"http://127.0.0.1:{site.port}/a.md") == TEXT
        assert await runbooks.read(f"http://localhost:{site.port}/a.md#part") == TEXT
    assert len(site.asked) == 2


async def test_runbook_is_masked_and_can_be_stored(site: Site) -> None:
    secret = "hunter2hunter2"
    site.answers[FILE] = answer(f"\ufeffLog in first:\npassword: {secret}\nthen look\x1b\n")
    async with reading(site, mask=masker.Masker(groups=["security"]).text) as runbooks:
        text = await runbooks.read(PAGE)
    assert text == "Log in first:\npassword: [MASKED:password]\nthen look\x1b\n"


async def test_text_that_cannot_be_masked_is_not_read(site: Site) -> None:
    def fails(_: str) -> str:
        raise RuntimeError("with the text in it")

    site.answers[FILE] = answer("x" * client.MASKED_ON_LOOP * 2)
    async with reading(site, mask=lambda text: fails(text) if len(text) > client.MASKED_ON_LOOP else text) as runbooks:
        assert await problem(runbooks) == "it could not be masked"


async def test_token_is_sent_only_to_its_own_host_despite_redirects(site: Site) -> None:
    site.answers["/o/r/releases/a.md"] = redirection(f"https://{RAW}{FILE}?token=x")
    site.answers[f"{FILE}?token=x"] = redirection(f"https://{OTHER}/a.md")
    site.answers["/a.md"] = answer()
    async with reading(site, token=client.Token(value=TOKEN)) as runbooks:
        assert await runbooks.read("https://github.com/o/r/releases/a.md") == TEXT
    assert site.lines == ["github.com /o/r/releases/a.md", f"{RAW} {FILE}?token=x", f"{OTHER} /a.md"]
    assert [request.headers.get("authorization") for request in site.asked] == [None, f"Bearer {TOKEN}", None]


LENT = {
    "listed": ("o/r", PAGE, True),
    "listed in capitals": ("O/R", PAGE, True),
    "asked for in capitals": ("o/r", f"https://{RAW}/O/R/main/a.md", True),
    "all of an owner": ("o/*", PAGE, True),
    "a name beyond ASCII": ("o/r", f"https://{RAW}/o/r/main/a%20b/\u00e9.md", True),
    "an escaped letter": ("o/r", f"https://{RAW}/%6f/r/main/a.md", True),
    "not listed": ("o/other", PAGE, False),
    "another owner": ("x/*", PAGE, False),
    "a longer name": ("o/r", f"https://{RAW}/o/r2/main/a.md", False),
    "a longer owner": ("o/*", f"https://{RAW}/o2/r/main/a.md", False),
    "out of it": ("o/r", f"https://{RAW}/o/r/../../x/y/main/a.md", False),
    "out of it, escaped": ("o/r", f"https://{RAW}/o/r/%2e%2e/%2E%2E/x/y/main/a.md", False),
    "out of it, escaped twice": ("o/r", f"https://{RAW}/o/r/%252e%252e/%252e%252e/x/y/a.md", False),
    "an escaped slash": ("o/r", f"https://{RAW}/o/r/..%2f..%2fx/y/main/a.md", False),
    "an escaped backslash": ("o/r", f"https://{RAW}/o/r/..%5c..%5cx/y/main/a.md", False),
    "an escaped slash in the owner": ("o/*", f"https://{RAW}/o%2fr/main/a.md", False),
    "an empty part": ("o/r", f"https://{RAW}//o/r/main/a.md", False),
    "an empty part further on": ("o/r", f"https://{RAW}/o/r//x/y/main/a.md", False),
    "a NUL": ("o/r", f"https://{RAW}/o/r/main/a%00.md", False),
    "no file": ("o/r", f"https://{RAW}/o/r", False),
    "another host": ("o/r", f"https://{OTHER}/o/r/main/a.md", False),
    "a page that shows no file": ("o/r", "https://github.com/o/r/wiki/a.md", False),
    "a page out of it": ("o/r", "https://github.com/o/r/blob/../../x/y/blob/main/a.md", False),
}


@pytest.mark.parametrize(("listed", "url", "is_lent"), LENT.values(), ids=LENT)
async def test_token_goes_to_listed_repositories_alone(site: Site, listed: str, url: str, is_lent: bool) -> None:
    async with reading(site, token=client.Token(value=TOKEN), repositories=[listed]) as runbooks:
        reason = await problem(runbooks, url)
    (asked,) = site.asked
    assert asked.headers.get("authorization") == (f"Bearer {TOKEN}" if is_lent else None)
    assert ("no token was sent" in reason) == (not is_lent and asked.headers["host"] == RAW)
    assert TOKEN not in reason


async def test_redirection_out_of_a_listed_repository_carries_no_token(site: Site) -> None:
    there = "/x/private/main/a.md"
    site.answers[FILE] = redirection(f"https://{RAW}{there}")
    async with reading(site, token=client.Token(value=TOKEN)) as runbooks:
        reason = await problem(runbooks)
    assert reason == (
        f"{RAW} answers 404: no token was sent, because runbooks.token_repositories does not list x/private"
    )
    assert [request.headers.get("authorization") for request in site.asked] == [f"Bearer {TOKEN}", None]


async def test_token_without_repositories_is_sent_nowhere_and_warned_of(site: Site) -> None:
    runbook_settings = settings.Runbooks(token_env="T_KEN")
    (warning,) = runbook_settings.warnings
    assert warning.startswith("runbooks.token_repositories is empty: the token is sent nowhere")
    async with reading(site, token=client.Token(value=TOKEN), repositories=[]) as runbooks:
        assert "no token was sent" in await problem(runbooks)
    assert "authorization" not in site.asked[0].headers
    listed = runbook_settings.model_copy(update={"token_repositories": ["o/*"]})
    assert listed.warnings == []
    assert settings.Runbooks().warnings == []
    assert "has no effect" in settings.Runbooks(token_repositories=["o/r"]).warnings[0]


async def test_missing_token_is_reported_only_for_hosts_that_use_it(site: Site) -> None:
    async with reading(site, token=client.Token(problem="runbooks.token_env: there is no token")) as runbooks:
        assert await problem(runbooks) == f"{RAW} answers 404: runbooks.token_env: there is no token"
        assert await problem(runbooks, f"https://{OTHER}/a.md") == f"{OTHER} answers 404"


@pytest.mark.parametrize(
    ("file", "environment", "value", "reason"),
    [
        (None, {"T_KEN": f" {TOKEN}\n"}, TOKEN, ""),
        (f"{TOKEN}\n".encode(), {"T_KEN": "other"}, TOKEN, ""),
        (None, {}, "", "runbooks.token_env: there is no token"),
        (b"\n", {"T_KEN": TOKEN}, "", "runbooks.token_file: there is no token"),
        (b"\xff", {}, "", "runbooks.token_file: no file of UTF-8 text"),
        (None, {"T_KEN": "a\r\nX: y"}, "", "runbooks.token_env: it has characters that no token has"),
    ],
)
def test_runbook_token_is_read_from_its_file_or_variable_and_never_shown(
    tmp_path: Path, file: bytes | None, environment: dict[str, str], value: str, reason: str
) -> None:
    runbook_settings = settings.Runbooks(token_env="T_KEN")
    if file is not None:
        (tmp_path / "token").write_bytes(file)
        runbook_settings = settings.Runbooks(token_env="T_KEN", token_file=tmp_path / "token")
    assert client.token(runbook_settings, environment) == client.Token(value=value, problem=reason)
    missing = settings.Runbooks(token_file=tmp_path / "missing")
    assert client.token(missing, {}).problem == "runbooks.token_file: No such file or directory"
    assert client.token(settings.Runbooks(), {"T_KEN": TOKEN}) == client.Token()


ELSEWHERE = [
    *("https://evil.example/a", "//evil.example/a", "https://github.com.evil.example/", "https://sub.github.com/"),
    *("http://github.com/a", "http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/latest"),
    *("https://127.0.0.1/a", "http://127.0.0.1:8080/a", "http://localhost/a", "https://[::1]/a", "https://2130706433/"),
    *("https://user:word@github.com/a", "https://github.com@evil.example/a", "https://github.com\\@evil.example/a"),
    *("https://github.com:8443/a", "ftp://github.com/a", "file:///etc/passwd", "gopher://github.com/a", "javascript:1"),
    *("https://kubernetes.default.svc/api", "https://github.com/" + "a" * 4000),
]


@pytest.mark.parametrize("location", ELSEWHERE)
@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect"])
async def test_a_redirection_out_of_the_list_is_not_followed(site: Site, location: str, status: str) -> None:
    site.answers[FILE] = redirection(location, status)
    names = Names([(loopback.HOST, site.port)])
    async with reading(site, names, token=client.Token(value=TOKEN)) as runbooks:
        reason = await problem(runbooks)
    assert reason.startswith("it redirects to an address that is not allowed: ")
    assert (names.asked, site.connections) == ([RAW], 1)


async def test_few_redirections_are_followed_and_no_more(site: Site) -> None:
    for number in range(10):
        site.answers[f"/{number}"] = redirection(f"/{number + 1}", "308 Permanent Redirect")
    site.answers["/10"] = answer()
    async with reading(site) as runbooks:
        assert await problem(runbooks, f"https://{OTHER}/1") == "it redirects more than 5 times"
        assert len(site.asked) == client.REDIRECTS_MAX + 1
        assert await runbooks.read(f"https://{OTHER}/5") == TEXT


PRIVATE = [
    *("10.0.0.1", "169.254.169.254", "192.168.1.1", "100.64.0.1", "0.0.0.0", "224.0.0.1", "240.0.0.1"),  # noqa: S104
    *("::", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
]


@pytest.mark.parametrize("address", PRIVATE)
async def test_host_name_with_any_internal_address_is_not_connected_to(site: Site, address: str) -> None:
    site.answers[FILE] = answer()
    good = (loopback.HOST, site.port)
    for addresses in ([(address, site.port)], [good, (address, site.port)], [(address, site.port), good]):
        async with reading(site, Names(addresses)) as runbooks:
            assert await problem(runbooks) == f"{RAW} is at {address}, an address that is not public"
    assert site.connections == 0


async def test_this_machine_has_no_name_but_in_development(site: Site) -> None:
    async with client.session(loopback=False, names=Names([(loopback.HOST, site.port)]), tls=site.trusts) as http:
        with pytest.raises(ports.RunbookError, match=r"is at 127\.0\.0\.1, an address that is not public"):
            await http.get(PAGE)
    assert site.connections == 0


async def test_host_name_is_resolved_again_for_each_connection_by_our_resolver_alone(site: Site) -> None:
    """An address that the name stood for a moment before does not count."""
    site.answers[FILE] = redirection(f"https://{RAW}/second")
    site.answers["/second"] = answer()
    names = Names([(loopback.HOST, site.port)], [("169.254.169.254", 80)])
    async with reading(site, names) as runbooks:
        assert await problem(runbooks) == f"{RAW} is at 169.254.169.254, an address that is not public"
    assert site.connections == 1
    assert names.asked == [RAW, RAW]


async def test_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    async with serving(certificate(["evil.example"], tmp_path)) as site, reading(site) as runbooks:
        assert "certificate" in (await problem(runbooks)).lower()
        assert site.asked == []


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (("Content-Type: text/html; charset=utf-8",), b"<p>", "it is 'text/html', not plain text"),
        (("Content-Type: application/octet-stream",), b"a", "it is 'application/octet-stream', not plain text"),
        (("Content-Type: text/plain; charset=utf-16",), b"a\0", "it is encoded in 'utf-16', not in UTF-8"),
        (("Content-Type: text/plain; charset=unicode_escape",), b"a", "it is encoded in 'unicode_escape'"),
        (("Content-Type: text/plain",), b"\xff\xfea", "it is not UTF-8"),
        (("Content-Type: text/plain",), b"a\0b", "it is not a text"),
        (("Content-Type: text/plain",), b" \n", "it is empty"),
        (("Content-Type: text/plain", "Content-Encoding: gzip"), gzip.compress(b"a" * 10**7), "it was sent compressed"),
        (("Content-Type: text/plain",), b"a" * (client.SIZE_MAX + 1), "it has more than 1024 KiB"),
    ],
)
async def test_answer_that_is_no_plain_text_is_no_runbook(
    site: Site, headers: tuple[str, ...], body: bytes, reason: str
) -> None:
    site.answers[FILE] = answer(body, *headers)
    async with reading(site) as runbooks:
        assert (await problem(runbooks)).startswith(reason)


@pytest.mark.parametrize("kind", ["text/markdown; charset=UTF-8", "text/x-rst", "application/json", "application/yaml"])
async def test_text_of_any_content_type_is_read_up_to_the_size_limit(site: Site, kind: str) -> None:
    text = "é" * (client.SIZE_MAX // 2)
    site.answers[FILE] = answer(text, f"Content-Type: {kind}")
    async with reading(site) as runbooks:
        assert await runbooks.read(PAGE) == text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 900\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=lambda raw: raw[:40],
)
async def test_any_broken_answer_is_reported_and_not_raised(site: Site, raw: bytes) -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    site.answers[FILE] = broken
    async with reading(site) as runbooks:
        assert (reason := await problem(runbooks))
        assert "y" * 100 not in reason


async def test_a_body_without_end_ends_at_the_limit(site: Site) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in itertools.count():
            writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
            await writer.drain()

    site.answers[FILE] = endless
    async with reading(site) as runbooks:
        assert await problem(runbooks) == "it has more than 1024 KiB"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> time_limits.TimeLimits:
    return time_limits.TimeLimits(monkeypatch)


@pytest.mark.parametrize("pieces", [0, 5], ids=["silent", "dripping"])
async def test_answer_that_takes_too_long_is_not_waited_for(
    site: Site, limits: time_limits.TimeLimits, pieces: int
) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        if pieces:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(pieces):
            writer.write(b"1\r\na\r\n")
            await writer.drain()
        assert limits.expire(client.SECONDS) == 1
        await asyncio.Event().wait()

    site.answers[FILE] = slow
    async with reading(site) as runbooks:
        assert await problem(runbooks) == "it was not received within 30 s"


async def test_answer_of_an_address_is_remembered_for_a_minute(site: Site) -> None:
    site.answers[FILE] = answer("first")
    clock = clocks.Clock()
    async with reading(site, clock=clock) as runbooks:
        assert await runbooks.read(PAGE) == "first"
        site.answers[FILE] = answer("second")
        clock.now = 59.0
        assert await runbooks.read(f"{PAGE}#part") == "first"
        assert (await problem(runbooks, f"https://{OTHER}/a")) == (await problem(runbooks, f"https://{OTHER}/a"))
        assert len(site.asked) == 2
        clock.now = 61.0
        assert await runbooks.read(PAGE) == "second"


async def test_runbook_cache_size_is_bounded(site: Site) -> None:
    async with reading(site) as runbooks:
        for number in range(20):
            site.answers[f"/{number}"] = answer("a" * client.SIZE_MAX)
            await runbooks.read(f"https://{OTHER}/{number}")
        assert len(site.asked) == 20
        await runbooks.read(f"https://{OTHER}/19")
        assert len(site.asked) == 20
        await runbooks.read(f"https://{OTHER}/0")
        assert len(site.asked) == 21


@pytest.fixture
def held(site: Site) -> Iterator[asyncio.Event]:
    """The file is answered once this is set."""
    release = asyncio.Event()

    async def answers(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer())

    site.answers[FILE] = answers
    yield release
    release.set()


async def asked_of(site: Site) -> None:
    """Wait until it was asked."""
    async with patience.limit():
        while not site.asked:  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.01)


async def test_readers_of_the_same_page_share_one_request(site: Site, held: asyncio.Event) -> None:
    async with reading(site) as runbooks, patience.limit():
        readers = [asyncio.create_task(runbooks.read(PAGE)) for _ in range(20)]
        await asked_of(site)
        for reader in readers[:10]:
            reader.cancel()
        ended = await asyncio.gather(*readers[:10], return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in ended)
        held.set()
        assert await asyncio.gather(*readers[10:]) == [TEXT] * 10
    assert site.connections == 1


async def test_environment_proxy_is_asked_for_the_host_and_receives_no_token(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stand at a private address; which addresses it reaches is its word."""
    async with serving(None) as proxy, reading(site, token=client.Token(value=TOKEN)) as runbooks:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        proxy.answers[f"{RAW}:443"] = answer(b"", status="403 Forbidden")
        assert await problem(runbooks)
    (asked,) = proxy.asked
    assert asked.line == f"CONNECT {RAW}:443 HTTP/1.1"
    assert TOKEN not in str(asked.headers)
    assert site.connections == 0
