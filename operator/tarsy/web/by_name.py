"""The address of an investigation by its object's name, as the object's annotations have it (`resources.links`)."""

from __future__ import annotations

from http import HTTPStatus
from urllib import parse

from fastapi import APIRouter, Depends, Response

from tarsy.auth import parameters, permissions
from tarsy.web import rendering


def routes(access: permissions.Access, renderer: rendering.Renderer) -> APIRouter:
    """Return the route `/inv/{namespace}/{name}`."""
    router = APIRouter(route_class=renderer.route_class(), redirect_slashes=False)

    @router.get("/inv/{namespace}/{name}", include_in_schema=False)
    async def by_name(
        namespace: parameters.ObjectNamespace, name: parameters.ObjectName, uid: str | None = Depends(access.look_up)
    ) -> Response:
        """Lead to the page of the object that has the name now, or to the list of those that had it."""
        filters = parse.urlencode({"namespace": namespace, "name": name})
        address = f"/investigations/{uid}" if uid else f"/?{filters}"
        return Response(status_code=HTTPStatus.SEE_OTHER, headers=rendering.HEADERS | {"Location": address})

    return router
