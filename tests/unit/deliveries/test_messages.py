"""Messages about investigations: masked, bounded, the same shape whatever text comes from outside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import slack as slack_server
from support import summary_rows
from support.masking import NO_SECRETS
from tarsy import templating
from tarsy.config.model import deliveries
from tarsy.deliveries import grafana, messages, requests, slack, webhook
from tarsy.masking import known_secrets
from tarsy.store.reads import group_alerts, summaries

PAGE = (Path(__file__).parents[3] / "docs" / "deliveries.md").read_text()
AT = datetime(2026, 11, 21, 20, tzinfo=UTC)
SUMMARY = summary_rows.summary(
    revision=17,
    state="ended",
    namespace="shop",
    name="web-crash",
    author="anna",
    alert_type="KubePodCrashLooping",
    chain_name="pod-crash",
    chain_namespace="tarsy",
    stage_names=("look",),
    stage_agents=(1,),
    admitted_at=AT,
    started_at=AT,
    ended_at=AT + timedelta(seconds=41),
    ending="Completed",
    reason="StagesCompleted",
    final_analysis="# Cause\n\nweb-0 is out of memory. Raise its limit.",
    summary="web-0 is out of memory. Raise its limit to 256Mi.",
    gaps=[{"tool": "kubernetes.pods_log", "reason": "forbidden"}],
    grounds="InspectedWithGaps",
    cost=0.0143,
    alert_status="firing",
    target="shop/web-0",
    labels={"alertname": "KubePodCrashLooping", "pod": "web-0"},
)
ALERTS = group_alerts.Alerts(
    total=3,
    firing=2,
    types=(
        group_alerts.TypeCount(alert_type="KubePodCrashLooping", count=2),
        group_alerts.TypeCount(alert_type="KubePodNotReady", count=1),
    ),
    newest=(
        group_alerts.Alert(
            alert_type="KubePodNotReady",
            severity="warning",
            fingerprint="0",
            status="firing",
            starts_at=AT,
            labels={"namespace": "shop", "pod": "web-1"},
        ),
    ),
)
LOOKED = summary_rows.stage(name="look", outcome="Completed", started_at=AT, ended_at=AT, completed=1)
DETAILS = summaries.Details(
    summary=SUMMARY,
    alert_data="{}",
    severity="critical",
    fingerprint=None,
    runbook_url="https://runbooks.example/crash",
    chain=None,
    runs=[],
    log_seq=9,
    generator_url="javascript:alert(1)",
)


def message(details: summaries.Details = DETAILS, **changes: Any) -> messages.Message:
    about = messages.investigation(details, secrets=changes.pop("secrets", NO_SECRETS), pages="https://tarsy.example")
    fields: dict[str, Any] = {"event": "ended", "receiver": "hook", "identity": "1-17", "template": None, **changes}
    return messages.message(about, **fields)


def test_default_message_is_short_and_names_alert_finding_and_evidence() -> None:
    sent = message()
    assert sent.title == "KubePodCrashLooping: shop/web-0 [critical]"
    assert slack.first_message(sent, "C1")["text"] == f"{sent.title}\n{sent.text.splitlines()[0]}", "on a lock screen"
    assert sent.text.splitlines() == [
        "web-0 is out of memory. Raise its limit to 256Mi.",
        "Based on what its agents inspected; not inspected: kubernetes.pods_log.",
        "Runbook: https://runbooks.example/crash",
        f"https://tarsy.example/investigations/{SUMMARY.id}",
    ]
    assert sent.investigation.headline == "web-0 is out of memory."
    assert sent.investigation.links.generator is None, "a link that a browser would run"


@pytest.mark.parametrize(
    ("changes", "event", "lines"),
    [
        (
            {"ending": None, "ended_at": None, "state": "running"},
            "started",
            ["Investigation started by chain pod-crash."],
        ),
        *(
            (
                {"ending": None, "ended_at": None, "state": "running", "stage_names": ("look", "judge")}
                | {"stages": (LOOKED,)},
                event,
                ["Investigation started by chain pod-crash; 1/2 stages have ended."],
            )
            for event in ("started", "updated")
        ),
        (
            {"ending": None, "ended_at": None, "state": "running", "alerts": ALERTS},
            "updated",
            [
                "Investigation started by chain pod-crash.",
                "3 alerts, 2 firing: 2 KubePodCrashLooping, 1 KubePodNotReady",
            ],
        ),
        ({"alert_status": "resolved"}, "resolved", ["Resolved. web-0 is out of memory. Raise its limit to 256Mi."]),
        (
            {
                "ending": "Failed",
                "message": "no model",
                "grounds": None,
                "gaps": [],
                "summary": "",
                "final_analysis": "",
            },
            "ended",
            ["Failed: no model", "Runbook: https://runbooks.example/crash"],
        ),
        (
            {"grounds": "ServersAway"},
            "ended",
            [
                "Not grounded: web-0 is out of memory. Raise its limit to 256Mi.",
                "Its MCP servers were away; not inspected: kubernetes.pods_log.",
            ],
        ),
        (
            {"ending": "CompletedWithErrors", "gaps": [{"tool": tool, "reason": "x"} for tool in ("-", "[tool 9.1]")]},
            "ended",
            [
                "web-0 is out of memory. Raise its limit to 256Mi.",
                "Some stages failed. Based on what its agents inspected.",
            ],
        ),
        (
            {"ending": "TimedOut", "message": "it took longer than 900 s", "grounds": None},
            "ended",
            ["Timed out: it took longer than 900 s", "Not inspected: kubernetes.pods_log."],
        ),
    ],
)
def test_text_of_each_event(changes: dict[str, Any], event: Any, lines: list[str]) -> None:
    sent = message(replace(DETAILS, summary=replace(SUMMARY, **changes)), event=event)
    assert sent.text.splitlines()[: len(lines)] == lines


def test_message_about_alert_group_shows_number_and_names_of_its_alerts() -> None:
    sent = message(replace(DETAILS, summary=replace(SUMMARY, alerts=ALERTS)))
    assert sent.title == "KubePodCrashLooping (+2): shop/web-0 [critical]"
    assert sent.text.splitlines()[1] == "3 alerts, 2 firing: 2 KubePodCrashLooping, 1 KubePodNotReady"
    assert sent.investigation.alerts
    assert [(alert.alert_type, alert.target) for alert in sent.investigation.alerts.newest] == [
        ("KubePodNotReady", "shop/web-1")
    ]


NODES = tuple(group_alerts.TypeCount(alert_type=name, count=count) for name, count in (("KubeNodeNotReady", 3),))
EXAMPLES: tuple[dict[str, Any], ...] = (
    {},
    {
        "alert_type": "KubeNodeNotReady",
        "target": "worker-3",
        "alerts": replace(ALERTS, firing=3, types=NODES),
        "grounds": "Inspected",
        "gaps": [],
        "summary": "Rack 2 has lost its network: three kubelets stopped at 19:58. Check the switch of rack 2; "
        "drain the nodes if they stay away.",
    },
    {
        "alert_type": "HighErrorRate",
        "target": "shop/checkout",
        "grounds": "ServersAway",
        "gaps": [{"tool": "prometheus.query", "reason": "away"}],
        "summary": "The alert says that a third of the requests fail. Compare with the rollouts of the last hour.",
    },
    {
        "alert_type": "etcdHighCommitDurations",
        "target": "kube-system/etcd-0",
        "ending": "Failed",
        "message": "the LLM provider google-default refuses the API key",
        "grounds": None,
        **dict.fromkeys(("summary", "final_analysis"), ""),
        "gaps": [],
    },
    {
        "alert_type": "KubePersistentVolumeFillingUp",
        "target": "shop/pg-0",
        "alert_status": "resolved",
        "grounds": "Inspected",
        "gaps": [],
        "summary": "Old WAL filled data-pg-0: the slot of a removed replica kept it. Drop the slot standby_2.",
    },
)


def test_examples_of_the_page_are_what_a_phone_shows() -> None:
    section = PAGE.split("## On a phone\n")[1].split("\n## ")[0]
    sent_messages = [message(replace(DETAILS, summary=replace(SUMMARY, **example))) for example in EXAMPLES]
    texts = [f"{sent.title}\n{sent.text}" for sent in sent_messages]
    assert re.findall(r"```text\n(.*?)\n```", section, re.DOTALL) == texts
    assert all(len(text) < 450 for text in texts)
    assert all(sent.title[:40].startswith(f"{sent.investigation.alert_type}") for sent in sent_messages)


ANALYSIS = """\
## analysis: `checkout-7d9c` in namespace `shop`

**Root cause.** pod `checkout-7d9c` was killed for lack of memory [tool 1.2]; its heap was full [tools 2.1 and 2.2].

### Evidence

`pods_list` about `checkout-7d9c` [tool 1.2]:

```text
checkout-7d9c 0/1 OOMKilled
```

### Recommended actions

1. Raise the memory limit, or lower **-Xmx**.
"""


def test_message_without_summary_shows_analysis_as_plain_text_starting_with_finding() -> None:
    summary = replace(SUMMARY, summary="", final_analysis=ANALYSIS)
    assert message(replace(DETAILS, summary=summary)).text.splitlines()[:2] == [
        "Root cause. pod checkout-7d9c was killed for lack of memory; its heap was full.",
        "Raise the memory limit, or lower -Xmx.",
    ]


def test_long_result_ends_with_a_sentence_or_a_word() -> None:
    sentences = "The disk of pg-0 is full. " * 30
    finding = message(replace(DETAILS, summary=replace(SUMMARY, summary=sentences))).investigation.finding
    assert len(finding) <= messages.FINDING_MAX
    assert finding.endswith("is full.")
    finding = message(replace(DETAILS, summary=replace(SUMMARY, summary="word " * 300))).investigation.finding
    assert finding.endswith("word…")


def test_title_names_the_alerts_summary_if_no_label_names_a_subject_and_else_the_object() -> None:
    unknown = replace(SUMMARY, target="", alert_summary="The API server burns its budget.")
    title = message(replace(DETAILS, summary=unknown)).title
    assert title == "KubePodCrashLooping: The API server burns its budget. [critical]"
    assert message(replace(DETAILS, summary=replace(unknown, alert_summary=""), severity=None)).title == (
        "KubePodCrashLooping: shop/web-crash"
    )


TEXTS = ("alert_type", "target", "author", "message", "final_analysis", "summary", "alert_summary", "name", "namespace")
HOSTILE = st.text(max_size=300) | st.sampled_from(
    [
        "{{ 7 * 7 }}",
        "<!channel> <@U1> &<>",
        "\x1b[2J\u202e\x00",
        '"}], "x": [',
        "x" * 20_000,
        "{% raw %}",
        "\r\nce-id: x",
    ]
)


@given(st.data())
def test_any_text_in_any_field_leaves_the_shape_and_the_bounds(data: st.DataObject) -> None:
    texts: dict[str, Any] = {name: data.draw(HOSTILE) for name in TEXTS}
    summary = replace(SUMMARY, **texts)
    summary = replace(summary, labels={data.draw(HOSTILE): data.draw(HOSTILE)})
    summary = replace(summary, gaps=[{"tool": data.draw(HOSTILE), "reason": data.draw(HOSTILE)}] * 50)
    text = data.draw(HOSTILE)
    alert = replace(ALERTS.newest[0], alert_type=text, severity=text, labels={"pod": text, "namespace": text})
    types = (group_alerts.TypeCount(alert_type=text, count=1),) * 10
    summary = replace(summary, alerts=replace(ALERTS, types=types, newest=(alert,) * 10))
    details = replace(DETAILS, summary=summary, severity=data.draw(HOSTILE), runbook_url=data.draw(HOSTILE))
    sent = message(details)
    assert len(sent.title) <= messages.TITLE_MAX
    assert "\n" not in sent.title
    assert len(sent.text) <= messages.TEXT_MAX
    assert "49" not in sent.text or "49" in repr(details)
    document = sent.model_dump_json()
    assert len(document) < 200_000
    assert set(json.loads(document)["investigation"]) == set(messages.Investigation.model_fields)
    assert "\x1b" not in sent.text + sent.title
    headers = webhook.cloud_event(sent)
    assert all(re.fullmatch(r"[!-~]*", headers[name]) for name in ("ce-subject", "ce-id", "ce-type"))
    for recipe in RECIPES.values():
        if recipe.body:
            json.loads(webhook._body(recipe, sent))
    note = grafana.annotation(sent)["text"]
    assert not re.search("[<>]", re.sub(r'<br>\n|<a href="https?://[^"<>]*">(Runbook|Investigation)</a>', "", note))
    for posted in (slack.first_message(sent, "C1"), slack.rest(sent, "1.0", "C1")):
        assert slack_server.problem(posted) == ""


def test_known_secrets_are_masked_in_every_field() -> None:
    secret = "hunter2-4711-hunter2"
    secrets = known_secrets.KnownSecrets()
    secrets.add([secret])
    texts: dict[str, Any] = dict.fromkeys(TEXTS[:-2], f"it is {secret}")
    summary = replace(SUMMARY, labels={"a": secret}, **texts)
    summary = replace(summary, gaps=[{"tool": secret, "reason": secret}])
    alert = replace(ALERTS.newest[0], alert_type=secret, severity=secret, labels={"pod": secret, "namespace": secret})
    types = (group_alerts.TypeCount(alert_type=secret, count=1),)
    summary = replace(summary, alerts=replace(ALERTS, types=types, newest=(alert,)))
    details = replace(DETAILS, summary=summary, severity=secret, runbook_url=f"https://x.example/{secret}")
    assert secret not in message(details, secrets=secrets).model_dump_json()


def test_template_that_fails_is_an_error_that_quotes_no_value() -> None:
    with pytest.raises(templating.TemplateError) as error:
        message(template="{{ investigation.nothing }}")
    assert "nothing" in str(error.value)
    assert message(template="{{ investigation.phase }}").text == "Completed"


RECIPES = {
    name: deliveries.Webhook.model_validate(settings)
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for name, settings in (yaml.safe_load(block).get("deliveries") or yaml.safe_load(block)).items()
    if settings["type"] == "webhook"
}


def test_recipes_of_the_page_make_the_bodies_that_their_receivers_expect() -> None:
    sent = message()
    teams = json.loads(webhook._body(RECIPES["teams"], sent))
    (attachment,) = teams["attachments"]
    assert (teams["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    texts = [inline["text"] for block in attachment["content"]["body"] for inline in block["inlines"]]
    assert texts == [sent.title, sent.text]
    apprise = json.loads(webhook._body(RECIPES["apprise"], sent))
    assert apprise == {"title": sent.title, "body": sent.text, "format": "text", "type": "success"}
    assert json.loads(webhook._body(RECIPES["n8n"], sent)) == sent.model_dump(mode="json")


def test_body_that_is_no_json_is_refused_without_its_text() -> None:
    settings = RECIPES["apprise"].model_copy(update={"body": '{"title": {{ title }}}'})
    with pytest.raises(requests.UndeliveredError, match="no JSON") as error:
        webhook._body(settings, message())
    assert "web-0" not in str(error.value)
    assert error.value.of_message


def test_shape_of_the_page_has_the_fields_of_the_message() -> None:
    block = PAGE.split("```json\n")[1].split("```")[0]
    document = json.loads(block)
    assert set(document) == set(messages.Message.model_fields)
    assert set(document["investigation"]) == set(messages.Investigation.model_fields)
    assert set(document["investigation"]["links"]) == set(messages.Links.model_fields)
