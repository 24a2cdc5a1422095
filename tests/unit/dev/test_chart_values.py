"""Values that the chart refuses, each with its path; what a network is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st
from support import charts
from support.charts import Object
from tarsy_dev import chart, forms, values

BAD = [
    ("{imge: {tag: x}}", ""),
    ("{image: {tag: a b}}", "/image/tag"),
    ("{image: {digest: latest}}", "/image/digest"),
    ("{image: {repository: ''}}", "/image/repository"),
    ("{image: {registry: https://registry.example}}", "/image/registry"),
    ("{image: {pullPolicy: Sometimes}}", "/image/pullPolicy"),
    ("{imagePullSecrets: [registry]}", "/imagePullSecrets/0"),
    ("{mode: both}", "/mode"),
    ("{nameOverride: Tarsy}", "/nameOverride"),
    ("{fullnameOverride: 1st}", "/fullnameOverride"),
    ("{commonLabels: {two words: c}}", "/commonLabels"),
    (f"{{commonLabels: {{d: {'d' * 64}}}}}", "/commonLabels/d"),
    ("{pods: {labels: {-a: b}}}", "/pods/labels"),
    ("{pods: {annotations: {a/b/c: d}}}", "/pods/annotations"),
    ("{service: {annotations: {Example.com/a: b}}}", "/service/annotations"),
    ("{pods: {nodeSelector: {a: true}}}", "/pods/nodeSelector/a"),
    ("{pods: {tolerations: {key: a}}}", "/pods/tolerations"),
    ("{operator: {replicas: two}}", "/operator/replicas"),
    ("{operator: {resources: {limits: {memory: lots}}}}", "/operator/resources/limits/memory"),
    ("{operator: {autoscaling: {enabled: true}}}", "/operator/autoscaling"),
    ("{operator: {extraEnv: {A: b}}}", "/operator/extraEnv"),
    ("{operator: {podDisruptionBudget: {maxUnavailable: half}}}", "/operator/podDisruptionBudget/maxUnavailable"),
    ("{operator: {strategy: {type: BlueGreen}}}", "/operator/strategy/type"),
    ("{worker: {replcas: 2}}", "/worker"),
    ("{worker: {livenessProbe: {periodSeconds: 3}}}", "/worker/livenessProbe"),
    ("{service: {port: 70000}}", "/service/port"),
    ("{ingress: {path: /tarsy}}", "/ingress"),
    ("{ingress: {hosts: ['https://tarsy.example']}}", "/ingress/hosts/0"),
    ("{ingress: {tls: [{hosts: [a b], secretName: tls}]}}", "/ingress/tls/0/hosts/0"),
    ("{database: {existingSecret: Some_Secret}}", "/database/existingSecret"),
    ("{database: {url: 'postgresql://a:b@c/d'}}", "/database"),
    ("{webhook: {token: secret}}", "/webhook"),
    ("{llmKeys: {GOOGLE_API_KEY: key}}", "/llmKeys"),
    ("{postgres: {enabled: true}}", "/postgres"),
    ("{postgres: {storage: {size: big}}}", "/postgres/storage/size"),
    ("{postgres: {image: {tag: ''}}}", "/postgres/image/tag"),
    ("{migrate: {mode: Never}}", "/migrate/mode"),
    ("{mcp: {toolsets: [config]}}", "/mcp/toolsets/0"),
    ("{mcp: {toolsets: []}}", "/mcp/toolsets"),
    ("{mcp: {extraRules: {verbs: [get]}}}", "/mcp/extraRules"),
    ("{mcp: {deniedResources: [{group: apps}]}}", "/mcp/deniedResources/0"),
    ("{networkPolicy: {egress: {cidrs: [{cidr: 10.0.0.0/33}]}}}", "/networkPolicy/egress/cidrs/0/cidr"),
    ("{networkPolicy: {apiServer: {cidrs: [10.0.0.1]}}}", "/networkPolicy/apiServer/cidrs/0"),
    ("{networkPolicy: {database: {cidrs: [db.example.com]}}}", "/networkPolicy/database/cidrs/0"),
    ("{networkPolicy: {extraEgress: []}}", "/networkPolicy"),
    ("{crds: {enabled: 'yes'}}", "/crds/enabled"),
    ("{test: {timeoutSeconds: 5m}}", "/test/timeoutSeconds"),
    ("{extraObjects: [1]}", "/extraObjects/0"),
    ("{platform: {llm_provider: google-default}}", "/platform"),
    ("{chains: {Chain_A: {alertTypes: [a], stages: [{name: s, agent: A}]}}}", "/chains"),
]

APART = [
    ("{pods: null}", "at '': missing property 'pods'"),
    ("{platform: null}", "at '': missing property 'platform'"),
    ("{chains: null, mcp: null}", "at '': missing properties 'chains', 'mcp'"),
    ("{pods: {affinity: null}}", "at '/pods': missing property 'affinity'"),
    ("{networkPolicy: {egress: {cidrs: null}}}", "at '/networkPolicy/egress': missing property 'cidrs'"),
    (
        "{operator: {autoscaling: {minReplicas: 3, maxReplicas: 2}}}",
        "at '/operator/autoscaling/minReplicas': 3 is more than maxReplicas, 2",
    ),
    (
        "{mode: split, worker: {autoscaling: {minReplicas: 3, maxReplicas: 2}}}",
        "at '/worker/autoscaling/minReplicas': 3 is more than maxReplicas, 2",
    ),
    ("{mcp: {toolsets: [core, kubevirt]}}", "at '/mcp/toolsets': kubevirt can do nothing with the rights"),
    (
        "{mcp: {toolsets: [helm], extraRules: [{apiGroups: [''], resources: [secrets], verbs: [list]}]}}",
        "at '/mcp/toolsets': helm keeps its releases in Secrets, which mcp.deniedResources refuses",
    ),
]
"""Values that hide the errors of other bad values, or are reported after them, each with its message."""


@pytest.fixture(scope="module")
def refusals() -> list[tuple[Object, str]]:
    """The bad values, as many of them in one installation as do not stand in each other's way, and what is said."""
    batches: list[Object] = []
    for text, _ in BAD:
        for batch in batches:
            if _joined(batch, yaml.safe_load(text)):
                break
        else:
            batches.append(yaml.safe_load(text))
    assert len(batches) < 8
    return [(batch, refusal(batch)) for batch in batches]


def _joined(batch: Object, addition: Object) -> bool:
    """Put `given` into `batch`; False, and nothing put, where both say something of the same place."""
    (key, value), *more = addition.items()
    if more:
        return False
    if key not in batch:
        batch[key] = value
        return True
    both = isinstance(value, dict) and isinstance(batch[key], dict)
    return both and _joined(batch[key], value)


def refusal(bad_values: Object) -> str:
    """Return the message about values that are refused."""
    with pytest.raises(chart.RefusedError) as error:
        charts.render(bad_values)
    return str(error.value)


@pytest.mark.parametrize(("bad_values", "path"), BAD, ids=[text for text, _ in BAD])
def test_bad_values_are_refused_with_their_path(bad_values: str, path: str, refusals: list[tuple[Object, str]]) -> None:
    messages = [message for batch, message in refusals if _is_in(yaml.safe_load(bad_values), batch)]
    assert any(f"at '{path}'" in message for message in messages)


@pytest.mark.parametrize(("bad_values", "message"), APART, ids=[text for text, _ in APART])
def test_values_that_do_not_go_together_are_refused_with_their_path(bad_values: str, message: str) -> None:
    assert message in refusal(yaml.safe_load(bad_values))


@pytest.mark.parametrize("name", ["1st", "a.b", "123"])
def test_a_releases_name_that_no_service_can_have_is_refused_with_what_helps(name: str) -> None:
    with pytest.raises(
        chart.RefusedError, match=r"at '/fullnameOverride': the release's name makes .*, which no Service"
    ):
        charts.render(name=name)
    charts.render({"fullnameOverride": "alerts"}, name=name)


@hypothesis.given(
    st.one_of(
        st.text("0123456789abf:./", max_size=24),
        st.ip_addresses().map(str),
        st.from_regex(forms.NETWORK, fullmatch=True),
    )
)
def test_text_accepted_as_network_by_values_schema_is_valid_network(text: str) -> None:
    if re.fullmatch(forms.NETWORK, text):
        ipaddress.ip_network(text, strict=False)


@hypothesis.given(st.ip_addresses(), st.integers(0, 128))
def test_values_schema_accepts_every_ip_network(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int
) -> None:
    assert re.fullmatch(forms.NETWORK, f"{address}/{min(bits, address.max_prefixlen)}")


def _is_in(part: Any, batch: Any) -> bool:
    if not isinstance(part, dict) or not part:
        return bool(part == batch)
    return isinstance(batch, dict) and all(key in batch and _is_in(part[key], batch[key]) for key in part)


def test_unknown_keys_are_refused_in_every_group() -> None:
    unknown_values: Object = {}
    groups = list(_groups(values.Values(), ()))
    for path in groups:
        at = unknown_values
        for key in path:
            at = at.setdefault(key, {})
        at["unheardOf"] = 1
    message = refusal(unknown_values)
    assert len(groups) > 40
    for path in groups:
        assert re.search(
            f"at '{''.join(f'/{key}' for key in path)}': additional properties 'unheardOf' not allowed", message
        )


def _groups(part: values.Part, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Where the groups of values are."""
    yield path
    for name, field in type(part).model_fields.items():
        if isinstance(below := getattr(part, name), values.Part):
            yield from _groups(below, (*path, field.alias or name))
