"""Problems: the answers to requests that cannot be served.

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
from starlette import exceptions, requests

from tarsy.ingest import payload

MEDIA_TYPE = "application/problem+json"
TYPE = "about:blank"
"""The type of all our problems: statuses tell them apart, and `title` is the status's own phrase."""
FAULTS_MAX = 10
_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Source: RFC 9110, section 15.5. Some Python versions have older phrases."""
ECHOED_MAX = 200
"""Characters of a request that an answer repeats."""

_REMEDIES = {
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "dict_type": "give an object",
    "extra_forbidden": "unknown field",
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
    """The place: `query.limit`, `path.identity`, `header.Idempotency-Key`, or a place in the body, such as `data`."""
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
    errors: Annotated[list[Fault] | None, Field(max_length=FAULTS_MAX)] = None
    """The places of the request that are wrong: the first ones, if there are many."""


class Problem(Exception):  # noqa: N818 - RFC 9457's own word
    """A request that cannot be served; `status` and `headers` follow RFC 9110, `detail` is for the caller."""

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
    """Return the problem (422) of a request with these faults. The first ones are listed, each truncated.

    `count` is the number of all faults, if `faults` are only the first.
    """
    all_faults = list(faults)
    listed = [
        Fault(place=fault.place[:ECHOED_MAX], message=fault.message[: payload.MESSAGE_MAX])
        for fault in all_faults[:FAULTS_MAX]
    ]
    sentences = [f"{fault.place}: {fault.message}" for fault in listed]
    if more := (len(all_faults) if count is None else count) - len(listed):
        sentences.append(f"and {more} more")
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(sentences), faults=listed)


def invalid_body(error: pydantic.ValidationError, model: type[BaseModel]) -> Problem:
    """Return the problem of a body that is not a valid `model`."""

    def remedy(details: core.ErrorDetails) -> str:
        if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
            names = (field.alias or name for name, field in model.model_fields.items())
            return f"unknown field; the fields are {', '.join(names)}"
        return _remedy(details)

    first = itertools.islice(payload.faults(error, describe=remedy), FAULTS_MAX)
    return invalid((Fault(place=location, message=message) for location, message in first), count=error.error_count())


def _remedy(details: Mapping[str, Any]) -> str:
    """Return our remedy for an error, or pydantic's message if we have none."""
    message: str = _REMEDIES.get(details["type"], details["msg"])
    return message.format_map(details.get("ctx", {})) if details["type"] in _REMEDIES else message


def install(app: FastAPI) -> None:
    """Make `app` answer every error with a problem: our own errors, the framework's, and defects."""
    errors = (Problem, RequestValidationError, exceptions.HTTPException, requests.ClientDisconnect, Exception)
    for error in errors:
        app.add_exception_handler(error, _answer)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    return response(problem_of(request, error))


def problem_of(request: Request, error: Exception) -> Problem:
    """Return the problem of a request that failed with `error`."""
    match error:
        case Problem():
            problem = error
        case RequestValidationError():
            faults = [
                Fault(place=".".join(map(str, details["loc"])), message=_remedy(details)) for details in error.errors()
            ]
            problem = invalid(faults)
        case exceptions.HTTPException():  # an unknown path or method
            message = f"{request.method[:ECHOED_MAX]} {request.url.path[:ECHOED_MAX]}: {error.detail}"
            headers = dict(error.headers or {})
            if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                headers["Allow"] = ", ".join(sorted(_methods(request)))
            problem = Problem(HTTPStatus(error.status_code), message, headers=headers)
        case requests.ClientDisconnect():  # not a defect, and no client receives the answer
            problem = Problem(HTTPStatus.BAD_REQUEST, "the connection was closed before the body had arrived")
        case _:  # the server logs it
            problem = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of TARSy; its log has the traceback")
    return problem


def _methods(request: Request) -> set[str]:
    """Return all methods of a path; the framework names only those of the first route with that path."""
    path = request.url.path
    contexts = routing.iter_route_contexts(request.app.routes)
    return {method for context in contexts if context.path_regex.match(path) for method in context.methods or ()}


def response(problem: Problem) -> JSONResponse:
    """Return the response to a request with a problem."""
    return JSONResponse(
        to_json(problem.status, problem.detail, faults=problem.faults),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def raw_response(status: HTTPStatus, detail: str) -> bytes:
    """Return a complete HTTP response, after which the connection is closed."""
    content = json.dumps(to_json(status, detail)).encode()
    head = f"HTTP/1.1 {status:d} {phrase(status)}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + content


def phrase(status: HTTPStatus) -> str:
    """Return the phrase of a status."""
    return _PHRASES.get(status, status.phrase)


def to_json(status: HTTPStatus, detail: str, *, faults: Sequence[Fault] = ()) -> dict[str, Any]:
    """Return a problem as JSON."""
    details = Details(title=phrase(status), status=status, detail=detail, errors=list(faults) or None)
    return details.model_dump(mode="json", exclude_none=True)
