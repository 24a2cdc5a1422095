"""The alerts about TARSy itself, over samples by hand: they never feed themselves. (Scraped ones: tests/e2e.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import alert_rules, scrapes

pytestmark = scrapes.WITH_PROMTOOL

FAILING = {
    "tarsy_model_calls_total": 'provider="google",model="m",outcome="fatal"',
    "tarsy_investigation_seconds_count": 'ending="Failed"',
    "tarsy_attempts_without_progress": "",
    "tarsy_queue_oldest_seconds": "",
}


def series(chain: str) -> list[dict[str, str]]:
    """All that a chain can do wrong, from the beginning on, and two pods of TARSy that are well."""
    lines = [
        {
            "series": f'{name}{{namespace="tarsy",pod="a",chain="{chain}"{"," if labels else ""}{labels}}}',
            "values": "0+10x120",
        }
        for name, labels in FAILING.items()
    ]
    well = {"tarsy_build_info": 1, "tarsy_database_up": 1, "tarsy_table_bytes": 1000}
    lines += [
        {"series": f'{name}{{namespace="tarsy",pod="a"}}', "values": f"{value}x120"} for name, value in well.items()
    ]
    return lines


def test_errors_of_an_investigation_of_an_alert_about_tarsy_raise_no_alert(tmp_path: Path) -> None:
    alert_rules.judge(tmp_path, series("tarsy-chain"), set(), at="55m")


def test_any_other_chain_that_does_the_same_raises_alerts(tmp_path: Path) -> None:
    expected = {
        alert_rules.alert("TARSyProviderDown", namespace="tarsy", provider="google"),
        alert_rules.alert("TARSyInvestigationsFail", namespace="tarsy"),
        alert_rules.alert("TARSyTakeovers", namespace="tarsy", chain="pod-crash"),
        alert_rules.alert("TARSyQueueOld", namespace="tarsy"),
    }
    alert_rules.judge(tmp_path, series("pod-crash"), expected, at="55m")


def test_provider_with_one_answered_call_counts_as_up(tmp_path: Path) -> None:
    answered = {
        "series": 'tarsy_model_calls_total{namespace="tarsy",provider="google",model="m",chain="x",outcome="answered"}',
        "values": "0+1x120",
    }
    failing = [line for line in series("pod-crash") if line["series"].startswith(("tarsy_model", "tarsy_b", "tarsy_t"))]
    alert_rules.judge(tmp_path, [*failing, answered], set(), at="55m")


@pytest.mark.parametrize(
    ("values", "code", "refused"),
    [
        ("0x20 0+9x3 27x90", "503", False),  # a burst
        ("_x20 27x90", "503", False),  # the same, by a counter that begins with it
        ("0x20 0+9x90", "503", True),
        ("0x60 1x90", "401", True),
    ],
)
def test_burst_of_webhook_requests_told_to_retry_raises_no_alert(
    tmp_path: Path, values: str, code: str, refused: bool
) -> None:
    answers = {"series": f'tarsy_webhook_answers_total{{namespace="tarsy",pod="a",code="{code}"}}', "values": values}
    well = [line for line in series("tarsy-chain") if line["series"].startswith(("tarsy_b", "tarsy_d", "tarsy_t"))]
    expected = {alert_rules.alert("TARSyWebhookRefused", namespace="tarsy", code=code)} if refused else set()
    for at in ("35m",) if refused else ("11m", "12m", "13m", "15m", "20m", "35m"):
        alert_rules.judge(tmp_path, [*well, answers], expected, at=at)


def test_each_budget_subject_at_ninety_percent_use_raises_alert(tmp_path: Path) -> None:
    lines = [{"series": 'tarsy_build_info{namespace="tarsy"}', "values": "1x60"}] + [
        {
            "series": f'tarsy_budget_used_ratio{{namespace="tarsy",pod="a",budget="{budget}",subject="{subject}"}}',
            "values": f"{used}x60",
        }
        for budget, subject, used in (("month", "", 0.9), ("team", "shop", 1), ("team", "bank", 0.89))
    ]
    expected = {
        alert_rules.alert("TARSyBudgetSpent", namespace="tarsy", budget="month"),
        alert_rules.alert("TARSyBudgetSpent", namespace="tarsy", budget="team", subject="shop"),
    }
    alert_rules.judge(tmp_path, lines, expected, at="25m")
