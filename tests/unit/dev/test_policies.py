"""NetworkPolicies as isolations and as rules; `tests/node/test_policies.py` has them enforced on a real node."""

from __future__ import annotations

from typing import Any

import pytest
from tarsy_dev.node import policies, rules
from tarsy_dev.node.policies import Allowed, Block, Isolation, Ports

NAMESPACES: list[dict[str, Any]] = [{"metadata": {"name": "x", "labels": {"team": "x"}}}, {"metadata": {"name": "y"}}]


def pod(
    address: str, *, namespace: str = "x", phase: str = "Running", host: bool = False, **labels: str
) -> dict[str, Any]:
    ports = [{"name": "web", "containerPort": 80}, {"name": "names", "containerPort": 53, "protocol": "UDP"}]
    return {
        "metadata": {"namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": ports}], "hostNetwork": host},
        "status": {"podIP": address, "phase": phase},
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "x"}, "spec": {"podSelector": {}} | spec}


def isolations(*made: dict[str, Any], pods: list[dict[str, Any]] | None = None) -> list[Isolation]:
    return policies.isolations(pods or [pod("10.0.0.1"), pod("10.0.0.2", namespace="y")], NAMESPACES, made)


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        ({}, ["Ingress"]),
        ({"egress": []}, ["Ingress"]),
        ({"egress": [{}]}, ["Ingress", "Egress"]),
        ({"policyTypes": ["Egress"]}, ["Egress"]),
        ({"policyTypes": ["Egress"], "ingress": [{}]}, ["Egress"]),
    ],
)
def test_policy_isolates_in_the_directions_that_it_names(spec: dict[str, Any], directions: list[str]) -> None:
    assert [each.direction for each in isolations(policy(**spec))] == directions


def test_pods_that_have_ended_or_share_the_nodes_network_are_neither_isolated_nor_peers() -> None:
    pods = [
        pod("10.0.0.1"),
        pod("10.0.0.2", phase="Succeeded"),
        pod("10.0.0.3", phase="Failed"),
        pod("172.30.0.2", host=True),
        pod(""),
    ]
    (found,) = isolations(policy(ingress=[{"from": [{"podSelector": {}}]}]), pods=pods)
    assert found == Isolation("10.0.0.1", "Ingress", (Allowed((Block("10.0.0.1"),), None),))


@pytest.mark.parametrize(
    ("requirement", "labels", "is_met"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"k": "b"}, True),
        ({"operator": "In", "values": ["a"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
        ({"operator": "Exists"}, {"k": ""}, True),
        ({"operator": "DoesNotExist"}, {"k": ""}, False),
    ],
)
def test_expressions_of_a_selector(requirement: dict[str, Any], labels: dict[str, str], *, is_met: bool) -> None:
    assert policies.matches({"matchExpressions": [{"key": "k", **requirement}]}, labels) == is_met


def test_name_of_a_port_is_looked_up_in_the_pod_that_is_called_with_its_protocol() -> None:
    named = [{"port": "web"}, {"port": "names", "protocol": "UDP"}, {"port": "names"}, {"port": "unknown"}]
    (found,) = isolations(policy(ingress=[{"ports": named}]))
    assert [each.ports for each in found.allowed] == [(Ports("TCP", 80, 80),), (Ports("UDP", 53, 53),), (), ()]


def test_rules_replace_all_earlier_ones_and_drop_what_no_policy_allows() -> None:
    isolation = Isolation(
        "10.0.0.1",
        "Egress",
        (
            Allowed(
                (Block("10.0.0.2"), Block("10.0.0.0/30"), Block("0.0.0.0/0", ("10.0.0.0/8",))), (Ports("TCP", 80, 90),)
            ),
            Allowed(None, (Ports("UDP", 53, 53),)),
            Allowed((), None),
        ),
    )
    assert rules.ruleset([isolation]).splitlines() == [
        "table inet tarsy-policies",
        "delete table inet tarsy-policies",
        "table inet tarsy-policies {",
        "  chain egress-10.0.0.1 {",
        "    ip daddr { 10.0.0.0/30 } meta l4proto tcp th dport 80-90 return",
        "    ip daddr 0.0.0.0/0 ip daddr != { 10.0.0.0/8 } meta l4proto tcp th dport 80-90 return",
        "    meta l4proto udp th dport 53-53 return",
        "    drop",
        "  }",
        "  chain forward {",
        "    type filter hook forward priority 0; policy accept;",
        "    ct state established,related accept",
        "    ip saddr . ip daddr { 10.0.0.1 . 10.0.0.1 } accept",
        "    ip saddr vmap { 10.0.0.1 : jump egress-10.0.0.1 }",
        "  }",
        "}",
    ]
    assert "saddr" not in rules.ruleset([])
