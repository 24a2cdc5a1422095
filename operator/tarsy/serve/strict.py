"""Strict routes: they refuse undeclared and repeated parameters, and bodies that they do not read.

If a mistyped filter were ignored, the answer would hold more than the caller asked for.
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

from tarsy.serve import problems

_EMPTY = (b"", b"{}")
"""The bodies of clients that send JSON with every request."""
_EMPTY_MAX = 16  # bytes


class Route(routing.APIRoute):
    """A route that refuses undeclared parameters and bodies, after it has checked the caller's rights."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        """`endpoint` is an async function; `options` are FastAPI's."""
        super().__init__(path, _with_last_dependency(endpoint, self._check), **options)
        declared = dict(_query_parameters(self.dependant))
        self._queries = sorted(declared)
        self._lists = {name for name, annotation in declared.items() if _is_list(annotation)}
        self._has_body = self.body_field is not None or "requestBody" in (self.openapi_extra or {})

    async def _check(self, request: Request) -> None:
        names = f"the parameters are {', '.join(self._queries)}" if self._queries else "this path has none"
        faults = [
            problems.Fault(place=f"query.{name}", message=f"unknown parameter; {names}")
            for name in dict.fromkeys(request.query_params)
            if name not in self._queries
        ]
        for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
            if times > 1 and name in self._queries and name not in self._lists:
                faults.append(problems.Fault(place=f"query.{name}", message=f"it appears {times} times; give it once"))
        if not self._has_body and not await _is_empty(request):
            faults.append(problems.Fault(place="body", message="this path takes no body; send none"))
        if faults:
            raise problems.invalid(faults)


def router(*, prefix: str = "", tag: str, dependencies: Sequence[params.Depends] = ()) -> APIRouter:
    """Return a router of strict routes; `tag` is one of the API's tags."""
    return APIRouter(
        prefix=prefix, tags=[tag], dependencies=list(dependencies), route_class=Route, redirect_slashes=False
    )


def _with_last_dependency(
    endpoint: Callable[..., Awaitable[Any]], check: Callable[[Request], Awaitable[None]]
) -> Callable[..., Awaitable[Any]]:
    """Return `endpoint` with `check` as its last dependency: a caller without the right must not learn its result.

    FastAPI resolves the dependencies of routers and routes first, then those of the signature in its order.
    """

    @functools.wraps(endpoint)
    async def checked(*, _checked: None, **arguments: Any) -> Any:
        return await endpoint(**arguments)

    signature = inspect.signature(endpoint)
    last = inspect.Parameter("_checked", inspect.Parameter.KEYWORD_ONLY, default=Depends(check))
    checked.__signature__ = signature.replace(parameters=[*signature.parameters.values(), last])  # type: ignore[attr-defined]
    return checked


async def _is_empty(request: Request) -> bool:
    """Whether the body is empty or `{}`; a body of unknown length is not."""
    if "transfer-encoding" in request.headers:
        return False
    length = int(request.headers.get("content-length", 0))
    return length == 0 or (length <= _EMPTY_MAX and (await request.body()).strip() in _EMPTY)


def _query_parameters(dependant: models.Dependant) -> Iterator[tuple[str, Any]]:
    """Yield the query parameters of a route and of its dependencies, with their types; fields of a model count."""
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            for name, field_info in annotation.model_fields.items():
                yield field_info.alias or name, field_info.annotation
        else:
            yield field.alias, annotation
    for dependency in dependant.dependencies:
        yield from _query_parameters(dependency)


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        return any(map(_is_list, get_args(annotation)))
    return (origin or annotation) in (list, tuple, set, frozenset)
