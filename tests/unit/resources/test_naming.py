from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tarsy.resources import naming

FINGERPRINT = "6eb8c03418906421"
STARTS_AT = datetime(2026, 11, 21, 20, 29, 42, 654068, tzinfo=UTC)
"""1795292982654 ms (`date -u +%s%3N`), whose digits to base 36 (`bc`) are 22 32 26 31 3 7 2 6."""
ZERO = datetime(1, 1, 1, tzinfo=UTC)
"""Alertmanager's zero time."""


@pytest.mark.parametrize(
    ("alertname", "slug"),
    [
        ("KubePodCrashLooping", "kubepodcrashlooping"),
        ("High CPU (web) - 90%!", "high-cpu-web-90"),
        ("Überlauf", "berlauf"),
        ("磁盘已满", "alert"),
        ("\u212aelvin", "kelvin"),  # the Kelvin sign, whose lower case is the letter k
        ("", "alert"),
        ("a" * 200, "a" * 37),
        ("a" * 36 + "-tail", "a" * 36),
        ("\ud800\x00", "alert"),
    ],
)
def test_a_name_is_slug_fingerprint_and_start(alertname: str, slug: str) -> None:
    name = naming.for_alert(alertname=alertname, fingerprint=FINGERPRINT, starts_at=STARTS_AT)
    assert name == f"{slug}-6eb8c03418906421-mwqv3726"
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), "no DNS-1123 label"


@pytest.mark.parametrize(
    ("text", "longest", "slug"),
    [("High CPU!", 42, "high-cpu"), ("abc-def", 4, "abc"), ("---", 1, "alert"), ("a" * 43, 42, "a" * 42)],
)
def test_a_slug_is_cut_without_a_dash_at_its_ends(text: str, longest: int, slug: str) -> None:
    assert naming.slug(text, longest=longest) == slug


@pytest.mark.parametrize(
    ("starts_at", "tail"),
    [
        (ZERO, "00000000"),
        (datetime(1970, 1, 1, tzinfo=UTC), "00000000"),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), "000001jk"),  # 2000 = 1 * 1296 + 19 * 36 + 20
        (STARTS_AT.astimezone(timezone(timedelta(hours=2))), "mwqv3726"),
        (datetime(2059, 5, 25, 17, 38, 27, 455000, tzinfo=UTC), "zzzzzzzz"),  # 36 ** 8 - 1 ms
        (datetime(2059, 5, 25, 17, 38, 27, 456000, tzinfo=UTC), "100000000"),
    ],
)
def test_the_start_is_milliseconds_in_base_36(starts_at: datetime, tail: str) -> None:
    name = naming.for_alert(alertname="x" * 99, fingerprint=FINGERPRINT, starts_at=starts_at)
    assert name.rsplit("-", 1)[1] == tail
    assert len(name) == 63


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        (FINGERPRINT, FINGERPRINT),
        ("my-print", "00f5a7bbf924008d"),  # printf my-print | sha256sum
        ("", "e3b0c44298fc1c14"),
        ("6EB8C03418906421", "f80e63defe7f899b"),
        (FINGERPRINT + "\n", "ac7448e441352b1f"),
    ],
)
def test_a_fingerprint_of_another_form_is_hashed(fingerprint: str, expected: str) -> None:
    assert naming.hex16(fingerprint) == expected


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("web-crash", "web-crash-0f1e2d3c"),
        ("a" * 20 + "-" + "b" * 53, "b" * 53 + "-0f1e2d3c"),
        ("x" * 63, "x" * 54 + "-0f1e2d3c"),
    ],
)
def test_suffixed_name_keeps_the_end_of_a_long_name(name: str, named: str) -> None:
    assert naming.suffixed(name, "0f1e2d3c") == named
    assert len(named) <= 63
