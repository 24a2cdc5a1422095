"""The environment's word on proxies, as curl and aiohttp read it."""

from __future__ import annotations

import pytest
from tarsy import proxies

PROXY = "http://user:word@proxy.internal:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://models.example", None),
        ({"HTTPS_PROXY": PROXY}, "https://models.example/v1", PROXY),
        ({"https_proxy": PROXY}, "https://models.example:8443", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://models.example", None),
        ({"HTTP_PROXY": PROXY}, "http://models.example", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.1,.example"}, "https://models.example", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.1,.example"}, "https://10.0.0.1:6443", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "https://elsewhere.org", None),
        ({"HTTPS_PROXY": PROXY}, "not an address", None),
    ],
)
def test_proxy_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, expected: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxies.proxy_for(url) == expected
