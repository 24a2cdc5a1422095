"""NetworkPolicies on the node, against the semantics that the API documents: which of all flows come through."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import charts, peers
from support.peers import OUTSIDE, Flow
from tarsy_dev import assets, children
from tarsy_dev.node import addresses, machine

Allowed = Callable[[Flow], bool]


@pytest.fixture(scope="module")
def outside(node: machine.Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server outside the cluster, on the same ports as the pods."""
    served = [place.replace(":", f":{addresses.OUTSIDE}:") for place in peers.PLACES]
    command = node.command([str(assets.program("peer")), "serve", *served], on_node=False)
    log = tmp_path_factory.mktemp("outside") / "peer.log"
    server = children.start(command, name="outside", log=log, cwd=Path("/"))
    yield
    server.check()
    server.end()


@pytest.fixture(scope="module")
def pods(node: machine.Machine, outside: None) -> Iterator[peers.Peers]:
    """Pods a and b in namespace x, pod a in namespace y."""
    for name in ("x", "y"):
        node.create_namespace(name)
        node.kubectl("label", "namespace", name, f"team={name}")
    made = {
        "x/a": peers.pod("a", "x", labels={"pod": "a", "tier": "front"}),
        "x/b": peers.pod("b", "x", labels={"pod": "b"}),
        "y/a": peers.pod("a", "y", labels={"pod": "a"}),
    }
    found = peers.Peers(node, made)
    found.start()
    yield found
    node.kubectl("delete", "namespace", "x", "y", "--wait=false")


def policy(*, namespace: str = "x", **spec: Any) -> dict[str, Any]:
    return {"kind": "NetworkPolicy", "metadata": {"namespace": namespace}, "spec": {"podSelector": {}} | spec}


A: dict[str, Any] = {"podSelector": {"matchLabels": {"pod": "a"}}}
B: dict[str, Any] = {"podSelector": {"matchLabels": {"pod": "b"}}}
Y: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "y"}}}


def within_x(flow: Flow) -> bool:
    return flow[0].startswith("x/") and flow[1].startswith("x/")


CASES: dict[str, tuple[list[dict[str, Any]], Allowed]] = {
    "without a policy everything is open": ([], lambda _: True),
    "a policy without ingress rules shuts its namespace's pods, for others only": (
        [policy()],
        lambda flow: not flow[1].startswith("x/"),
    ),
    "an empty ingress rule allows everything": ([policy(ingress=[{}])], lambda _: True),
    "without egress rules nothing goes out": (
        [policy(policyTypes=["Egress"])],
        lambda flow: not flow[0].startswith("x/"),
    ),
    "an empty egress rule allows everything, and egress rules isolate ingress as well": (
        [policy(egress=[{}])],
        lambda flow: not flow[1].startswith("x/"),
    ),
    "a pod selector alone is of the policy's own namespace": (
        [policy(**B, ingress=[{"from": [A]}])],
        lambda flow: flow[1] != "x/b" or flow[0] == "x/a",
    ),
    "an empty pod selector as a peer is the whole namespace": (
        [policy(ingress=[{"from": [{"podSelector": {}}]}])],
        lambda flow: not flow[1].startswith("x/") or within_x(flow),
    ),
    "a namespace selector alone is all of its pods": (
        [policy(**B, ingress=[{"from": [Y]}])],
        lambda flow: flow[1] != "x/b" or flow[0] == "y/a",
    ),
    "both selectors in one peer have to match": (
        [policy(**B, ingress=[{"from": [Y | B]}])],
        lambda flow: flow[1] != "x/b",
    ),
    "two peers are alternatives": (
        [policy(**B, ingress=[{"from": [Y, A]}])],
        lambda _: True,
    ),
    "expressions: In, NotIn, Exists and DoesNotExist": (
        [
            policy(
                ingress=[
                    {
                        "from": [
                            {
                                "namespaceSelector": {
                                    "matchExpressions": [{"key": "team", "operator": "In", "values": ["x", "z"]}]
                                },
                                "podSelector": {
                                    "matchExpressions": [
                                        {"key": "tier", "operator": "Exists"},
                                        {"key": "old", "operator": "DoesNotExist"},
                                        {"key": "pod", "operator": "NotIn", "values": ["b"]},
                                    ]
                                },
                            }
                        ]
                    }
                ]
            )
        ],
        lambda flow: not flow[1].startswith("x/") or flow[0] == "x/a",
    ),
    "a port without a protocol is TCP": (
        [policy(**B, ingress=[{"ports": [{"port": 80}]}])],
        lambda flow: flow[1] != "x/b" or flow[2] == "tcp:80",
    ),
    "a protocol without a port is all of its ports": (
        [policy(**B, ingress=[{"ports": [{"protocol": "UDP"}]}])],
        lambda flow: flow[1] != "x/b" or flow[2] == "udp:80",
    ),
    "a range of ports": (
        [policy(**B, ingress=[{"ports": [{"port": 81, "endPort": 90}]}])],
        lambda flow: flow[1] != "x/b" or flow[2] == "tcp:81",
    ),
    "the name of a port is that of the pod that is called": (
        [
            policy(**B, ingress=[{"ports": [{"port": "admin"}]}]),
            policy(**A, policyTypes=["Egress"], egress=[{"to": [Y], "ports": [{"port": "names", "protocol": "UDP"}]}]),
        ],
        lambda flow: (flow[1] != "x/b" or flow[2] == "tcp:81") and (flow[0] != "x/a" or flow[1:] == ("y/a", "udp:80")),
    ),
    "policies add up": (
        [
            policy(**B),
            policy(**B, ingress=[{"from": [Y], "ports": [{"port": 80}]}]),
            policy(**B, ingress=[{"from": [A]}]),
        ],
        lambda flow: flow[1] != "x/b" or flow[0] == "x/a" or (flow[0] == "y/a" and flow[2] == "tcp:80"),
    ),
    "both sides have to allow a connection": (
        [policy(**A, policyTypes=["Egress"], egress=[{"to": [B]}]), policy(**B, ingress=[{"ports": [{"port": 81}]}])],
        lambda flow: (flow[0] != "x/a" or flow[1] == "x/b") and (flow[1] != "x/b" or flow[2] == "tcp:81"),
    ),
    "an address block with an exception": (
        [
            policy(
                policyTypes=["Egress"],
                egress=[
                    {
                        "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "172.16.0.0/12"]}}],
                        "ports": [{"port": 80}],
                    }
                ],
            )
        ],
        lambda flow: not flow[0].startswith("x/") or flow[1:] == (OUTSIDE, "tcp:80"),
    ),
    "address blocks that overlap": (
        [
            policy(
                **A,
                policyTypes=["Egress"],
                egress=[{"to": [{"ipBlock": {"cidr": cidr}} for cidr in ("203.0.113.0/24", "203.0.113.1/32", "::/0")]}],
            )
        ],
        lambda flow: flow[0] != "x/a" or flow[1] == OUTSIDE,
    ),
    "a policy of another namespace is about that one's pods": (
        [policy(namespace="y", **B), policy(namespace="y", **A)],
        lambda flow: flow[1] != "y/a",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_policies_let_through_what_the_api_documents(node: machine.Machine, pods: peers.Peers, case: str) -> None:
    policies, allowed = CASES[case]
    made = [
        one | {"apiVersion": "networking.k8s.io/v1", "metadata": one["metadata"] | {"name": f"policy-{number}"}}
        for number, one in enumerate(policies)
    ]
    if made:
        node.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    try:
        pods.wait_for(pods.every(allowed))
    finally:
        for namespace in ("x", "y"):
            node.kubectl("delete", "networkpolicy", "--all", namespace=namespace)


def test_policies_follow_labels_and_new_pods(node: machine.Machine, pods: peers.Peers) -> None:
    """A pod that gets or loses a label is let in or kept out at once; so is one that comes later."""
    only_a = policy(**B, ingress=[{"from": [A]}])
    only_a |= {"apiVersion": "networking.k8s.io/v1", "metadata": {"name": "only-a", "namespace": "x"}}
    node.kubectl("create", "-f", "-", input=json.dumps(only_a))
    try:
        pods.wait_for(pods.every(lambda flow: flow[1] != "x/b" or flow[0] == "x/a"))
        node.kubectl("label", "pod", "a", "pod=other", "--overwrite", namespace="x")
        pods.wait_for(pods.every(lambda flow: flow[1] != "x/b"))
        later = peers.Peers(node, {"x/c": peers.pod("c", "x", labels={"pod": "a"})})
        later.start()
        address = node.kubectl("get", "pod", "b", "-o", "jsonpath={.status.podIP}", namespace="x")
        assert later.dial("x/c", f"tcp:{address}:80") == ["b"]
    finally:
        node.kubectl("label", "pod", "a", "pod=a", "--overwrite", namespace="x")
        node.kubectl("delete", "networkpolicy", "only-a", namespace="x")


def test_probes_and_the_node_itself_are_never_shut_out(node: machine.Machine, pods: peers.Peers) -> None:
    """A pod whose namespace lets nothing in is ready by a probe of the kubelet's all the same."""
    node.create_namespace("shut")
    shut = policy(namespace="shut", policyTypes=["Ingress", "Egress"])
    shut |= {"apiVersion": "networking.k8s.io/v1", "metadata": {"name": "all", "namespace": "shut"}}
    node.kubectl("create", "-f", "-", input=json.dumps(shut))
    probed = peers.pod("probed", "shut", labels={})
    probed["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": "web"}, "periodSeconds": 1}
    server = peers.Peers(node, {"shut/probed": probed})
    server.start()
    address = node.kubectl("get", "pod", "probed", "-o", "jsonpath={.status.podIP}", namespace="shut")
    assert pods.dial("y/a", f"tcp:{address}:80") == ["timeout"]
    assert node.run([str(assets.program("peer")), "dial", f"tcp:{address}:80"]) == "probed\n"
    node.kubectl("delete", "namespace", "shut", "--wait=false")


MONITORING: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "y"}}}
METRICS_CASES = {
    "nobody scrapes": ({}, set[str]()),
    "a PodMonitor": ({"podMonitor": {"enabled": True}}, {"x/a", "y/a"}),
    "named callers": ({"podMonitor": {"enabled": True}, "scrapeFrom": [MONITORING]}, {"y/a"}),
}


@pytest.mark.parametrize("case", METRICS_CASES)
def test_port_of_metrics_is_open_to_those_who_scrape_and_the_port_of_the_api_stays_as_it_is(
    node: machine.Machine, pods: peers.Peers, case: str
) -> None:
    """The chart's own policies, on pods with the labels and the names of ports of its processes, in split mode."""
    values, scrapers = METRICS_CASES[case]
    release = "scraped"
    rendered = charts.render({"mode": "split", "metrics": values}, name="tarsy", namespace=release)
    node.create_namespace(release)
    processes = {}
    for component in ("api", "controller", "worker"):
        template = charts.pod_templates(rendered)[f"Deployment/tarsy-{component}"]
        process = peers.pod(component, release, labels=template["metadata"]["labels"])
        container = process["spec"]["containers"][0]
        container["ports"] = template["spec"]["containers"][0]["ports"]
        container["args"] = ["serve", *(f"tcp:{port['containerPort']}" for port in container["ports"])]
        processes[f"{release}/{component}"] = process
    policies = [
        one | {"metadata": {"name": one["metadata"]["name"], "namespace": release}}
        for one in rendered
        if one["kind"] == "NetworkPolicy"
    ]
    try:
        peers.Peers(node, processes).start()
        node.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": policies}))
        addresses_of = {
            name: node.kubectl(
                "get", "pod", pod["metadata"]["name"], "-o", "jsonpath={.status.podIP}", namespace=release
            )
            for name, pod in processes.items()
        }
        targets = {
            (name, port["name"]): f"tcp:{addresses_of[name]}:{port['containerPort']}"
            for name, pod in processes.items()
            for port in pod["spec"]["containers"][0]["ports"]
        }
        assert {name for _, name in targets} >= {"http"}
        for caller in ("x/a", "y/a"):
            expected = {
                target
                for target in targets
                if target == (f"{release}/api", "http") or (target[1] == "metrics" and caller in scrapers)
            }
            deadline = time.monotonic() + 15
            while (reached := reachable(pods, caller, targets)) != expected:
                assert time.monotonic() < deadline, (caller, reached ^ expected)
    finally:
        node.kubectl("delete", "namespace", release)


def reachable(pods: peers.Peers, caller: str, targets: Mapping[tuple[str, str], str]) -> set[tuple[str, str]]:
    """The targets that answer a pod."""
    answers = pods.dial(caller, *targets.values())
    return {target for target, answer in zip(targets, answers, strict=True) if answer not in ("timeout", "refused")}
