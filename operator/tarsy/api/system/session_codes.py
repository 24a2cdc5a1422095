"""One-time codes that sign a browser in: a user exchanges a token for a code, so the browser never gets the token."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from tarsy.auth import identities, permissions
from tarsy.kube import reviews
from tarsy.serve import problems, strict
from tarsy.store.base import audit

PATH = "/sign-in"
"""The page that takes a code."""


class SessionCode(BaseModel):
    """An address that signs a browser in, once."""

    url: str
    """The address to open in the browser."""
    expires_at: datetime | None
    """The end of the code in `url`, 30 seconds from now. None if the pages need no sign-in."""


def routes(access: permissions.Access, *, has_pages: bool) -> APIRouter:
    """Return the route `POST /api/v1/session-codes`, which answers 404 if there are no pages."""
    router = strict.router(prefix="/api/v1", tag="system")

    @router.post("/session-codes", operation_id="createSessionCode", status_code=HTTPStatus.CREATED)
    async def create(request: Request, identity: identities.Identity = Depends(access.sign_in)) -> SessionCode:
        """Create a one-time code, with which a browser gets a session that has the rights of this token."""
        if not has_pages:
            raise problems.Problem(
                HTTPStatus.NOT_FOUND, "there are no pages: web.enabled of the platform file is false"
            )
        site = access.site(request)
        if not isinstance(identity.principal, reviews.User):
            return SessionCode(url=f"{site}/", expires_at=None)
        by = audit.Caller(who=identity.author, address=identity.address)
        code = await access.sessions.create_code(identity.principal, token_end=identity.token_expiry, by=by)
        return SessionCode(url=f"{site}{PATH}?code={code.code}", expires_at=code.expires_at)

    return router
