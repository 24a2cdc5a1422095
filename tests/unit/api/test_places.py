"""Who counts as one address, and who as many."""

from __future__ import annotations

import ipaddress
from typing import Any, cast

import pytest
from tarsy.api import protocol

SHARED = [ipaddress.ip_network("10.0.12.0/24"), ipaddress.ip_network("fd00::/8")]


def connection() -> Any:
    return cast("protocol.Protocol", object())


@pytest.mark.parametrize("host", ["10.0.12.7", "::ffff:10.0.12.7", "fd00::1", "127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_shared_address_takes_no_places(host: str) -> None:
    places = protocol.Places(of_one=1, shared=SHARED)
    assert [len(places.take(host, connection())) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2", "fe81::1"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.3"),
        ("", "", "192.0.2.1"),
    ],
)
def test_places_are_an_address_s_or_a_network_s_and_come_back(one: str, same: str, other: str) -> None:
    places = protocol.Places(of_one=1, shared=SHARED)
    first, second = connection(), connection()
    places.take(one, first)
    assert set(places.take(same, second)) == {first, second}
    assert len(places.take(other, connection())) == 1
    places.give_back(one, second)
    places.give_back(one, second)
    assert set(places.take(one, first)) == {first}
    places.give_back(same, first)
    assert len(places.take(same, second)) == 1
