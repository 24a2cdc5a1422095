"""How many requests a caller may make, by a clock that the test turns, and how many are served at once."""

from __future__ import annotations

import asyncio

import hypothesis
import pytest
from hypothesis import strategies as st
from support import clocks
from tarsy.serve import limits, problems


def test_a_caller_has_a_burst_and_then_so_many_a_second_and_others_have_their_own() -> None:
    clock = clocks.Clock(1000.0)
    limited = limits.Rates(per_second=2, burst=3, clock=clock)
    assert [limited.take("jane") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limited.take("joe") == 0
    clock.now += 0.5
    assert [limited.take("jane") for _ in range(2)] == [0, 0.5]
    clock.now += 3600
    assert [limited.take("jane") for _ in range(4)] == [0, 0, 0, 0.5], "silence is saved up to a burst"


def test_returned_request_can_be_made_again_and_never_exceeds_the_burst() -> None:
    limited = limits.Rates(per_second=2, burst=3, clock=clocks.Clock(1000.0))
    assert [limited.take("jane") for _ in range(4)] == [0, 0, 0, 0.5]
    limited.give_back("jane")
    assert [limited.take("jane") for _ in range(2)] == [0, 0.5]
    for _ in range(9):
        limited.give_back("jane")
    assert [limited.take("jane") for _ in range(4)] == [0, 0, 0, 0.5]


@hypothesis.given(
    per_second=st.integers(1, 50),
    burst=st.integers(1, 20),
    waits=st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=200),
)
def test_caller_is_limited_to_burst_and_rate_and_gets_a_request_after_the_named_wait(
    per_second: int, burst: int, waits: list[float]
) -> None:
    clock = clocks.Clock(1000.0)
    limited = limits.Rates(per_second=per_second, burst=burst, clock=clock)
    started, granted, missing = clock.now, 0, 0.0
    for wait in waits:
        clock.now += wait
        missing = limited.take("jane")
        assert missing >= 0
        granted += not missing
        assert granted <= burst + (clock.now - started) * per_second + 1e-6
    clock.now += missing + 1e-6
    assert limited.take("jane") == 0 or not missing


def test_callers_are_remembered_up_to_their_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLERS_MAX", 3)
    limited = limits.Rates(per_second=1, burst=1, clock=clocks.Clock(1000.0))
    for caller in ("old", "a", "b", "c"):
        assert limited.take(caller) == 0
    assert [limited.take(caller) for caller in ("a", "b", "c")] == [1, 1, 1]
    assert limited.take("old") == 0, "forgotten, as it would be by a clock"
    assert len(limited._buckets) == 3


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_all_addresses_of_an_ipv6_network_count_as_one_caller(address: str, network: str) -> None:
    assert limits.network(address) == network


@pytest.mark.leaps
async def test_gate_lets_requests_through_while_there_are_slots_and_refuses_the_others_after_a_while() -> None:
    gate, go, inside = limits.Gate(3), asyncio.Event(), []

    async def request(slots: int, seconds: float = 60.0) -> None:
        async with gate.slot(seconds=seconds, refusal="too many", slots=slots):
            inside.append(slots)
            await go.wait()

    async def ensure_refused(slots: int) -> None:
        with pytest.raises(problems.Problem, match="too many") as refusal:
            await request(slots, seconds=0.01)
        assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "1"})

    first = asyncio.create_task(request(2))
    await asyncio.sleep(0)
    await ensure_refused(2)
    last = asyncio.create_task(request(1))
    await asyncio.sleep(0)
    await ensure_refused(1)
    assert inside == [2, 1], "the refused one has given back the slot that it had got"
    waiting = [asyncio.create_task(request(2)) for _ in range(3)]
    await asyncio.sleep(0)
    await ensure_refused(1)
    go.set()
    await asyncio.gather(first, last, *waiting)
    await request(3, seconds=0.01)
    assert inside == [2, 1, 2, 2, 2, 3]
