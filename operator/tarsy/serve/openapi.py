"""The API's description (OpenAPI): FastAPI's, completed with the common parts of operations.

A route declares its parameters, its answers, the problems of its own (`problem_responses`), and through its
dependencies the right that it needs (`Right`). `complete` adds the problems that follow from these, the security
schemes and the examples. Examples are files, named after the `operation_id`: they are data, and longer than the route.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.openapi import models
from fastapi.security import base

from tarsy.serve import problems

PROBLEMS: dict[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "The request is no valid HTTP, or its body is no valid JSON.",
    HTTPStatus.UNAUTHORIZED: "The token is missing, or not valid.",
    HTTPStatus.FORBIDDEN: "The caller may not do this, or the chain does not allow it.",
    HTTPStatus.NOT_FOUND: "Nothing has this id.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The path has other methods; the Allow header names them.",
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive within 10 seconds.",
    HTTPStatus.CONFLICT: "The present state of the object does not allow this.",
    HTTPStatus.GONE: "The object no longer exists.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body, or a text in it, is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "Without a token the Content-Type has to be application/json.",
    HTTPStatus.MISDIRECTED_REQUEST: "With --insecure-dev only this machine is served, and the Host names another one.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Parameters or fields are wrong or unknown; `errors` names them.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests of this caller, or a budget is used up; see Retry-After.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A defect of TARSy; its log has the traceback.",
    HTTPStatus.SERVICE_UNAVAILABLE: "A service that this needs is unavailable or full; the request may work later.",
}
"""The description of each status that routes can answer."""
_UNKNOWN_PARAMETER = problems.Fault(place="query.limt", message="unknown parameter; the parameters are after, limit")
_DETAILS: dict[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
    HTTPStatus.UNAUTHORIZED: "give the token as `Authorization: Bearer <token>`",
    HTTPStatus.FORBIDDEN: "chain 'pod-crash' takes no questions (spec.chat.enabled: false)",
    HTTPStatus.NOT_FOUND: "there is no investigation with id 6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64",
    HTTPStatus.METHOD_NOT_ALLOWED: "DELETE /healthz: Method Not Allowed",
    HTTPStatus.REQUEST_TIMEOUT: "the request has to arrive within 10 s",
    HTTPStatus.CONFLICT: "it has not ended yet: ask after its end",
    HTTPStatus.GONE: "its object was deleted: no question about it is possible",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "the body is over 10485760 bytes",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "without a token only JSON is taken: send Content-Type: application/json",
    HTTPStatus.MISDIRECTED_REQUEST: "without a token only this machine is served: call 127.0.0.1, [::1] or localhost",
    HTTPStatus.UNPROCESSABLE_ENTITY: f"{_UNKNOWN_PARAMETER.place}: {_UNKNOWN_PARAMETER.message}",
    HTTPStatus.TOO_MANY_REQUESTS: "too many requests from this caller: send the next one in 3 s",
    HTTPStatus.INTERNAL_SERVER_ERROR: "a defect of TARSy; its log has the traceback",
    HTTPStatus.SERVICE_UNAVAILABLE: "the database cannot be reached",
}
"""The `detail` of each status's example."""


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    return {name: {"description": description, "schema": {"type": "string"}, "example": example}}


_HEADERS: dict[HTTPStatus, dict[str, Any]] = {
    HTTPStatus.UNAUTHORIZED: _header("WWW-Authenticate", "How to give the token.", "Bearer"),
    HTTPStatus.TOO_MANY_REQUESTS: _header("Retry-After", "Seconds.", "3"),
    HTTPStatus.SERVICE_UNAVAILABLE: _header("Retry-After", "Seconds, if the service is full.", "5"),
}
_ANY_REQUEST = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_WITH_A_RIGHT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_SUFFIXES = {"application/json": "json", "text/markdown": "md"}
"""The suffixes of example files, by media type."""


class Right(base.SecurityBase):
    """A right that a route needs, as a `Security` parameter of the dependency that checks it.

    FastAPI then lists it among the route's security requirements, where `complete` finds it.
    """

    def __init__(self, name: str, needs: str, *, schemes: Sequence[str]) -> None:
        """`schemes` are the security schemes that can show the right, each alone."""
        self.scheme_name = name
        self.model = models.SecurityBase.model_validate({"type": "http", "description": needs, "schemes": schemes})

    async def __call__(self) -> None:
        """Do nothing: the dependency that has this parameter checks the right."""


def body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a JSON body itself."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def problem_responses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for the problems that only it answers."""
    return {status: {"description": PROBLEMS[status]} for status in statuses}


def complete(description: dict[str, Any], *, schemes: dict[str, dict[str, Any]], examples: Mapping[str, str]) -> None:
    """Complete FastAPI's description of an application.

    `schemes` are its security schemes, `examples` texts by file name: `OPERATION.json` is an answer,
    `OPERATION.body.json` a body, `OPERATION.503.json` an answer with that status.
    """
    components = description["components"]
    rights = components["securitySchemes"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            _add_rights(operation, rights)
            _add_problems(operation, path=path, method=method)
            operation["summary"] = operation.get("description", "").partition("\n")[0].rstrip(".")
            _add_examples(operation, examples)
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    details = problems.Details.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**details.pop("$defs"), "Problem": details}
    components["responses"] = {_name(status): _problem(status) for status in PROBLEMS}
    components["securitySchemes"] = schemes
    _remove_titles(description)


def _add_rights(operation: dict[str, Any], rights: Mapping[str, dict[str, Any]]) -> None:
    """Replace the rights that FastAPI lists by the security schemes, and name the rights in the description."""
    needed = [rights[name] for requirement in operation.get("security", ()) for name in requirement]
    operation["security"] = [{scheme: []} for scheme in needed[0]["schemes"]] if needed else []
    if needed:
        needs = " and ".join(right["description"] for right in needed)
        operation["description"] = f"{operation.get('description', '')}\n\nNeeds {needs}.".strip()


def _add_problems(operation: dict[str, Any], *, path: str, method: str) -> None:
    answers = operation["responses"]
    own = [HTTPStatus(int(status)) for status in answers if int(status) >= HTTPStatus.BAD_REQUEST]
    statuses = {*_ANY_REQUEST, *(_WITH_A_RIGHT if operation["security"] else ()), *own}
    if "{" in path:
        statuses.add(HTTPStatus.NOT_FOUND)
    if method not in ("get", "head"):
        statuses.add(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    if "requestBody" in operation:
        statuses.add(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    for status in sorted(statuses):
        key = str(int(status))
        if "content" in answers.get(key, {}) and status != HTTPStatus.UNPROCESSABLE_ENTITY:  # FastAPI declares that one
            answers[key]["content"] |= _problem(status)["content"]
        else:
            answers[key] = {"$ref": f"#/components/responses/{_name(status)}"}


def _add_examples(operation: dict[str, Any], examples: Mapping[str, str]) -> None:
    name = operation["operationId"]
    contents = {f"{name}.body": operation.get("requestBody", {}).get("content", {})}
    for status, answer in operation["responses"].items():
        contents[name if status < "300" else f"{name}.{status}"] = answer.get("content", {})
    for stem, by_media_type in contents.items():
        for media_type in by_media_type.keys() & _SUFFIXES.keys():
            suffix = _SUFFIXES[media_type]
            if example := examples.get(f"{stem}.{suffix}"):
                by_media_type[media_type]["example"] = json.loads(example) if suffix == "json" else example


def _problem(status: HTTPStatus) -> dict[str, Any]:
    """Return the response that describes a problem with this status."""
    example = problems.to_json(
        status, _DETAILS[status], faults=[_UNKNOWN_PARAMETER] if status == HTTPStatus.UNPROCESSABLE_ENTITY else ()
    )
    content = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}
    headers = {"headers": _HEADERS[status]} if status in _HEADERS else {}
    return {"description": PROBLEMS[status], "content": content, **headers}


def _name(status: HTTPStatus) -> str:
    """Return the status's phrase as a name, such as `NotFound`."""
    return "".join(word.capitalize() for word in problems.phrase(status).replace("-", " ").split())


def _remove_titles(part: Any) -> None:
    """Remove the titles that pydantic derives from the names of properties and parameters."""
    if isinstance(part, dict):
        properties = part.get("properties") if part.get("type") == "object" else None
        schemas = [*properties.values()] if isinstance(properties, dict) else []
        if "in" in part:
            schemas.append(part.get("schema"))
        for schema in schemas:
            if isinstance(schema, dict):
                schema.pop("title", None)
        for value in part.values():
            _remove_titles(value)
    elif isinstance(part, list):
        for value in part:
            _remove_titles(value)
