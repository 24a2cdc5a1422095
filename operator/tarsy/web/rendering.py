"""Pages made of templates, with the headers that keep a browser from loading or running anything else."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import jinja2
from fastapi import Request, Response

from tarsy.api import app
from tarsy.auth import cluster_rights
from tarsy.resources import base
from tarsy.serve import problems, strict
from tarsy.transcript import control_characters
from tarsy.web import assets, markdown

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding, Authorization, Cookie",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_COMPRESSED_MIN = 1024
"""Bytes of a page from which on it is compressed."""


class Renderer:
    """Makes pages of templates."""

    def __init__(self, files: assets.Assets) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("tarsy.web", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_visible,
            auto_reload=False,
        )
        self._environment.globals["asset"] = files.url
        self._environment.filters.update(
            duration=duration, count=count, markdown=markdown.to_html, rfc3339=rfc3339, clock=clock
        )

    def fragment(self, template: str, /, **context: Any) -> str:
        """Return the HTML of a template."""
        return self._environment.get_template(template).render(context)

    def page(
        self, request: Request, template: str, /, *, status: HTTPStatus = HTTPStatus.OK, **context: Any
    ) -> Response:
        """Return a response with the HTML of a template."""
        body = self.fragment(template, **context).encode()
        headers = dict(HEADERS)
        if len(body) >= _COMPRESSED_MIN and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=5)
            headers["Content-Encoding"] = "gzip"
        return Response(body, status_code=status, media_type="text/html; charset=utf-8", headers=headers)

    def problem(self, request: Request, problem: problems.Problem) -> Response:
        """Return the page of a problem: the sign-in page for an unknown user, else what is wrong and the remedy."""
        template = "sign_in.html" if problem.status is HTTPStatus.UNAUTHORIZED else "problem.html"
        forbidden = problem if isinstance(problem, cluster_rights.ForbiddenError) else None
        response = self.page(
            request,
            template,
            status=problem.status,
            title=problems.phrase(problem.status),
            problem=problem,
            missing=forbidden.action if forbidden else None,
            group=base.GROUP,
            user=forbidden.caller if forbidden else None,
            section=None,
        )
        response.headers.update(problem.headers or {})
        return response

    def route_class(self) -> type[strict.Route]:
        """Return a class of routes whose problems are pages."""
        renderer = self

        class PageRoute(strict.Route):
            """A route that answers with a page in any case."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                """Return the handler of a request."""
                handle = super().get_route_handler()

                async def handle_problems(request: Request) -> Response:
                    try:
                        return await handle(request)
                    except problems.Problem as problem:
                        return renderer.problem(request, problem)
                    except app.UNAVAILABLE as error:
                        message = f"{error}; load the page again"
                        return renderer.problem(request, problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message))

                return handle_problems

        return PageRoute


def _visible(value: object) -> object:
    """Return a template's value with its control characters made visible."""
    if type(value) is str:
        return control_characters.escape(value)
    return "" if value is None else value


def rfc3339(time: datetime) -> str:
    """Return a time in UTC by RFC 3339, as the attribute `datetime` has it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(time: datetime) -> str:
    """Return a time in UTC for people; a script replaces it by the browser's local time."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """Return seconds for people, such as 420 ms, 3.2 s, 1 m 05 s, 2 h 10 m; "" for None."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} m {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} m"


def count(number: int | None) -> str:
    """Return a number for people, such as 950, 12.3 k, 4.1 M; "" for None."""
    if number is None:
        return ""
    for divisor, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= divisor * 10:
            return f"{number / divisor:.0f} {unit}"
        if number >= divisor:
            return f"{number / divisor:.1f} {unit}"
    return str(number)
