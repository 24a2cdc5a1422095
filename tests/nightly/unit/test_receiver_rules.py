"""Rules of receivers that name chains: those that no chain can match are warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tarsy.config.model import deliveries
from tarsy.resources import namespaces
from tarsy.views import system_warnings

SERVED = namespaces.Served.from_names("tarsy", ["shop", "web"])


def webhook(rules: Sequence[dict[str, Any]], allowed: list[str] | None = None) -> deliveries.Receiver:
    return deliveries.Webhook.model_validate(
        {"type": "webhook", "url": "http://127.0.0.1:9", "allowed_namespaces": allowed, "rules": rules}
    )


@pytest.mark.parametrize(
    ("allowed", "rule", "chain_names", "warned"),
    [
        (None, {"chains": ["a"]}, {"tarsy": ["a"]}, False),
        (None, {"chains": ["a"]}, {"tarsy": [], "shop": ["a"], "web": ["a"]}, True),
        (["shop"], {"chains": ["a"]}, {"tarsy": ["a"], "shop": []}, False),
        (["shop"], {"chains": ["a"]}, {"tarsy": [], "shop": ["a"]}, False),
        (["*"], {"chains": ["a"], "namespaces": ["web"]}, {"tarsy": [], "shop": ["a"], "web": []}, True),
        (["*"], {"chains": ["a"]}, {"tarsy": [], "shop": []}, False),
        (["*"], {"namespaces": ["web"]}, {"tarsy": [], "shop": [], "web": []}, False),
        (["*"], {"chains": []}, {"tarsy": [], "shop": [], "web": []}, False),
    ],
    ids=[
        "its own namespace has it",
        "only namespaces that it may not hear of",
        "the operator's chain takes alerts of others",
        "a namespace's own chain",
        "only a namespace that the rule excludes",
        "a namespace that cannot be read",
        "a rule about all chains",
        "no chain is named",
    ],
)
def test_chain_is_searched_where_the_rule_can_hear_of_it(
    allowed: list[str] | None, rule: dict[str, Any], chain_names: dict[str, list[str]], warned: bool
) -> None:
    configured = {"team": webhook([rule], allowed)}
    rule_warnings = list(system_warnings.rule_warnings(configured, served=SERVED, chain_names=chain_names))
    assert [(warning.kind, warning.name) for warning in rule_warnings] == ([("receiver", "team")] if warned else [])
