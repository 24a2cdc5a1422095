"""The alerts about TARSy itself, over samples by hand: tables that grow. (Scraped ones: tests/e2e.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import alert_rules, scrapes

pytestmark = scrapes.WITH_PROMTOOL


@pytest.mark.parametrize(("growth", "grows"), [(10_000, False), (4_000_000, True)])
def test_tables_that_grow_are_told_four_days_ahead_also_over_a_change_of_the_leader(
    tmp_path: Path, growth: int, grows: bool
) -> None:
    """In 6 hours 720 samples of half a minute: 4 MB each are 11 GB a day."""
    half = 480
    lines = [
        {"series": 'tarsy_build_info{namespace="tarsy"}', "values": f"1x{2 * half}"},
        {"series": 'tarsy_table_bytes{namespace="tarsy",pod="a",table="entries"}', "values": f"9e9+{growth}x{half}"},
        {
            "series": 'tarsy_table_bytes{namespace="tarsy",pod="b",table="entries"}',
            "values": f"_x{half} {9e9 + growth * (half + 1):.0f}+{growth}x{half}",
        },
    ]
    lines[1]["values"] += f" stale _x{half}"
    expected = {alert_rules.alert("TARSyTablesGrow", namespace="tarsy")} if grows else set()
    alert_rules.judge(tmp_path, lines, expected, at="7h50m")
