"""The page of the list: investigations that run or wait first, then those that have ended."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from tarsy.api.investigations import lists
from tarsy.auth import permissions
from tarsy.web import rendering


def routes(investigation_lists: lists.Lists, access: permissions.Access, renderer: rendering.Renderer) -> APIRouter:
    """Return the route `/`."""
    router = APIRouter(route_class=renderer.route_class(), redirect_slashes=False)
    read_request = lists.list_request(access)

    @router.get("/", include_in_schema=False)
    async def page(request: Request, listed: lists.ListRequest = Depends(read_request)) -> Response:
        """Show a list of investigations."""
        return renderer.page(
            request,
            "list.html",
            title="Investigations",
            section="Investigations",
            user=listed.scope.caller,
            page=await investigation_lists.rows(listed),
        )

    return router
