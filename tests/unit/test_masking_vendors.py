"""Tokens that have a vendor's look are masked bare, wherever they stand; what only begins like one is not."""

from __future__ import annotations

import random
import string

import pytest
from tarsy.masking import masker, vendors

MASKER = masker.Masker(groups=["security"])
DRAWN_FROM = {
    "capitals and digits": string.ascii_uppercase + "234567",
    "hex": "0123456789abcdef",
    "word": string.ascii_letters + string.digits + "-_",
}


@pytest.mark.parametrize("fact", vendors.FACTS, ids=lambda fact: f"{fact.vendor} {fact.prefixes}")
def test_a_token_of_each_vendor_is_masked(fact: vendors.Fact) -> None:
    chance = random.Random(9)  # noqa: S311 - a fixed seed, no secret
    letters = DRAWN_FROM.get(fact.alphabet, string.ascii_letters + string.digits)
    for prefix in fact.prefixes.split():
        token = prefix + "".join(chance.choices(letters, k=fact.length - 2)) + "x7".replace("x", letters[0])
        for text in (f"saw {token} once", f'["{token}"]', f"a\n{token}\nb", f'"log\\n{token}\\n"'):
            masked = MASKER.text(text)
            assert token[-8:] not in masked, text
            assert MASKER.text(masked) == masked


def test_more_than_a_hundred_vendors_are_known() -> None:
    assert len({fact.vendor for fact in vendors.FACTS}) > 100


@pytest.mark.parametrize(
    "text",
    [
        "pod/sdk-go-v2-credentials-provider-7f9c9d6b5-xk2lp is ready",
        "api-server-deployment-staging-eu-west-1-7f9c9d6b5-xk2lp",
        "pull sha256:9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c",
        "uid 4bf92f35-77b3-4da6-a3ce-929d0e0e4736 at 9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c",
        "test_this_function_does_what_it_should_do_2 and live_after_the_restart_of_node_3",
        "sk-learn, pat.example.com, s.append(x), SG.example, re_match_everything_in_group_1",
    ],
)
def test_what_only_begins_like_a_token_stays(text: str) -> None:
    assert MASKER.text(text) == text
