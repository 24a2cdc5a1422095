"""Errors as the API tells them: problem details.

Source: RFC 9457.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette import exceptions

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):  # noqa: N818 - RFC 9457's own word
    """A request that cannot be served: `status` and `headers` by RFC 9110, `detail` for the one who asked."""

    def __init__(self, status: HTTPStatus, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


def tell(app: FastAPI) -> None:
    """Have `app` tell all its errors as problems: ours, the framework's, and our defects."""
    app.add_exception_handler(Problem, _respond)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(exceptions.HTTPException, _unserved)
    app.add_exception_handler(Exception, _unexpected)


async def _respond(_request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, Problem)  # noqa: S101 - registered for it alone
    return _response(problem)


async def _unserved(request: Request, error: Exception) -> JSONResponse:
    """The response to a path or a method that nobody serves."""
    assert isinstance(error, exceptions.HTTPException)  # noqa: S101 - registered for it alone
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _response(Problem(HTTPStatus(error.status_code), message, headers=error.headers))


async def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    """The response to a request that met a defect; the server logs it."""
    return _response(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of TARSy; its log has the traceback"))


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """The response to a path or query that is not what it should be."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
    places = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return _response(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, places))


def _response(problem: Problem) -> JSONResponse:
    return JSONResponse(
        {"status": problem.status, "title": problem.status.phrase, "detail": problem.detail},
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )
