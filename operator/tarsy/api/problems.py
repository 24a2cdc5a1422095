"""Errors as the API tells them: problem details.

Source: RFC 9457.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):  # noqa: N818 - RFC 9457's own word
    """A request that cannot be served: `status` by RFC 9110, `detail` for the one who asked."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def respond(_request: Request, problem: Exception) -> JSONResponse:
    """The response that tells `problem`."""
    assert isinstance(problem, Problem)  # noqa: S101 - registered for it alone
    return _response(problem)


async def invalid(_request: Request, error: Exception) -> JSONResponse:
    """The response to a path or query that is not what it should be."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it alone
    places = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return _response(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, places))


def _response(problem: Problem) -> JSONResponse:
    return JSONResponse(
        {"status": problem.status, "title": problem.status.phrase, "detail": problem.detail},
        status_code=problem.status,
        media_type=MEDIA_TYPE,
    )
