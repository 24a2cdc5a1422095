"""Intervals by scenario, and the comparison of two evaluations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.evaluation import statistics

SHARES = st.floats(0, 1, allow_subnormal=False)


@given(st.lists(SHARES, min_size=1, max_size=40))
def test_a_share_is_within_its_interval_and_that_within_0_and_1(shares: list[float]) -> None:
    share = statistics.share(shares)
    assert 0 <= share.low <= share.value + 1e-9
    assert share.value - 1e-9 <= share.high <= 1


def test_a_few_scenarios_that_are_all_right_prove_little() -> None:
    assert statistics.share([1.0] * 3).low < 0.5
    assert statistics.share([]) == statistics.Share(value=0.0, low=0.0, high=1.0)


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), SHARES, max_size=20))
def test_the_same_results_are_noise(shares: dict[str, float]) -> None:
    change = statistics.difference(shares, shares)
    assert (change.value, change.verdict) == (0, "noise")


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), SHARES, max_size=20), st.data())
def test_swapped_comparison_has_opposite_difference_and_never_better_twice(
    before: dict[str, float], data: st.DataObject
) -> None:
    after = {name: data.draw(SHARES) for name in before}
    there, back = statistics.difference(before, after), statistics.difference(after, before)
    assert there.value == pytest.approx(-back.value)
    assert not there.verdict == back.verdict == "better"


def test_a_change_of_all_scenarios_is_no_noise_if_they_are_enough() -> None:
    before = {str(number): 0.0 for number in range(8)}
    after = dict.fromkeys(before, 1.0)
    assert statistics.difference(before, after).verdict == "better"
    assert statistics.difference(after, before).verdict == "worse"
    few = list(before)[:5]
    assert statistics.difference(dict.fromkeys(few, 0.0), dict.fromkeys(few, 1.0)).verdict == "noise"


def test_scenarios_of_both_evaluations_alone_are_compared() -> None:
    change = statistics.difference({"a": 0.0, "b": 1.0}, {"b": 1.0, "c": 0.0})
    assert (change.scenarios, change.value) == (1, 0.0)
