"""Addresses that may be asked for a runbook. The author of an alert chooses them, so all of it is hostile."""

from __future__ import annotations

import ipaddress
import urllib.parse

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tarsy.config.model import runbooks as settings
from tarsy.tools.runbooks import addresses, client
from tarsy.transcript import ports

ALLOWED = ("github.com", "raw.githubusercontent.com", "runbooks.example.com")


def requested(url: str, *, loopback: bool = False) -> str:
    """Return the address that is asked for `url`."""
    return str(client.checked_url(url, allowed=ALLOWED, loopback=loopback))


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("https://github.com/o/r/blob/main/docs/a.md", "https://raw.githubusercontent.com/o/r/main/docs/a.md"),
        ("https://github.com/o/r/blob/v1.2/a.md?plain=1#L3", "https://raw.githubusercontent.com/o/r/v1.2/a.md"),
        ("https://github.com/o/r/raw/main/a.md", "https://raw.githubusercontent.com/o/r/main/a.md"),
        ("https://github.com/o/r/blob/main/a%20b.md", "https://raw.githubusercontent.com/o/r/main/a%20b.md"),
        ("https://github.com/o/r/blob/main/ü.md", "https://raw.githubusercontent.com/o/r/main/%C3%BC.md"),
        ("HTTPS://GitHub.com:443/o/r/blob/main/a.md", "https://raw.githubusercontent.com/o/r/main/a.md"),
        ("https://github.com/o/r/wiki/A", "https://github.com/o/r/wiki/A"),
        ("https://runbooks.example.com/a?b=c#d", "https://runbooks.example.com/a?b=c"),
        ("https://runbooks.example.com/o/r/blob/main/a.md", "https://runbooks.example.com/o/r/blob/main/a.md"),
        ("https://runbooks.example.com", "https://runbooks.example.com"),
    ],
)
def test_an_address_is_asked_for_the_file_that_it_means(url: str, file: str) -> None:
    assert requested(url) == file


REFUSED = [
    *("", "runbook", "look at the wiki", "//github.com/a", "https://", "https:///a", "https:github.com/a"),
    *("http://github.com/a", "ftp://github.com/a", "file:///etc/passwd", "gopher://github.com:70/_", "data:,a"),
    *("https://user@github.com/a", "https://user:word@github.com/a", "https://@github.com/a"),
    *("https://github.com@evil.example/a", "https://evil.example@github.com/a", "https://evil.example#@github.com/a"),
    *("https://evil.example/github.com", "https://github.com.evil.example/a", "https://evilgithub.com/a"),
    *("https://gist.github.com/a", "https://github.com./a", "https://.github.com/a", "https://github.com%2eevil/a"),
    *("https://github.com\\@evil.example/a", "https://github.com\\.evil.example/a", "https:\\\\github.com\\a"),
    *("https://github.com /a", " https://github.com/a", "https://github.com/a b", "https://github.com/a\n"),
    *("https://git\thub.com/a", "https://github.com\r\nHost: evil.example/a", "https://github.com/\0"),
    *("https://github.com:8443/a", "https://github.com:80/a", "https://github.com:/a", "https://github.com:0443/a"),
    *("https://github.com:99999/a", "https://github.com:443@evil.example/a"),
    *(
        "https://\uff47ithub.com/a",
        "https://\u0261ithub.com/a",
        "https://githu\u042c.com/a",
        "https://github\u3002com/a",
    ),
    *("https://xn--gthub-n4a.com/a", "https://github.com\u200b/a"),
    *("https://169.254.169.254/latest/meta-data", "https://10.0.0.1/a", "https://127.0.0.1/a", "https://0/a"),
    *("https://2130706433/a", "https://0x7f000001/a", "https://0177.0.0.1/a", "https://127.1/a", "https://127.0.1/a"),
    *("https://[::1]/a", "https://[::ffff:127.0.0.1]/a", "https://[fd00:ec2::254]/a", "https://[::]/a"),
    *("https://[::ffff:a9fe:a9fe]/a", "https://[64:ff9b::a9fe:a9fe]/a", "https://[fe80::1%25eth0]/a"),
    *("https://localhost/a", "https://LOCALHOST/a", "http://localhost:8080/a", "http://127.0.0.1:8080/a"),
    *("https://kubernetes.default.svc/api", "https://metadata.google.internal/a"),
    "https://github.com/" + "a" * client.URL_MAX,
]


@pytest.mark.parametrize("url", REFUSED)
def test_address_that_is_not_plain_or_not_allowed_is_not_requested(url: str) -> None:
    with pytest.raises(ports.RunbookError):
        requested(url)


@pytest.mark.parametrize("url", ["http://localhost:8080/a", "http://127.0.0.1:8080/a", "https://[::1]/a"])
def test_this_machine_is_asked_in_development_only(url: str) -> None:
    assert requested(url, loopback=True) == url
    with pytest.raises(ports.RunbookError, match="only with --insecure-dev"):
        requested(url)


@pytest.mark.parametrize("url", ["http://github.com/a", "http://127.0.0.2/a", "http://[::ffff:127.0.0.1]/a"])
def test_development_mode_allows_no_other_runbook_addresses(url: str) -> None:
    with pytest.raises(ports.RunbookError):
        requested(url, loopback=True)


_PIECES = st.sampled_from(
    [*"/@:.?#[]%\\ \t\n", "https://", "http://", "github.com", "evil.example", "127.0.0.1", "[::1]", "443", "blob", "ü"]
)


@given(st.one_of(st.text(), st.lists(_PIECES | st.text(max_size=3), max_size=12).map("".join)), st.booleans())
@example("https://github.com/o/r/blob/main/../../../../a", False)
def test_every_requested_address_has_an_allowed_host_in_all_parsers(url: str, of_host: bool) -> None:
    try:
        checked = client.checked_url(("https://github.com" if of_host else "") + url, allowed=ALLOWED, loopback=False)
    except ports.RunbookError:
        return
    assert (checked.scheme, checked.port, checked.user, checked.password) == ("https", 443, None, None)
    assert checked.raw_host in ALLOWED
    again = urllib.parse.urlsplit(str(checked))
    assert (again.scheme, again.netloc) == ("https", checked.raw_host)
    assert str(checked).isascii()
    assert not set(" \t\r\n\0\\") & set(str(checked))


OURS = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),  # noqa: S104
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "::", "::1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a9fe:a9fe::1", "2002:808:808::"),
    *("3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1"),
    *("", "github.com", "127.1", "2130706433", "010.0.0.1", "8.8.8.8/32", "2606:4700::1111%eth0"),
]


@pytest.mark.parametrize("address", OURS)
def test_private_reserved_or_invalid_address_is_not_public(address: str) -> None:
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", ["140.82.112.3", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111"])
def test_public_address_is_recognized_as_public(address: str) -> None:
    assert addresses.is_public(address)


@given(st.ip_addresses(v=4))
def test_no_address_hides_in_another(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for hidden in (
        ipaddress.IPv6Address(number),
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1),
        ipaddress.IPv6Address(0x20010000 << 96 | (number ^ 0xFFFFFFFF)),
    ):
        assert not addresses.is_public(str(hidden)), hidden


@given(st.ip_addresses())
def test_addresses_that_the_library_calls_local_are_not_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert not addresses.is_public(str(address))
    if address.is_reserved or address.is_unspecified or not address.is_global:
        assert not addresses.is_public(str(address))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"allowed_domains": ["https://github.com"]}, "not a host's whole name"),
        ({"allowed_domains": ["*.github.com"]}, "not a host's whole name"),
        ({"allowed_domains": ["github.com/o"]}, "not a host's whole name"),
        ({"allowed_domains": ["github.com:443"]}, "not a host's whole name"),
        ({"allowed_domains": ["github.com."]}, "not a host's whole name"),
        ({"allowed_domains": ["10.0.0.1"]}, "not a host's whole name"),
        ({"allowed_domains": ["::1"]}, "not a host's whole name"),
        ({"allowed_domains": [""]}, "not a host's whole name"),
        ({"allowed_domains": ["svc"]}, "not a host's whole name"),
        ({"token_env": "ghp_itself"}, "not an environment variable's name"),
        ({"token_env": "T", "allowed_domains": ["github.com"]}, "token_env: raw.githubusercontent.com alone gets"),
        ({"token_file": "/t", "allowed_domains": []}, "token_file: raw.githubusercontent.com alone gets"),
        ({"domains": []}, "Extra inputs"),
        ({"token_repositories": ["o"]}, "not a repository of GitHub"),
        ({"token_repositories": ["*"]}, "not a repository of GitHub"),
        ({"token_repositories": ["*/*"]}, "not a repository of GitHub"),
        ({"token_repositories": ["o/r*"]}, "not a repository of GitHub"),
        ({"token_repositories": ["o/.."]}, "not a repository of GitHub"),
        ({"token_repositories": ["o/r/main"]}, "not a repository of GitHub"),
        ({"token_repositories": ["https://github.com/o/r"]}, "not a repository of GitHub"),
    ],
)
def test_impossible_settings_are_refused(written: dict[str, object], problem: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=problem):
        settings.Runbooks.model_validate(written)


def test_hosts_are_the_same_in_capitals() -> None:
    made = settings.Runbooks.model_validate({"allowed_domains": ["GitHub.com", "xn--bcher-kva.example", "localhost"]})
    assert made.allowed_domains == ["github.com", "xn--bcher-kva.example", "localhost"]
