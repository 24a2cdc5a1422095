"""Trusted headers of a request: where it comes from, and for which caller."""

from __future__ import annotations

import ipaddress
import time
from typing import Any, cast

import hypothesis
import pytest
from hypothesis import strategies as st
from starlette import requests
from tarsy.auth import credentials, identities, webhook_tokens
from tarsy.config.model import platforms
from tarsy.serve import problems, trusted_proxies

PROXY, FAR = "10.0.0.1", "203.0.113.7"
PROXIES = trusted_proxies.Proxies(platforms.API(trusted_proxies=["10.0.0.0/8", "fd00::/8"]).trusted_proxies)
TEXT = st.one_of(
    st.text(max_size=40).map(lambda text: text.encode(errors="replace")),
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"system:", b"tarsy:", b"jane", b",", b" ", b"\xc3\xb6", b"a" * 254, b"\t", b"@"])).map(
        b"".join
    ),
)
HEADER = st.tuples(
    st.sampled_from(
        ["X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups", "X-Forwarded-For", "Authorization"]
    ),
    TEXT,
)


def request_with(*headers: tuple[str, str | bytes], peer: str | None = PROXY) -> requests.Request:
    encoded = [(name.lower().encode(), value.encode() if isinstance(value, str) else value) for name, value in headers]
    return requests.Request({"type": "http", "client": peer and (peer, 1), "headers": encoded})


async def sender(*headers: tuple[str, str], method: str) -> identities.Identity:
    """Return the identity that a proxy names, without a question to any other authority."""
    nobody = cast("Any", None)
    settings = platforms.API(trusted_proxies=["10.0.0.0/8"])
    authority = identities.Identities(
        cluster=nobody,
        database=nobody,
        tokens=lambda: webhook_tokens.Tokens(owners={}),
        settings=settings,
        lookups=identities.Lookups(),
        clock=time.monotonic,
    )
    request = request_with(("X-Forwarded-User", "jane"), *headers)
    request.scope.update(
        {"method": method, "path": "/", "query_string": b"", "scheme": "http", "server": ("10.0.0.1", 80)}
    )
    return await authority.identify(request)


def origin(*headers: tuple[str, str | bytes], peer: str | None = PROXY) -> trusted_proxies.Origin:
    return PROXIES.origin(request_with(*headers, peer=peer))


@pytest.mark.parametrize(
    ("headers", "name", "groups"),
    [
        ([], None, ()),
        ([("X-Forwarded-User", "jane")], "jane", ()),
        ([("X-Forwarded-Email", "jane@example.com")], "jane@example.com", ()),
        ([("X-Forwarded-Email", "jane@example.com"), ("X-Forwarded-User", "jane")], "jane", ()),
        (
            [("X-Forwarded-User", "Jörg Ö"), ("X-Forwarded-Groups", "sre, on call,dev")],
            "Jörg Ö",
            ("sre", "on call", "dev"),
        ),
        ([("X-Forwarded-User", "a" * 253)], "a" * 253, ()),
        ([("X-Forwarded-User", "jane"), ("X-Forwarded-Email", ""), ("X-Forwarded-Groups", " ")], "jane", ()),
        ([("X-Forwarded-User", "\t"), ("X-Forwarded-Email", "jane@example.com")], "jane@example.com", ()),
    ],
)
def test_trusted_proxy_names_the_caller_and_groups(
    headers: list[tuple[str, str]], name: str | None, groups: tuple[str, ...]
) -> None:
    assert origin(*headers) == trusted_proxies.Origin(address=PROXY, name=name, groups=groups)


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        *(
            (header, value, 403)
            for header in ("X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups")
            for value in (
                "kubeadm:cluster-admins",
                "system:admin",
                "tarsy:proxied",
                "a" * 254,
                "a\x00b",
                "a\u200bb",
                "a\u00a0b",
                b"\xff",
                "\x7f",
            )
        ),
        ("X-Forwarded-Groups", "sre,system:masters", 403),
        ("X-Forwarded-Groups", "sre, \tsystem:masters", 403),
        ("X-Forwarded-Groups", "sre,,dev", 403),
        ("X-Forwarded-Groups", "sre,", 403),
        ("X-Forwarded-Groups", ",".join("a" * 257), 403),
    ],
)
def test_name_that_no_proxy_can_call_for_is_refused(header: str, value: str | bytes, status: int) -> None:
    with pytest.raises(problems.Problem) as refused:
        origin(("X-Forwarded-User", "jane") if header.endswith("Groups") else ("X-Forwarded-For", FAR), (header, value))
    assert (refused.value.status, refused.value.detail.partition(":")[0]) == (status, header)
    assert origin((header, value), peer=FAR) == trusted_proxies.Origin(address=FAR), (
        "nobody looks at a stranger's words"
    )


@pytest.mark.parametrize("header", ["X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups"])
def test_repeated_header_is_refused(header: str) -> None:
    with pytest.raises(problems.Problem) as refused:
        origin((header, "jane"), (header, "jane"))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        (FAR, ["198.51.100.1"], FAR),
        (PROXY, [], PROXY),
        (PROXY, [""], PROXY),
        (PROXY, [FAR], FAR),
        (PROXY, ["198.51.100.1, " + FAR], FAR),
        (PROXY, ["198.51.100.1", FAR + ", 10.1.1.1"], FAR),
        (PROXY, [FAR, "10.1.1.1", "10.2.2.2"], FAR),
        (PROXY, ["10.3.3.3, 10.4.4.4"], "10.3.3.3"),
        (PROXY, [FAR + ", garbage, 10.1.1.1"], "10.1.1.1"),
        (PROXY, ["garbage"], PROXY),
        (PROXY, [FAR + ":4711"], FAR),
        (PROXY, ["2001:db8::1"], "2001:db8::1"),
        (PROXY, ['"[2001:db8::1]:4711"'], "2001:db8::1"),
        (PROXY, ["::ffff:203.0.113.7"], FAR),
        ("::ffff:10.0.0.1", [FAR], FAR),
        ("fd00::1", [FAR], FAR),
        (PROXY, [f"{FAR}, " + ", ".join(["10.1.1.1"] * 32)], "10.1.1.1"),
        (None, [FAR], ""),
    ],
)
def test_a_request_comes_from_the_nearest_address_that_is_no_trusted_proxys(
    peer: str | None, forwarded: list[str], address: str
) -> None:
    assert origin(*(("X-Forwarded-For", value) for value in forwarded), peer=peer).address == address


@hypothesis.given(headers=st.lists(HEADER, max_size=6))
def test_headers_of_a_stranger_do_not_count_and_those_of_a_proxy_give_nothing_reserved(
    headers: list[tuple[str, bytes]],
) -> None:
    assert origin(*headers, peer=FAR) == trusted_proxies.Origin(address=FAR)
    try:
        caller = origin(*headers)
    except problems.Problem as problem:
        hypothesis.event(f"refused: {problem.status}")
        return
    ipaddress.ip_address(caller.address)
    for name in (*caller.groups, *([caller.name] if caller.name is not None else [])):
        assert 1 <= len(name) <= 253
        assert name.isprintable()
        assert not name.startswith(("system:", "kubeadm:", "tarsy:"))


@hypothesis.given(
    trusted=st.lists(st.sampled_from(["10.1.1.1", "10.2.2.2", "fd00::2"]), max_size=4),
    sender=st.ip_addresses().map(str),
    before=st.lists(st.ip_addresses().map(str), max_size=4),
)
def test_addresses_before_the_sender_change_nothing(trusted: list[str], sender: str, before: list[str]) -> None:
    """A caller that goes through a proxy can write any addresses there."""
    hypothesis.assume(origin(("X-Forwarded-For", sender)).address == origin(peer=sender).address)
    with_sender = origin(("X-Forwarded-For", ", ".join([sender, *trusted]))).address
    hypothesis.assume(not any(ipaddress.ip_address(with_sender) in network for network in PROXIES._trusted))
    assert origin(("X-Forwarded-For", ", ".join([*before, sender, *trusted]))).address == with_sender


@hypothesis.given(headers=st.lists(TEXT, max_size=2))
def test_bearer_token_is_read_only_from_a_single_header_with_bearer_scheme(headers: list[bytes]) -> None:
    for prefix in (b"", b"Bearer ", b"Basic "):
        token = credentials.bearer(request_with(*(("Authorization", prefix + value) for value in headers)))
        if prefix == b"Bearer " and len(headers) == 1:
            assert token == (headers[0].strip(b" \t") or None)
        elif prefix == b"Basic " or len(headers) != 1:
            assert token is None


@hypothesis.given(
    token=st.one_of(st.text(), st.lists(st.text(alphabet="eyJhwIiOjE3=_-"), min_size=3, max_size=3).map(".".join))
)
def test_expiry_of_token_without_expiry_claim_is_unknown(token: str) -> None:
    assert credentials.expiry(token) is None or isinstance(credentials.expiry(token), float)


@pytest.mark.parametrize(
    ("claims", "ends"),
    [("eyJleHAiOjE3MDB9", 1700.0), ("eyJleHAiOiIxIn0", None), ("e30", None), ("W10", None), ("eyJleHAiOk5hTn0", None)],
    ids=["a number", "a text", "nothing", "a list", "no number"],
)
def test_token_expiry_is_read_from_its_claims(claims: str, ends: float | None) -> None:
    assert credentials.expiry(f"x.{claims}.x") == ends


async def test_write_request_authenticated_by_proxy_must_be_json_from_same_origin() -> None:
    json = ("Content-Type", "application/json; charset=utf-8")
    page = (("Host", "tarsy.example"), ("Origin", "http://tarsy.example"))
    for method, headers in (("GET", ()), ("HEAD", ()), ("POST", (json, *page)), ("DELETE", (json, *page))):
        assert (await sender(*headers, method=method)).author == "jane"
    for method in ("POST", "DELETE"):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=application/json"):
            with pytest.raises(problems.Problem) as error:
                await sender(("Content-Type", kind), *page, method=method)
            assert error.value.status == 415
        with pytest.raises(problems.Problem, match="send Content-Type: application/json"):
            await sender(*page, method=method)
        for other in ((), (page[0], ("Origin", "http://evil.example")), (page[0], ("Origin", "null"))):
            with pytest.raises(problems.Problem, match=r"^Origin: "):
                await sender(json, *other, method=method)
