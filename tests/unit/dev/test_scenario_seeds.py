"""Seeds of scenarios: times before the recording, and floods of lines among those that matter."""

from __future__ import annotations

from datetime import UTC, datetime

from tarsy_dev.scenarios import seeds

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


def test_times_before_the_recording_are_filled_in_everywhere() -> None:
    written = {"at": "ago:1h30m", "lines": ["{ago:2d} up", 5, None]}
    assert seeds.timed(written, NOW) == {"at": "2026-11-26T10:30:00Z", "lines": ["2026-11-24T12:00:00Z up", 5, None]}


def test_flood_stands_around_the_lines_of_a_log_in_order_of_time() -> None:
    flood = {"lines": 3, "from": "20m", "to": "10m", "text": ["{at} GET /{n}", "{at} PUT /{n}"]}
    log = seeds.timed("{ago:12m} ERROR\n{ago:1m} up\n", NOW)
    assert seeds.log({"log": log, "flood": flood}, NOW) == (
        "2026-11-26T11:40:00Z GET /0\n"
        "2026-11-26T11:45:00Z PUT /1\n"
        "2026-11-26T11:48:00Z ERROR\n"
        "2026-11-26T11:50:00Z GET /2\n"
        "2026-11-26T11:59:00Z up\n"
    )
    assert (seeds.log({"log": log}, NOW), seeds.log({}, NOW)) == (log, None)
