"""Errors as the API tells them: problem details.

Source: RFC 9457.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import pydantic
import pydantic_core as core
from fastapi import FastAPI, Request, routing
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette import exceptions

from tarsy.ingest import payload

MEDIA_TYPE = "application/problem+json"
TYPE = "about:blank"
"""The type of all our problems: statuses tell them apart, and `title` is the status's own phrase."""
FAULTS_TOLD = 10
_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""By RFC 9110, section 15.5; Python's own are older, or not, by its version."""
ECHOED_MAX = 200
"""Characters of what came with a request that are told back."""

_PLAIN = {
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "dict_type": "give an object",
    "extra_forbidden": "no such field",
    "greater_than_equal": "give {ge} or more",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "less_than_equal": "give {le} or less",
    "list_type": "give a list",
    "literal_error": "give {expected}",
    "missing": "it is missing",
    "model_type": "give an object",
    "string_pattern_mismatch": "give a text that matches {pattern}",
    "string_too_long": "give {max_length} characters at most",
    "string_too_short": "give {min_length} character(s) or more",
    "string_type": "give a text",
    "too_long": "give {max_length} at most",
    "too_short": "give {min_length} or more",
    "value_error": "{error}",
}
"""The remedy for each of pydantic's error types, with the error's own parameters (`ctx`)."""


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    place: str
    """Where: `query.limit`, `path.identity`, `header.Idempotency-Key`, or a place in the body, such as `data`."""
    message: str
    """The problem there, and the remedy."""


class Details(BaseModel):
    """A request that was not served, and why (RFC 9457)."""

    model_config = ConfigDict(title="Problem", use_attribute_docstrings=True)

    type: str = TYPE
    """Always `about:blank`: the status tells problems apart."""
    title: str
    """The phrase of the status."""
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    """The problem of this request."""
    errors: Annotated[list[Fault] | None, Field(max_length=FAULTS_TOLD)] = None
    """With 422, where the request has several places: the first of those that are wrong."""


class Problem(Exception):  # noqa: N818 - RFC 9457's own word
    """A request that cannot be served: `status` and `headers` by RFC 9110, `detail` for the one who asked."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.faults = faults


def invalid(faults: Iterable[Fault], *, count: int | None = None) -> Problem:
    """The problem of a request that is wrong in these places; the first few are told, each cut to what one can read.

    `count` is how many there are, where `faults` are only the first of them.
    """
    all_faults = list(faults)
    listed = [
        Fault(place=fault.place[:ECHOED_MAX], message=fault.message[: payload.MESSAGE_MAX])
        for fault in all_faults[:FAULTS_TOLD]
    ]
    more = (len(all_faults) if count is None else count) - len(listed)
    detail = "; ".join(
        [*(f"{fault.place}: {fault.message}" for fault in listed), *([f"and {more} more"] if more else [])]
    )
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, faults=listed)


def of_body(error: pydantic.ValidationError, model: type[BaseModel]) -> Problem:
    """The problem of a body that is no `model`."""

    def wording(problem: core.ErrorDetails) -> str:
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            return f"no such field: there is {', '.join(model.model_fields)}"
        return _plain(problem)

    first = itertools.islice(payload.faults(error, describe=wording), FAULTS_TOLD)
    return invalid((Fault(place=location, message=message) for location, message in first), count=error.error_count())


def _plain(problem: Mapping[str, Any]) -> str:
    """Return the remedy for an error; in pydantic's words if we have none."""
    message: str = _PLAIN.get(problem["type"], problem["msg"])
    return message.format_map(problem.get("ctx", {})) if problem["type"] in _PLAIN else message


def tell(app: FastAPI) -> None:
    """Have `app` tell all its errors as problems: ours, the framework's, and our defects."""
    app.add_exception_handler(Problem, _respond)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(exceptions.HTTPException, _unserved)
    app.add_exception_handler(Exception, _unexpected)


async def _respond(_request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, Problem)  # noqa: S101 - registered for it alone
    return response(problem)


async def _unserved(request: Request, error: Exception) -> JSONResponse:
    """The response to an unknown path or method."""
    assert isinstance(error, exceptions.HTTPException)  # noqa: S101 - registered for it alone
    message = f"{request.method[:ECHOED_MAX]} {request.url.path[:ECHOED_MAX]}: {error.detail}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response(Problem(HTTPStatus(error.status_code), message, headers=headers))


def _methods(request: Request) -> set[str]:
    """All that its path is served by; the framework tells those of the first route that has the path."""
    path = request.url.path
    matching = [
        route_context
        for route_context in routing.iter_route_contexts(request.app.routes)
        if route_context.path_regex.match(path)
    ]
    return {method for route_context in matching for method in route_context.methods or ()}


async def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    """The response to a request that met a defect; the server logs it."""
    return response(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of TARSy; its log has the traceback"))


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """The response to a path or query that is not what it should be."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
    faults = [
        Fault(place=".".join(map(str, error_detail["loc"])), message=_plain(error_detail))
        for error_detail in error.errors()
    ]
    return response(invalid(faults))


def response(problem: Problem) -> JSONResponse:
    """How a problem is answered."""
    return JSONResponse(
        body(problem.status, problem.detail, faults=problem.faults),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def raw(status: HTTPStatus, detail: str) -> bytes:
    """A whole answer, after which the connection is closed: for who speaks no more HTTP than that."""
    content = json.dumps(body(status, detail)).encode()
    head = f"HTTP/1.1 {status:d} {phrase(status)}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + content


def phrase(status: HTTPStatus) -> str:
    """Return the phrase of a status."""
    return _PHRASES.get(status, status.phrase)


def body(status: HTTPStatus, detail: str, *, faults: Sequence[Fault] = ()) -> dict[str, Any]:
    """Return the body of a problem, as JSON."""
    details = Details(title=phrase(status), status=status, detail=detail, errors=list(faults) or None)
    return details.model_dump(mode="json", exclude_none=True)
