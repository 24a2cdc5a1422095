"""Answers that are kept: asked for once, for as long as they hold, and never where there was an error."""

from __future__ import annotations

import asyncio

import pytest
from tarsy.auth import single_flight


class Oracle:
    """Answers as it is told, and counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0.0
        self.answer: single_flight.Answer[str] | Exception = single_flight.Answer(value="yes", seconds=60)
        self.open = asyncio.Event()
        self.open.set()

    def clock(self) -> float:
        return self.now

    async def __call__(self) -> single_flight.Answer[str]:
        self.asked += 1
        await self.open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
async def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def answers(oracle: Oracle) -> single_flight.Cache[str]:
    return single_flight.Cache(within=5, clock=oracle.clock)


async def turns(count: int = 9) -> None:
    """Let all others have theirs."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("answer", "seconds"), [("yes", 60), (None, 10)])
async def test_an_answer_is_asked_for_again_when_it_no_longer_holds(
    oracle: Oracle, answers: single_flight.Cache[str], answer: str | None, seconds: float
) -> None:
    oracle.answer = single_flight.Answer(value=answer, seconds=seconds)
    for now, asked in ((0, 1), (seconds * 0.6, 1), (seconds, 2), (2 * seconds, 3)):
        oracle.now = now
        assert await answers.get(b"k", oracle, caller="x") == answer
        assert answers.cached(b"k", oracle) == answer
        assert oracle.asked == asked
    assert answers.cached(b"another", oracle) is None


async def test_approval_in_use_is_renewed_before_it_expires_and_delays_no_caller(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    assert await answers.get(b"k", oracle, caller="x") == "yes"
    oracle.open.clear()
    for oracle.now in (39, 40, 41, 59):
        assert await answers.get(b"k", oracle, caller="x") == answers.cached(b"k", oracle) == "yes"
        await turns()
        assert oracle.asked == (1 if oracle.now < 40 else 2), "once, however long it takes"
    oracle.open.set()
    await turns()
    for oracle.now, asked in ((60, 2), (79.9, 2), (80, 3)):  # it was asked at 40
        assert answers.cached(b"k", oracle) == "yes"
        await turns()
        assert oracle.asked == asked
    oracle.now = 80 + 60
    assert answers.cached(b"k", oracle) is None, "nobody has used it"
    oracle.answer = single_flight.Answer(value=None, seconds=10)
    for oracle.now, asked in ((200, 4), (206.7, 4), (209.9, 4), (210, 5)):
        assert await answers.get(b"k", oracle, caller="x") is None
        await turns()
        assert oracle.asked == asked, "a no is not renewed"


async def test_approval_is_never_used_after_its_expiry_even_if_its_renewal_fails(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    await answers.get(b"k", oracle, caller="x")
    oracle.answer = RuntimeError("away")
    used = [40 + tenth / 10 for tenth in range(200)]
    for oracle.now in used:
        assert answers.cached(b"k", oracle) == "yes"
        await turns()
    assert 2 < oracle.asked < 12, "not with each use"
    oracle.now = 60
    assert answers.cached(b"k", oracle) is None
    with pytest.raises(RuntimeError, match="away"):
        await answers.get(b"k", oracle, caller="x")

    oracle.answer = single_flight.Answer(value="yes", seconds=60)
    await answers.get(b"k", oracle, caller="x")
    oracle.answer = single_flight.Answer(value=None, seconds=10)
    oracle.now += 41
    assert answers.cached(b"k", oracle) == "yes", "as was said then"
    await turns()
    assert answers.cached(b"k", oracle) is None, "a no that came since counts at once"
    assert await answers.get(b"k", oracle, caller="x") is None


async def test_concurrent_callers_share_one_lookup_and_a_cancelled_caller_affects_no_other(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    oracle.open.clear()
    asking = [asyncio.create_task(answers.get(b"k", oracle, caller="x")) for _ in range(20)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    oracle.open.set()
    assert await asyncio.gather(*asking[1:]) == ["yes"] * 19
    assert asking[0].cancelled()
    assert oracle.asked == 1


async def test_lookup_error_is_raised_to_waiting_callers_and_not_cached(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    oracle.answer = RuntimeError("away")
    outcomes = await asyncio.gather(*(answers.get(b"k", oracle, caller="x") for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    oracle.answer = single_flight.Answer(value="yes", seconds=60)
    assert await answers.get(b"k", oracle, caller="x") == "yes"
    assert oracle.asked == 2


async def test_answer_without_lifetime_is_given_only_to_waiting_callers(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    oracle.answer = single_flight.Answer(value="yes", seconds=0)
    for asked in (1, 2):
        assert await answers.get(b"k", oracle, caller="x") == "yes"
        assert oracle.asked == asked
        assert answers.cached(b"k", oracle) is None


@pytest.mark.leaps
async def test_slow_lookup_times_out_together_with_the_lookups_waiting_behind_it(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "LOOKUPS_MAX", 2)
    answers = single_flight.Cache[str](within=0.05, clock=oracle.clock)
    oracle.open.clear()
    asking = [asyncio.create_task(answers.get(b"%d" % key, oracle, caller=str(key))) for key in range(6)]
    await turns()
    assert oracle.asked == 2, "the others wait for their turn"
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TimeoutError] * 6


async def test_caller_with_many_lookups_takes_no_slot_of_another_or_a_known_caller(
    oracle: Oracle, answers: single_flight.Cache[str]
) -> None:
    await answers.get(b"jane", oracle, caller="here")
    oracle.open.clear()
    oracle.now = 50
    many = [asyncio.create_task(answers.get(b"%d" % key, oracle, caller="here")) for key in range(100)]
    await turns()
    assert oracle.asked == 1 + single_flight.LOOKUPS_PER_CALLER
    elsewhere = asyncio.create_task(answers.get(b"joe", oracle, caller="there"))
    assert answers.cached(b"jane", oracle) == "yes"
    await turns()
    assert oracle.asked == 1 + single_flight.LOOKUPS_PER_CALLER + 2, "about Joe and about Jane"
    others = [asyncio.create_task(answers.get(b"x%d" % key, oracle, caller=str(key))) for key in range(100)]
    await turns()
    assert oracle.asked == 1 + single_flight.LOOKUPS_MAX + 1
    oracle.open.set()
    assert await asyncio.gather(*many, elsewhere, *others) == ["yes"] * 201
    assert not answers._caller_slots, "nobody is remembered for having asked"


async def test_cached_refusals_evict_no_cached_approval(
    oracle: Oracle, answers: single_flight.Cache[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "ANSWERS_MAX", 3)
    await answers.get(b"jane", oracle, caller="x")
    oracle.answer = single_flight.Answer(value=None, seconds=10)
    for key in range(10):
        assert await answers.get(b"%d" % key, oracle, caller="x") is None
    assert answers.cached(b"jane", oracle) == "yes"
    assert (len(answers._positive), len(answers._negative)) == (1, 3)
