"""The page of the list: investigations that run or wait first, then those that have ended.

The state of the page is its URL. A fragment is the same page without its frame, for the script that keeps it current.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, get_args
from urllib import parse

from fastapi import APIRouter, Depends, Request, Response

from tarsy.api.investigations import lists
from tarsy.auth import permissions
from tarsy.resources import investigations
from tarsy.serve import problems, strict
from tarsy.views import rows
from tarsy.web import rendering

OPEN: tuple[investigations.Phase, ...] = get_args(investigations.OpenPhase)
ENDED: tuple[investigations.Phase, ...] = get_args(investigations.EndedPhase)
CARDS_MAX = 10
"""Active investigations that the first page shows above the ended ones."""
_STATE = (
    "namespace",
    "phase",
    "alert_type",
    "chain",
    "author",
    "fingerprint",
    "severity",
    "name",
    "grounded",
    "feedback",
    "deleted",
)
_PARAMETERS = (*_STATE, "since", "until", "q", "sort", "limit")
"""The parameters of the list, but the cursor."""
SUGGESTED_MAX = 50
"""Values that a filter suggests."""
SORTS = {
    "-admitted_at": "Newest first",
    "admitted_at": "Oldest first",
    "-ended_at": "Ended last",
    "ended_at": "Ended first",
    "alert_type": "Alert type",
    "chain": "Chain",
    "author": "Author",
    "name": "Name",
    "-alert_type": "Alert type, reversed",
    "-chain": "Chain, reversed",
    "-author": "Author, reversed",
    "-name": "Name, reversed",
}


@dataclass(frozen=True, kw_only=True)
class PhaseLink:
    """The number of investigations in some phases, and the address of the list of them."""

    label: str
    number: int
    address: str
    is_selected: bool


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """The content of the page."""

    active: list[rows.Row]
    """Investigations that run or wait."""
    active_count: int
    all_active: str | None
    """The address of all active ones, if there are more than `active`."""
    history: list[rows.Row] | None
    """Investigations that have ended; None if the list is of active ones only."""
    counts: list[PhaseLink]
    counts_exact: bool
    next: str | None
    """The address of the next page."""
    first: str | None
    """The address of the first page; None if this is it."""
    unchecked: list[str]
    """The namespaces that are left out, because it cannot be checked now whether the reader may list them."""

    def suggested(self, field: str) -> list[str]:
        """Return the values of a field in the rows of the page, which its filter suggests."""
        values = {getattr(row, field) for row in [*self.active, *(self.history or [])]}
        return sorted(filter(None, values))[:SUGGESTED_MAX]

    @property
    def is_empty(self) -> bool:
        """Whether the page shows no investigation."""
        return not self.active and not self.history


def routes(investigation_lists: lists.Lists, access: permissions.Access, renderer: rendering.Renderer) -> APIRouter:
    """Return the routes `/` and `/fragments/investigations`."""
    router = APIRouter(route_class=_form_route(renderer.route_class()), redirect_slashes=False)
    read_request = lists.list_request(access)

    async def choices(request: Request, scope: permissions.Scope) -> list[str]:
        """Return the namespaces of the filter: all that the reader may list, and those that are chosen."""
        if not scope.named:
            return sorted(scope.namespaces)
        try:
            readable = (await access.list_in(request)).namespaces
        except problems.Problem:
            readable = {}
        return sorted({*scope.named, *readable})

    @router.get("/", include_in_schema=False)
    async def page(request: Request, listed: lists.ListRequest = Depends(read_request)) -> Response:
        """Show a list of investigations."""
        return renderer.page(
            request,
            "list.html",
            title="Investigations",
            section="Investigations",
            user=listed.scope.caller,
            shown=await _read(investigation_lists, listed, request),
            chosen=request.query_params,
            namespaces=await choices(request, listed.scope),
            live=parse.urlencode([("namespace", name) for name in listed.scope.named]),
            is_filtered=_is_filtered(request),
            is_narrowed=any(name in request.query_params for name in _ADVANCED),
            sorts=SORTS,
            query=request.url.query,
        )

    @router.get("/fragments/investigations", include_in_schema=False)
    async def fragment(request: Request, listed: lists.ListRequest = Depends(read_request)) -> Response:
        """Return the parts of the page that change."""
        content = await _read(investigation_lists, listed, request)
        return renderer.page(request, "list_fragment.html", shown=content, is_filtered=_is_filtered(request))

    return router


_ADVANCED = ("author", "since", "until", "grounded", "feedback", "deleted", "name", "fingerprint", "namespace")
"""Filters that the form folds in."""


def _is_filtered(request: Request) -> bool:
    return any(name in request.query_params for name in (*_STATE, "since", "until", "q"))


def _form_route(route_class: type[strict.Route]) -> type[strict.Route]:
    """Return a class of routes that take away the parameters that a form sends empty."""

    class FormRoute(route_class):  # type: ignore[valid-type,misc]
        """A route that leads a form with empty fields to the address without them."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the handler of a request."""
            handle = super().get_route_handler()

            async def handle_form(request: Request) -> Response:
                parameters = request.query_params.multi_items()
                filled = [(name, value) for name, value in parameters if value]
                if len(filled) == len(parameters):
                    response: Response = await handle(request)
                    return response
                address = f"{request.url.path}?{parse.urlencode(filled)}" if filled else request.url.path
                headers = rendering.HEADERS | {"Location": address}
                return Response(status_code=HTTPStatus.SEE_OTHER, headers=headers)

            return handle_form

    return FormRoute


async def _read(investigation_lists: lists.Lists, listed: lists.ListRequest, request: Request) -> ListPage:
    """Return the content of the page: on the first one the active investigations, too."""
    chosen = listed.query.phases
    open_phases = [phase for phase in chosen or OPEN if phase in OPEN]
    ended_phases = [phase for phase in chosen or ENDED if phase in ENDED]
    page = await investigation_lists.rows(_with_phases(listed, ended_phases or open_phases))
    active_count = sum(page.counts[phase] for phase in open_phases)
    active, has_more = [], False
    if not ended_phases:
        active = page.items
    elif active_count and listed.cursor is None:
        limited = dataclasses.replace(listed, limit=min(CARDS_MAX, listed.limit))
        first_active = await investigation_lists.rows(_with_phases(limited, open_phases))
        active, has_more = first_active.items, first_active.next is not None
    after = page.next
    return ListPage(
        active=active,
        active_count=active_count,
        all_active=_address(request, phases=open_phases) if has_more else None,
        history=page.items if ended_phases else None,
        counts=_phase_links(page, request, chosen),
        counts_exact=page.counts_exact,
        next=_address(request, phases=chosen, cursor=after) if after else None,
        first=_address(request, phases=chosen) if listed.cursor else None,
        unchecked=[namespace.name for namespace in page.unchecked_namespaces],
    )


def _with_phases(listed: lists.ListRequest, phases: Iterable[investigations.Phase]) -> lists.ListRequest:
    return dataclasses.replace(listed, query=dataclasses.replace(listed.query, phases=tuple(phases)))


def _phase_links(page: rows.Page, request: Request, chosen: tuple[investigations.Phase, ...]) -> list[PhaseLink]:
    groups: list[tuple[str, tuple[investigations.Phase, ...]]] = [("All", ())]
    groups += [(phase, (phase,)) for phase in page.counts if page.counts[phase] or phase in chosen]
    return [
        PhaseLink(
            label=label,
            number=sum(page.counts[phase] for phase in phases or page.counts),
            address=_address(request, phases=phases),
            is_selected=set(phases) == set(chosen),
        )
        for label, phases in groups
    ]


def _address(request: Request, *, phases: Iterable[str], cursor: str | None = None) -> str:
    """Return the address of the list with these phases and all other parameters of the request."""
    filters = [
        (name, value) for name, value in request.query_params.multi_items() if name in _PARAMETERS and name != "phase"
    ]
    parameters = [*filters, *(("phase", phase) for phase in phases), *([("cursor", cursor)] if cursor else [])]
    return f"/?{parse.urlencode(parameters)}" if parameters else "/"
