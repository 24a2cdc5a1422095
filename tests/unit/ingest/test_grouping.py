"""The keys of groups: two different things never have one."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import queue
from tarsy.ingest import alertmanager, grouping, manifest, owners
from tarsy.resources import chains

TEXTS = st.text(max_size=6)
NAMES = st.sampled_from(["pod", "node", "ns", "a,b", '"', ""])
LABELS = st.dictionaries(NAMES.filter(bool), TEXTS, max_size=4)
SOURCES = st.tuples(st.sampled_from(["source", "token", "author"]), TEXTS)


def alert(labels: dict[str, str]) -> alertmanager.Alert:
    return alertmanager.Alert(status="firing", labels=labels, starts_at=datetime(2026, 11, 21, tzinfo=UTC), raw={})


def chain(by: str, labels: list[str] | None = None, name: str = "pods") -> chains.AgentChain:
    made = queue.chain(grouping={"by": by, **({"labels": labels} if labels else {})})
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": name})})


def key(
    labels: dict[str, str],
    its_chain: chains.AgentChain,
    source: Any = ("source", "a"),
    group_key: str = "g",
    owner: owners.Thing | None = None,
) -> str | None:
    return grouping.key(
        alert(labels), group_key=group_key, chain=its_chain, source=source, owner=owner, cluster_label="cluster"
    )


@given(
    *(LABELS,) * 2,
    *(st.lists(NAMES.filter(bool), min_size=1, max_size=3, unique=True),) * 2,
    *(SOURCES,) * 2,
    *(st.sampled_from(["pods", "nodes"]),) * 2,
)
def test_label_grouping_keys_are_equal_only_if_sender_chain_and_all_values_are_equal(
    first: dict[str, str],
    second: dict[str, str],
    names: list[str],
    other_names: list[str],
    source: tuple[str, str],
    other_source: tuple[str, str],
    name: str,
    other_name: str,
) -> None:
    first_key = key(first, chain("Labels", names, name), source)
    other = key(second, chain("Labels", other_names, other_name), other_source)
    values = {label: first.get(label) for label in names}
    other_values = {label: second.get(label) for label in other_names}
    assert (first_key is None) == (not all(values.values()))
    same = (source, name, values) == (other_source, other_name, other_values)
    assert (first_key == other and first_key is not None) == (same and all(values.values()))


@given(TEXTS, TEXTS, SOURCES, SOURCES)
def test_notification_grouping_keys_are_equal_only_if_sender_and_group_key_are_equal(
    group: str, other_group: str, source: tuple[str, str], other_source: tuple[str, str]
) -> None:
    first_key = key({}, chain("Notification"), source, group)
    other = key({}, chain("Notification"), other_source, other_group)
    assert (first_key is None) == (not group)
    assert (first_key == other and first_key is not None) == (
        (group, source) == (other_group, other_source) and bool(group)
    )


THINGS = st.builds(
    owners.Thing,
    group=st.sampled_from(["", "apps", "argoproj.io"]),
    kind=st.sampled_from(["Pod", "Deployment", "Rollout"]),
    namespace=st.sampled_from(["", "shop", "shop,web"]),
    name=st.sampled_from(["web", "a", "shop"]),
    uid=st.sampled_from(["", "u"]),
)


@given(THINGS, THINGS, *(st.sampled_from(["", "a", "b"]),) * 2, SOURCES, SOURCES)
def test_owner_grouping_keys_are_equal_only_if_sender_cluster_and_owner_are_equal(
    owner: owners.Thing, other_thing: owners.Thing, cluster: str, other_cluster: str, source: Any, other_source: Any
) -> None:
    first_key = key({"cluster": cluster}, chain("Owner"), source, owner=owner)
    other = key({"cluster": other_cluster}, chain("Owner"), other_source, owner=other_thing)
    assert (first_key == other) == ((owner, cluster, source) == (other_thing, other_cluster, other_source))
    assert first_key not in (None, key({}, chain("Notification"), source, "Owner"))
    assert first_key != key({"cluster": cluster}, chain("Owner", name="nodes"), source, owner=owner)
    assert key({"pod": "a"}, chain("Owner"), source) is None, "its owner is unknown"


def test_alerts_of_a_chain_that_groups_by_alert_or_not_at_all_are_investigated_alone() -> None:
    assert key({"pod": "a"}, chain("Alert")) is None
    assert key({"pod": "a"}, queue.chain()) is None


@given(TEXTS)
def test_no_value_of_a_label_looks_like_a_group_key(value: str) -> None:
    assert key({"pod": "x"}, chain("Labels", ["pod"])) != key({}, chain("Notification"), group_key=value)


def test_group_key_digest_equals_alertmanagers_and_masked_or_cut_key_has_no_digest() -> None:
    key = '{}/{severity="critical"}:{alertname="KubePodCrashLooping"}'
    assert grouping.digest(key) == hashlib.sha256(key.encode()).hexdigest()
    for other in ("", '{}:{token="[MASKED:token]"}', "x" * manifest.GROUP_KEY_MAX):
        assert grouping.digest(other) is None
