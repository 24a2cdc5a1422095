"""Lifetimes and cookies of sessions."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from tarsy.auth import sessions

NOW = 1_800_000_000.0


@given(st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_session_outlives_neither_eight_hours_nor_its_token(token_end: float | None) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: NOW)
        lifetime = sessions.lifetime(token_end)

    assert timedelta(0) <= lifetime <= timedelta(hours=8)
    if token_end is None:
        assert lifetime == timedelta(minutes=15)
    else:
        assert lifetime.total_seconds() <= max(0.0, token_end - NOW) + 1e-6


def test_a_session_lasts_as_long_as_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)

    assert sessions.lifetime(NOW + 3600) == timedelta(hours=1)


def test_the_cookie_is_for_https_alone_where_the_site_is() -> None:
    begun = sessions.NewSession(cookie="secret", until=datetime(2026, 11, 25, 12, tzinfo=UTC))

    assert "; Secure" in sessions.set_cookie(begun, is_https=True)
    assert "Secure" not in sessions.set_cookie(begun, is_https=False)
    assert "expires=Wed, 25 Nov 2026 12:00:00 GMT" in sessions.set_cookie(begun, is_https=True)


def connection(*cookies: str) -> HTTPConnection:
    headers = [(b"cookie", cookie.encode("latin-1")) for cookie in cookies]
    return HTTPConnection({"type": "http", "headers": headers})


def test_a_request_with_several_session_cookies_has_none() -> None:
    assert sessions.cookie_of(connection("a=b; tarsy_session=x")) == "x"
    assert sessions.cookie_of(connection("tarsy_session=x; tarsy_session=y")) is None
    assert sessions.cookie_of(connection("tarsy_session=x", "tarsy_session=y")) is None
    assert sessions.cookie_of(connection("xtarsy_session=x; tarsy_session=")) is None


@given(st.lists(st.text(st.characters(codec="latin-1"), max_size=50), max_size=3))
def test_any_cookie_header_is_read(headers: list[str]) -> None:
    sessions.cookie_of(connection(*headers))
