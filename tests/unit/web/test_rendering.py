"""Pages are made of templates, and carry the headers that keep a browser from loading anything else."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from http import HTTPStatus

import pytest
from fastapi import Request
from tarsy.serve import problems
from tarsy.web import assets, rendering


@pytest.fixture
def files() -> assets.Assets:
    return assets.Assets()


@pytest.fixture
def renderer(files: assets.Assets) -> rendering.Renderer:
    return rendering.Renderer(files)


def request(headers: Mapping[str, str] | None = None) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw})


def test_a_page_allows_no_inline_script_and_no_other_origin(renderer: rendering.Renderer) -> None:
    problem = problems.Problem(HTTPStatus.NOT_FOUND, "there is no such investigation")

    response = renderer.problem(request(), problem)

    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    body = bytes(response.body).decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", body)


def test_text_from_outside_is_escaped(renderer: rendering.Renderer) -> None:
    problem = problems.Problem(HTTPStatus.BAD_REQUEST, "<script>alert(1)</script>\x1b[31m")

    body = bytes(renderer.problem(request(), problem).body).decode()

    assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in body


def test_an_unknown_user_gets_the_way_to_sign_in(renderer: rendering.Renderer) -> None:
    headers = {"WWW-Authenticate": "Bearer"}
    problem = problems.Problem(HTTPStatus.UNAUTHORIZED, "no token", headers=headers)

    response = renderer.problem(request(), problem)

    assert response.status_code == HTTPStatus.UNAUTHORIZED
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "tarsy open" in bytes(response.body).decode()


def test_a_page_is_compressed_for_a_browser_that_accepts_it(renderer: rendering.Renderer) -> None:
    problem = problems.Problem(HTTPStatus.NOT_FOUND, "there is no such investigation")

    plain = renderer.problem(request(), problem)
    compressed = renderer.problem(request({"Accept-Encoding": "br, gzip"}), problem)

    assert compressed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(bytes(compressed.body)) == bytes(plain.body)


def test_static_files_have_a_url_that_names_their_content(files: assets.Assets) -> None:
    digest = files.url("tarsy.css").split("/")[2]

    response = files.response(digest, "tarsy.css", accepts_gzip=True)

    assert gzip.decompress(bytes(response.body)) == bytes(files.response(digest, "tarsy.css", accepts_gzip=False).body)
    assert "immutable" in response.headers["Cache-Control"]
    for other in ((digest[::-1], "tarsy.css"), (digest, "../markdown.py"), (digest, "missing.js")):
        with pytest.raises(problems.Problem, match="no such file"):
            files.response(*other, accepts_gzip=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.42, "420 ms"), (3.21, "3.2 s"), (59.7, "1 m 00 s"), (65, "1 m 05 s"), (7800, "2 h 10 m")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert rendering.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(None, ""), (950, "950"), (1234, "1.2 k"), (4.1e6, "4.1 M")])
def test_counts_are_short(number: int | None, text: str) -> None:
    assert rendering.count(number) == text
