"""Routes that refuse the unknown: undeclared parameters, and bodies without use.

A mistyped filter that was ignored would answer more than was asked for, and look as if it had worked.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import APIRouter, Depends, Request, params, routing
from fastapi.dependencies import models
from pydantic import BaseModel

from tarsy.serve import bodies, problems

_EMPTY = (b"", b"{}")
"""The bodies of clients that send JSON with every request."""
_EMPTY_MAX = 16  # bytes


class Route(routing.APIRoute):
    """A route that refuses, once it is known who calls, what it does not declare."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **named: Any) -> None:
        """`endpoint` is an async function; what else there is to name is FastAPI's."""
        super().__init__(path, _after_the_others(endpoint, self._check), **named)
        declared = dict(_declared(self.dependant))
        self._queries = sorted(declared)
        self._lists = {name for name, annotation in declared.items() if _is_list(annotation)}
        self._takes_a_body = self.body_field is not None or "requestBody" in (self.openapi_extra or {})

    async def _check(self, request: Request) -> None:
        faults = [*self._unknown(request), *self._repeated(request)]
        if not self._takes_a_body and not await _is_empty(request):
            faults.append(problems.Fault(place="body", message="nothing is read from it here: send none"))
        if faults:
            raise problems.invalid(faults)

    def _unknown(self, request: Request) -> Iterator[problems.Fault]:
        there_is = f"there is {', '.join(self._queries)}" if self._queries else "there is none here"
        for name in dict.fromkeys(request.query_params):
            if name not in self._queries:
                yield problems.Fault(place=f"query.{name}", message=f"no such parameter: {there_is}")

    def _repeated(self, request: Request) -> Iterator[problems.Fault]:
        counts = Counter(name for name, _ in request.query_params.multi_items())
        for name, times in counts.items():
            if times > 1 and name in self._queries and name not in self._lists:
                yield problems.Fault(place=f"query.{name}", message=f"it is there {times} times: give it once")


def router(*, prefix: str = "", tag: str, dependencies: Sequence[params.Depends] = ()) -> APIRouter:
    """A router for the routes of one area; `tag` is one of the application's."""
    return APIRouter(
        prefix=prefix, tags=[tag], dependencies=list(dependencies), route_class=Route, redirect_slashes=False
    )


def _after_the_others(
    endpoint: Callable[..., Awaitable[Any]], check: Callable[[Request], Awaitable[None]]
) -> Callable[..., Awaitable[Any]]:
    """Return `endpoint` with `check` as its last dependency, so that a caller without the right learns nothing from it.

    FastAPI puts the dependencies of routers and routes first, those of the signature after them, in its order.
    """

    @functools.wraps(endpoint)
    async def checked(*, strictly: None, **given: Any) -> Any:  # noqa: ARG001 - there for its effect
        return await endpoint(**given)

    signature = inspect.signature(endpoint)
    last = inspect.Parameter("strictly", inspect.Parameter.KEYWORD_ONLY, default=Depends(check))
    checked.__signature__ = signature.replace(parameters=[*signature.parameters.values(), last])  # type: ignore[attr-defined]
    return checked


async def _is_empty(request: Request) -> bool:
    """Whether the body is as good as none; one whose length is not told counts as one that is there."""
    if "transfer-encoding" in request.headers:
        return False
    length = int(request.headers.get("content-length", 0))
    return length == 0 or (length <= _EMPTY_MAX and (await bodies.read(request, limit=_EMPTY_MAX)).strip() in _EMPTY)


def _declared(dependant: models.Dependant) -> Iterator[tuple[str, Any]]:
    """The query parameters of a route and of all that it depends on, with their types; a model's fields are some."""
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            yield from (
                (field_info.alias or name, field_info.annotation)
                for name, field_info in annotation.model_fields.items()
            )
        else:
            yield field.alias, annotation
    for dependency in dependant.dependencies:
        yield from _declared(dependency)


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        return any(map(_is_list, get_args(annotation)))
    return (origin or annotation) in (list, tuple, set, frozenset)
