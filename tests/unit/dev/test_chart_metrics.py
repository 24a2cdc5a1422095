"""Metrics in the chart: what scrapes, the alerts about TARSy itself and their pages, the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from support import charts
from support.charts import Object
from tarsy.telemetry import metrics
from tarsy_dev import chart, tools

RULES: list[Object] = yaml.safe_load((chart.CHART / "files" / "rules.yaml").read_text())["groups"][0]["rules"]
CHAIN: Object = yaml.safe_load((tools.ROOT / "manifests" / "chains" / "tarsy-chain.yaml").read_text())
PAGES = tools.ROOT / "docs" / "alerts"
ENABLED: Object = {"metrics": {key: {"enabled": True} for key in ("podMonitor", "prometheusRule", "dashboard")}}
MONITORING = ("PodMonitor", "PrometheusRule")
LABELS = {metric.name: set(metric.labels) for metric in metrics.all_metrics()}
OF_TARGETS = {"namespace", "instance", "le"}
"""Labels that Prometheus or a histogram adds."""
CHAINED = {name for name, labels in LABELS.items() if "chain" in labels}


def named(expression: str) -> Iterator[tuple[str, str]]:
    """The metrics of TARSy in an expression, and what stands in their braces."""
    for match in re.finditer(r"\b(tarsy_\w+)(?:\{([^}]*)\})?", expression):
        yield re.sub(r"_(bucket|count|sum)$", "", match[1]), match[2] or ""


def policies(objects: list[Object]) -> dict[str, list[Object]]:
    """Return the ingress rules of each component's policy."""
    return {
        manifest["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: manifest["spec"]["ingress"]
        for manifest in objects
        if manifest["kind"] == "NetworkPolicy"
    }


def test_chart_has_no_metrics_unless_asked_for() -> None:
    for values in ({}, {"mode": "split"}):
        manifests = charts.render(values)
        assert not [
            manifest
            for manifest in manifests
            if manifest["kind"] in MONITORING or "dashboard" in manifest["metadata"]["name"]
        ]
        assert not [rule for rules in policies(manifests).values() for rule in rules if "metrics" in str(rule["ports"])]


@pytest.mark.parametrize("values", [{}, {"mode": "split"}], ids=["single", "split"])
def test_the_port_of_metrics_is_open_and_scraped_in_every_process(values: Object) -> None:
    manifests = charts.render(ENABLED | values)
    monitor = charts.one(manifests, "PodMonitor", "tarsy-metrics")["spec"]
    ((operator, components),) = [
        (expression["operator"], expression["values"]) for expression in monitor["selector"]["matchExpressions"]
    ]
    processes = {"operator"} if not values else {"api", "controller", "worker"}
    assert (operator, set(components)) == ("In", processes)
    (endpoint,) = monitor["podMetricsEndpoints"]
    opened = policies(manifests)
    for template in charts.pod_templates(manifests).values():
        labels = template["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0].get("ports", ())}
        is_open = {"ports": [{"port": "metrics", "protocol": "TCP"}]} in opened[component]
        assert is_open == (endpoint["port"] in ports) == (component in processes), component
        if is_open:
            assert ports["metrics"] == metrics.PORT
            assert f"--metrics-listen=0.0.0.0:{metrics.PORT}" in template["spec"]["containers"][0]["args"]


def test_callers_of_the_port_can_be_named_without_a_pod_monitor() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    opened = policies(charts.render({"mode": "split", "metrics": {"scrapeFrom": [prometheus]}}))
    for component in ("api", "controller", "worker"):
        assert {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [prometheus]} in opened[component]
    assert opened["mcp"][0]["ports"] == [{"port": "http", "protocol": "TCP"}]


def test_rules_are_those_of_the_file_but_for_what_the_values_say() -> None:
    def rules(**values: object) -> Object:
        metrics_values = {"metrics": {"prometheusRule": {"enabled": True, **values}}}
        return charts.one(charts.render(metrics_values), "PrometheusRule", "tarsy-metrics")

    (group,) = rules()["spec"]["groups"]
    assert group["rules"] == RULES
    changed = rules(
        disabled=["TARSyTablesGrow"], runbookBase="https://docs.example/alerts/", labels={"release": "prometheus"}
    )
    assert changed["metadata"]["labels"]["release"] == "prometheus"
    remaining = changed["spec"]["groups"][0]["rules"]
    assert {rule["alert"] for rule in RULES} - {rule["alert"] for rule in remaining} == {"TARSyTablesGrow"}
    for rule in remaining:
        assert rule["annotations"]["runbook_url"] == f"https://docs.example/alerts/{rule['alert']}.md"


def test_dashboard_is_valid_json_and_labelled_for_grafana_sidecar() -> None:
    config_map = charts.one(charts.render(ENABLED), "ConfigMap", "tarsy-dashboard")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(config_map["data"]["tarsy.json"])
    assert len(dashboard["panels"]) > 20
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in expressions:
        for name, where in named(expression):
            assert name in LABELS, expression
            assert set(re.findall(r"(\w+)[=!]", where)) <= LABELS[name] | OF_TARGETS, expression
        groups = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        used = set[str]().union(*(LABELS[name] for name, _ in named(expression)))
        assert groups <= used | OF_TARGETS, expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
class TestAlerts:
    def test_an_alert_is_made_of_metrics_that_there_are(self, rule: Object) -> None:
        names = list(named(rule["expr"]))
        assert names
        for name, where in names:
            assert name in LABELS
            assert set(re.findall(r"(\w+)[=!]", where)) <= LABELS[name]

    def test_an_alert_is_investigated_by_the_chain_that_no_alert_counts(self, rule: Object) -> None:
        assert rule["labels"]["alert_type"] in CHAIN["spec"]["alertTypes"]
        leaves_out = f'chain!="{CHAIN["metadata"]["name"]}"'
        for name, where in named(rule["expr"]):
            assert name not in CHAINED or leaves_out in where or 'outcome="answered"' in where, (name, where)

    def test_another_pod_is_not_another_alert(self, rule: Object) -> None:
        """The labels of an alert are its fingerprint, by which TARSy tells a repeat."""
        groups = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert groups
        for group in groups:
            parts = {"namespace", "provider", "server", "chain", "code", "budget", "subject", "receiver"}
            assert set(group.split(", ")) <= parts
        assert "$value" not in rule["annotations"]["summary"]

    def test_every_alert_rule_has_page_with_meaning_diagnosis_and_remedy(self, rule: Object) -> None:
        page = (PAGES / f"{rule['alert']}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {rule['alert']}\n")
        for heading in ("## What it means", "## How to look", "## What to do"):
            assert heading in page
        assert f"[{rule['alert']}]({rule['alert']}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")
        for name, _ in named(page):
            assert name in LABELS


def test_log_lines_that_pages_look_for_are_logged() -> None:
    source = "".join(path.read_text() for path in (tools.ROOT / "operator" / "tarsy").rglob("*.py"))
    pages = "".join(path.read_text() for path in PAGES.glob("*.md"))
    actions = {action for group in re.findall(r"grep -E '([a-z_|]+)'", pages) for action in group.split("|")}
    assert len(actions) > 20
    assert {action for action in actions if f'"{action}"' not in source} == set()


def test_every_page_is_of_an_alert() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == {rule["alert"] for rule in RULES}
