"""Rules of receivers that name chains, beside the chains of a real API server, as the warnings of the system show."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import manifests, queue
from tarsy.api.system import overview
from tarsy.config.check import chain_index
from tarsy.config.model import deliveries
from tarsy.kube import client
from tarsy.resources import namespaces
from tarsy.store.base import databases
from tarsy.views import system_warnings
from tarsy_dev.controlplane import Administrator

SERVED = namespaces.Served.from_names("tarsy", ["shop", "web"])


def webhook(rules: Sequence[dict[str, Any]], allowed: list[str] | None = None) -> deliveries.Receiver:
    return deliveries.Webhook.model_validate(
        {"type": "webhook", "url": "http://127.0.0.1:9", "allowed_namespaces": allowed, "rules": rules}
    )


async def test_chain_of_a_rule_that_does_not_exist_is_a_warning_until_it_does(
    plane: Administrator, admin: client.Cluster, database: databases.Database
) -> None:
    own, other = admin.served.own, f"{admin.served.own}-other"
    plane.create_namespace(other)
    platform = queue.PLATFORM.model_copy(
        update={
            "deliveries": {
                "team": webhook([{"chains": ["own", "misspelt"]}, {"severities": ["critical"]}]),
                "both": webhook([{"chains": ["elsewhere", "misspelt"]}], ["*"]),
            }
        }
    )
    system = overview.Overview(
        cluster=replace(admin, served=namespaces.Served.from_names(own, [other])),
        database=database,
        platform=lambda: platform,
        index=functools.partial(chain_index.ChainIndex, platform=platform),
    )

    async def warned() -> list[str]:
        listed_warnings = (await system.warnings(listable=[])).items
        return [f"{warning.name}: {warning.message}" for warning in listed_warnings if warning.kind == "receiver"]

    plane.create(manifests.chain("A", name="own"), namespace=own)
    plane.create(manifests.chain("A", name="elsewhere"), namespace=other)
    assert await warned() == [
        f"both: rules.0.chains: 'misspelt' matches nothing: no chain has that name in namespaces {own}, {other}",
        f"team: rules.0.chains: 'misspelt' matches nothing: no chain has that name in namespace {own}",
    ]
    plane.create(manifests.chain("B", name="misspelt"), namespace=other)
    assert [line.partition(":")[0] for line in await warned()] == ["team"], "one that may not hear of that namespace"
    plane.create(manifests.chain("B", name="misspelt"), namespace=own)
    assert await warned() == []


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
