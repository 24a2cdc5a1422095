from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pydantic
import pytest
import yaml
from tarsy.resources import base, chains, investigations, schema

CRDS = {"agentchains": schema.agent_chain, "alertinvestigations": schema.alert_investigation}


def nodes(node: dict[str, Any], at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All nodes of a structural schema, with their places."""
    yield at, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{at}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{at}[]")


def root(crd: dict[str, Any]) -> dict[str, Any]:
    root_schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root_schema


@pytest.mark.parametrize("kind", CRDS)
def test_every_string_and_list_is_bounded_and_every_list_declares_its_merge_type(kind: str) -> None:
    checked = 0
    for at, node in nodes(root(CRDS[kind]()), kind):
        match node["type"]:
            case "string":
                assert node.keys() & {"enum", "maxLength"} or node.get("format") == "date-time", at
                checked += 1
            case "array":
                assert "maxItems" in node, at
                assert node["x-kubernetes-list-type"] in ("atomic", "set", "map"), at
                checked += 1
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "allOf", "$defs", "title"}, at
    assert checked >= 10


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(str, id="a string without a bound"),
        pytest.param(int | bool, id="a union"),
        pytest.param(Annotated[list[str], pydantic.Field(max_length=3)], id="a list of strings without a bound"),
        pytest.param(tuple[int, int], id="a tuple"),
        pytest.param(dict[str, Any], id="a map of anything"),
        pytest.param(Any, id="anything"),
    ],
)
def test_type_not_expressible_in_structural_schema_is_refused_with_its_location(kind: Any) -> None:
    model = pydantic.create_model("Model", field=(kind, ...))
    with pytest.raises(schema.UnstructuralError, match=r"^spec\.field"):
        schema.crd_schema(model, at="spec")


def test_the_fields_of_an_investigations_spec_are_immutable_but_for_what_stops_and_expires_it() -> None:
    spec = root(schema.alert_investigation())["properties"]["spec"]
    fixed = [rule["fieldPath"] for rule in spec["x-kubernetes-validations"] if "cannot be changed" in rule["message"]]
    mutable = {"cancel", "suspend", "ttlSecondsAfterFinished"}
    assert sorted(fixed) == sorted(f".{name}" for name in spec["properties"].keys() - mutable)


CHAIN = """
alertTypes: [KubePodCrashLooping]
onResolved: Cancel
llmProvider: google-default
maxIterations: 10
activeDeadlineSeconds: 600
description: Looks at crashes.
failurePolicy: Stop
iterationStrategy: react
executiveSummary: {enabled: false, llmProvider: other}
chat: {enabled: true, agent: DiskAgent, llmProvider: other, maxIterations: 5}
agents:
- {name: DiskAgent, mcpServers: [k8s], customInstructions: Look at disks., llmProvider: other, maxIterations: 3,
   iterationStrategy: native-thinking}
stages:
- {name: data-collection, agent: KubernetesAgent, mcpServers: [], timeoutSeconds: 60,
   tools: {allow: ["k8s.*"], deny: ["*.delete"]}}
- {name: analysis, agent: KubernetesAgent, replicas: 3, successPolicy: all, iterationStrategy: react-stage,
   synthesis: {agent: DiskAgent, llmProvider: other, iterationStrategy: synthesis-native-thinking}}
- {name: opinions, successPolicy: any, llmProvider: other,
   agents: [{name: DiskAgent}, {name: DiskAgent, llmProvider: google-default, maxIterations: 7, mcpServers: [],
   tools: {allow: []}, iterationStrategy: react-final-analysis}]}
"""
INVESTIGATION = """
alertType: KubePodCrashLooping
alertDataRef: {name: 4f1d, size: 70000}
cancel: false
severity: critical
runbookURL: "https://runbooks/crash"
source: {type: alertmanager, receiver: hook, groupKey: "{}", generatorURL: "http://p", externalURL: "http://a",
  receipt: 0f1e2d3c}
labels: {alertname: KubePodCrashLooping}
fingerprint: 6eb8c03418906421
startsAt: "2026-11-21T20:29:42.654000Z"
"""
CHAIN_STATUS = """
observedGeneration: 2
hash: 0123456789abcdef
conditions:
- {type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-11-21T20:29:42Z",
   observedGeneration: 2}
"""


@pytest.mark.parametrize(
    ("kind", "text"), [(chains.Spec, CHAIN), (investigations.Spec, INVESTIGATION), (chains.Status, CHAIN_STATUS)]
)
def test_an_object_is_read_and_written_without_loss(kind: type[base.Model], text: str) -> None:
    written = yaml.safe_load(text)
    read = kind.model_validate(written)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == written
    assert kind.model_validate_json(read.model_dump_json(by_alias=True)) == read


@pytest.mark.parametrize(
    ("block", "summarised", "questions"),
    [
        ({}, True, True),
        ({"executiveSummary": {}, "chat": {}}, True, True),
        ({"executiveSummary": {"enabled": False}}, False, True),
        ({"chat": {"enabled": False}}, True, False),
    ],
)
def test_summary_and_chat_are_there_unless_they_are_switched_off(
    block: dict[str, Any], summarised: bool, questions: bool
) -> None:
    spec = chains.Spec.model_validate({"alertTypes": ["A"], "stages": [{"name": "a", "agent": "A"}], **block})
    assert (spec.is_summarised, spec.takes_questions) == (summarised, questions)


def opinions(*names: str, **fields: Any) -> chains.Stage:
    return chains.Stage.model_validate({"name": "opinions", "agents": [{"name": name} for name in names], **fields})


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (chains.Stage(name="a", agent="A"), "A"),
        (chains.Stage(name="a", agent="A", replicas=1), "A"),
        (chains.Stage(name="a", agent="A", replicas=3), "A-1 A-2 A-3"),
        (opinions("A"), "A"),
        (opinions("A", "B"), "A B"),
        (opinions("A", "B", "A"), "A-1 B A-2"),
        (opinions("A", "A-1", "A"), "A-2 A-1 A-3"),
        (opinions("A-1-1", "A-1", "A-1", "A", "A"), "A-1-1 A-1-2 A-1-3 A-1 A-2"),
    ],
)
def test_agents_with_same_name_are_numbered_and_shown_names_are_unique(stage: chains.Stage, expected: str) -> None:
    assert " ".join(stage.shown_names) == expected
    assert len(set(stage.shown_names)) == len(stage.members)


@pytest.mark.parametrize("field", ["agents", "failurePolicy", "executiveSummary", "chat", "iterationStrategy"])
def test_the_digest_changes_with_every_field_of_the_spec(field: str) -> None:
    written = yaml.safe_load(CHAIN)
    digests = {
        chains.AgentChain(metadata=base.ObjectMeta(), spec=chains.Spec.model_validate(spec)).digest()
        for spec in (written, {name: value for name, value in written.items() if name != field})
    }
    assert len(digests) == 2
