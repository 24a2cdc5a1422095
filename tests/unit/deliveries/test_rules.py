"""The choice of receivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tarsy.config.model import budgets, deliveries
from tarsy.deliveries import rules
from tarsy.store.operations import deliveries as stored

ENDED = stored.Change(
    id=UUID(int=1),
    revision=7,
    namespace="shop",
    chain_name="pod-crash",
    notify=(),
    severity="critical",
    labels={"alertname": "KubePodCrashLooping", "pod": "web-0"},
    has_ended=True,
    ending="Completed",
    grounds="Inspected",
    alert_status="firing",
)


def receiver(**settings: Any) -> deliveries.Receiver:
    fields = {"type": "webhook", "url": "https://x.example", "allowed_namespaces": ["shop"], **settings}
    return deliveries.Webhook.model_validate(fields)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({}, True),
        ({"namespaces": ["shop"]}, True),
        ({"namespaces": ["tarsy"]}, False),
        ({"chains": ["pod-crash"]}, True),
        ({"chains": ["other"]}, False),
        ({"severities": ["warning", "critical"]}, True),
        ({"severities": ["warning"]}, False),
        ({"labels": {"pod": "web-0"}}, True),
        ({"labels": {"pod": "web-0", "job": "x"}}, False),
        ({"phases": ["Completed"]}, True),
        ({"phases": ["Failed"]}, False),
        ({"grounded": True}, True),
        ({"grounded": False}, False),
        ({"grounded": True, "phases": ["Failed"]}, False),
    ],
)
def test_rule_matches_with_all_its_keys(rule: dict[str, Any], matches: bool) -> None:
    assert rules.hears_of(ENDED, "r", receiver(rules=[rule]), own="tarsy") is matches
    assert rules.hears_of(ENDED, "r", receiver(rules=[{"phases": ["TimedOut"]}, rule]), own="tarsy") is matches


def test_result_that_is_missing_is_neither_grounded_nor_not() -> None:
    failed = replace(ENDED, ending="Failed", grounds=None)
    for grounded in (True, False):
        assert not rules.hears_of(failed, "r", receiver(rules=[{"grounded": grounded}]), own="tarsy")


@pytest.mark.parametrize(
    ("allowed", "hears"), [(None, False), (["shop"], True), (["*"], True), (["team-a"], False), ([], False)]
)
def test_no_rule_and_no_chain_reaches_beyond_the_allowed_namespaces(allowed: Any, hears: bool) -> None:
    named = replace(ENDED, notify=("r",))
    for change in (ENDED, named):
        settings = receiver(allowed_namespaces=allowed, rules=[{"namespaces": ["shop"]}])
        assert rules.hears_of(change, "r", settings, own="tarsy") is hears
    assert rules.hears_of(ENDED, "r", receiver(allowed_namespaces=None), own="shop")


def test_receiver_without_rules_hears_of_the_chains_that_name_it() -> None:
    assert not rules.hears_of(ENDED, "r", receiver(rules=[]), own="tarsy")
    assert rules.hears_of(replace(ENDED, notify=("q", "r")), "r", receiver(rules=[]), own="tarsy")


def test_rule_of_severities_matches_any_alert_of_a_group() -> None:
    grouped = replace(ENDED, severity="warning", severities=frozenset({"warning", "critical"}))
    assert rules.hears_of(grouped, "r", receiver(rules=[{"severities": ["critical"]}]), own="tarsy")
    assert not rules.hears_of(grouped, "r", receiver(rules=[{"severities": ["info"]}]), own="tarsy")


def test_receiver_of_updates_alone_gets_no_message_before_first_update() -> None:
    receivers = {"r": receiver(events=["updated"])}
    running = replace(ENDED, has_ended=False)
    assert list(rules.wanted([running], receivers, own="tarsy")) == []
    for updated in (replace(running, ended_stages=1), replace(running, alerts=2)):
        (wanted,) = rules.wanted([updated], receivers, own="tarsy")
        assert (wanted.event, wanted.is_silent, wanted.told_of) == ("started", True, updated.told_of)
    assert list(rules.wanted([updated], {"r": receiver()}, own="tarsy")) == [], "it hears of the end"


@pytest.mark.parametrize(
    ("events", "has_ended", "status", "event"),
    [
        (["ended"], False, "firing", None),
        (["started"], False, "firing", "started"),
        (["started"], True, "firing", "started"),
        (["started", "ended"], True, "firing", "ended"),
        (["ended", "resolved"], True, "resolved", "resolved"),
        (["resolved"], False, "resolved", None),
        (["ended"], True, "resolved", "ended"),
    ],
)
def test_the_newest_event_that_a_receiver_hears_of_is_chosen(
    events: list[str], has_ended: bool, status: Any, event: str | None
) -> None:
    change = replace(ENDED, has_ended=has_ended, alert_status=status)
    assert rules.newest_event(change, receiver(events=events)) == event


def test_resolution_of_older_investigation_goes_only_to_receivers_notified_before() -> None:
    resolved = replace(ENDED, is_recent=False, told=frozenset({"told"}), alert_status="resolved")
    receivers = {name: receiver(events=["ended", "resolved"]) for name in ("told", "new")}
    assert [(delivery.receiver, delivery.event) for delivery in rules.wanted([resolved], receivers, own="tarsy")] == [
        ("told", "resolved")
    ]


def test_only_latest_change_of_investigation_is_delivered() -> None:
    started = replace(ENDED, has_ended=False, revision=3)
    (wanted,) = rules.wanted([started, ENDED], {"r": receiver(events=["started", "ended"])}, own="tarsy")
    assert (wanted.event, wanted.revision) == ("ended", 7)


@pytest.mark.parametrize(
    ("scope", "subject", "settings", "hears"),
    [
        ("all", "", {}, False),
        ("all", "", {"allowed_namespaces": None}, True),
        ("provider", "google-default", {"allowed_namespaces": ["tarsy"]}, True),
        ("all", "", {"allowed_namespaces": ["*"], "rules": [{"severities": ["critical"]}]}, True),
        ("all", "", {"allowed_namespaces": ["*"], "rules": [{"namespaces": ["shop"]}]}, False),
        ("all", "", {"allowed_namespaces": ["*"], "rules": []}, False),
        ("namespace", "shop", {}, True),
        ("namespace", "bank", {}, False),
        ("namespace", "bank", {"allowed_namespaces": ["*"], "rules": [{"namespaces": ["shop"]}]}, False),
        ("namespace", "shop", {"rules": [{"chains": ["shop"]}]}, False),
        ("chain", "shop/pod-crash", {}, True),
        ("chain", "bank/pod-crash", {}, False),
        ("chain", "shop/pod-crash", {"rules": [{"chains": ["other"]}, {"chains": ["pod-crash"]}]}, True),
        ("chain", "shop/pod-crash", {"rules": [{"chains": ["other"]}]}, False),
        ("namespace", "shop", {"events": ["ended", "updated"]}, False),
    ],
)
def test_receiver_hears_of_budgets_of_its_namespaces(
    scope: budgets.Scope, subject: str, settings: dict[str, Any], *, hears: bool
) -> None:
    budget = budgets.Budget(scope=scope, per="day", tokens=1)
    asked = receiver(**{"events": ["budget"], **settings})
    assert rules.hears_of_budget(budget, subject, asked, own="tarsy") is hears


@pytest.mark.parametrize("kind", [deliveries.PagerDuty, deliveries.Grafana])
def test_receiver_of_messages_about_alerts_hears_of_no_budget(kind: type[deliveries.Receiver]) -> None:
    with pytest.raises(ValueError, match="'budget' is for webhook and slack alone"):
        kind.model_validate(
            {
                "type": "pagerduty" if kind is deliveries.PagerDuty else "grafana",
                "token_env": "TOKEN",
                "events": ["budget"],
                **({"from_email": "a@b.example"} if kind is deliveries.PagerDuty else {"base_url": "http://x.example"}),
            }
        )
