"""Signing in with a one-time code, and signing out."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from tarsy.auth import permissions, sessions
from tarsy.serve import problems
from tarsy.web import rendering

_NOT_FROM_OTHER_SITE = ("none", "same-origin", "same-site")
"""Values of Sec-Fetch-Site for an address that no other site's page opened. Source: W3C, "Fetch Metadata"."""

_PAGE = r"^/([A-Za-z0-9_-][A-Za-z0-9/_.-]*)?$"
"""The path of a page of ours; with `//` or a backslash it could be an address of another site."""


def routes(access: permissions.Access, renderer: rendering.Renderer) -> APIRouter:
    """Return the routes `/sign-in` and `/sign-out`."""
    router = APIRouter(route_class=renderer.route_class(), redirect_slashes=False)

    @router.get("/sign-in", include_in_schema=False)
    async def sign_in(
        request: Request,
        code: Annotated[str, Query(max_length=100)] = "",
        next_page: Annotated[str, Query(alias="next", max_length=200, pattern=_PAGE)] = "/",
    ) -> Response:
        """Exchange a one-time code for a cookie, and go to a page.

        A link on another site cannot sign its reader in as another user.
        """
        address = access.address(request)
        if request.headers.get("Sec-Fetch-Site", "none") not in _NOT_FROM_OTHER_SITE:
            raise problems.Problem(HTTPStatus.FORBIDDEN, "another site led here: run `tarsy open` to sign in")
        session = await access.sessions.begin(code, address=address)
        if session is None:
            message = "the code is unknown, used or older than 30 seconds: run `tarsy open` again"
            raise problems.Problem(HTTPStatus.UNAUTHORIZED, message)
        cookie = sessions.set_cookie(session, is_https=access.site(request).startswith("https:"))
        headers = rendering.HEADERS | {"Location": next_page, "Set-Cookie": cookie}
        return Response(status_code=HTTPStatus.SEE_OTHER, headers=headers)

    @router.post("/sign-out", include_in_schema=False)
    async def sign_out(request: Request, cookie: str | None = Depends(access.sign_out)) -> Response:
        """End the session."""
        if cookie:
            await access.sessions.end(cookie, address=access.address(request))
        header = sessions.clear_cookie(is_https=access.site(request).startswith("https:"))
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Set-Cookie": header})

    return router
