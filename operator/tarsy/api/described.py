"""How the API describes itself (OpenAPI): what a route cannot say of itself is added here, for all of them.

A route says what it takes and answers. Who may call it follows from the right that it asks for (`permissions`), and
which problems it can answer from what it depends on; those of its own it names by `problems`. Its examples are files
beside this one, found by its `operation_id`: they are data, and longer than the route.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from importlib import metadata, resources
from typing import Any

from fastapi import FastAPI, routing
from fastapi.dependencies import models
from fastapi.openapi import utils

from tarsy.auth import permissions
from tarsy.serve import problems

DESCRIPTION = """\
Alerts come in, investigations and their transcripts go out.

**Who may call.** A bearer token of Kubernetes, whose rights in the investigation's namespace are asked of the API
server; or the headers of a proxy that TARSy is told to trust; or, to send alerts alone, the static token of webhooks.
`kubectl create token` makes one of the first kind. Each operation says which right it needs. `/healthz`, `/readyz` and
`/health` are open. With `--insecure-dev` the programs of the same machine are served without a token, and nobody else.

**Errors** are problem details (RFC 9457). 422 names each place of the request that is wrong. 503 says that something
that TARSy needs is away just now: the same request may work later.

**Strict.** A parameter or a field that is not described here is refused by its name, and so is a body where none is
described. With a token, bodies are read as JSON, whatever their `Content-Type` says; without one, as behind a proxy, it
has to be application/json. Every list is bounded.
"""

TAGS = {
    "alerts": "Alerts come in, each as an object in the cluster before the answer goes out.",
    "investigations": "What was looked into: lists, results, transcripts, traces; cancelling, and asking more.",
    "compat": "Paths of earlier TARSy clients, which call an investigation a session.",
    "system": "How TARSy is set up and how it does, over all its processes.",
    "health": "Whether the process serves, and whether it can work. For everybody.",
}
"""The tags that group operations."""

SCHEMES: dict[str, dict[str, Any]] = {
    "kubernetes": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of a user or service account of the cluster, looked at by TokenReview.",
    },
    "proxy": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Forwarded-User",
        "description": "Who a proxy says is calling. It counts from addresses that the operator is told to trust.",
    },
    "webhook": {
        "type": "http",
        "scheme": "bearer",
        "description": "The static token (TARSY_WEBHOOK_TOKEN), which sends alerts and does nothing else.",
    },
}


@dataclass(frozen=True, kw_only=True)
class Right:
    """The right that a route needs."""

    needs: str
    by: tuple[str, ...] = ("kubernetes", "proxy")
    """The security schemes that can show it, each alone."""


RIGHTS = {
    "notifies": Right(
        needs="create on alertinvestigations in the operator's namespace", by=("kubernetes", "proxy", "webhook")
    ),
    "submits": Right(
        needs="create on alertinvestigations in the operator's namespace", by=("kubernetes", "proxy", "webhook")
    ),
    "lists": Right(needs="list on alertinvestigations in that namespace"),
    "reads": Right(needs="get on alertinvestigations in the investigation's namespace"),
    "changes": Right(needs="update on alertinvestigations in the investigation's namespace"),
    "purges": Right(
        needs="delete on alertinvestigations in the investigation's namespace; in all, where that namespace is gone"
    ),
    "oversees": Right(needs="list on agentchains in the operator's namespace"),
    "accepts": Right(needs="update on mcpservers.tarsy.dev of that name in the operator's namespace"),
}
"""By the methods of `permissions.Access` that routes depend on."""

PROBLEMS: dict[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "The request is no HTTP, or its body is not what it has to be: no JSON, for one.",
    HTTPStatus.UNAUTHORIZED: "There is no token, or it is none that counts here.",
    HTTPStatus.FORBIDDEN: "Who calls may not do this, or it is switched off for what it is about.",
    HTTPStatus.NOT_FOUND: "There is nothing of this id.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The path is served by other methods: Allow names them.",
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive within 10 seconds.",
    HTTPStatus.CONFLICT: "It is not in a state in which that can be done.",
    HTTPStatus.GONE: "It is no longer there.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body, or the text in it, is larger than what is taken.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "Without a token only JSON is taken: the Content-Type is another.",
    HTTPStatus.MISDIRECTED_REQUEST: "With --insecure-dev, where only this machine is served: the Host is another.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Parameters or fields are wrong or unknown; `errors` names them.",
    HTTPStatus.TOO_MANY_REQUESTS: "This caller has asked too often: Retry-After says when to go on.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A defect of TARSy; its log has the traceback.",
    HTTPStatus.SERVICE_UNAVAILABLE: "What is needed for this is away, or full, just now: the same may work later.",
}
"""The description of each status that routes can answer."""
_DETAILS: dict[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
    HTTPStatus.UNAUTHORIZED: "give the token as `Authorization: Bearer <token>`",
    HTTPStatus.FORBIDDEN: "chain 'pod-crash' takes no questions (spec.chat.enabled: false)",
    HTTPStatus.NOT_FOUND: "there is no investigation with id 6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64",
    HTTPStatus.METHOD_NOT_ALLOWED: "DELETE /healthz: Method Not Allowed",
    HTTPStatus.REQUEST_TIMEOUT: "the request has to arrive within 10 s",
    HTTPStatus.CONFLICT: "it has not ended yet: ask when it has",
    HTTPStatus.GONE: "its object was deleted: nothing more can be asked about it",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "the body is over 10485760 bytes",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "without a token only JSON is taken: send Content-Type: application/json",
    HTTPStatus.MISDIRECTED_REQUEST: "without a token only this machine is served: call 127.0.0.1, [::1] or localhost",
    HTTPStatus.UNPROCESSABLE_ENTITY: "query.limt: no such parameter: there is after, limit",
    HTTPStatus.TOO_MANY_REQUESTS: "too many requests: go on in 3 s",
    HTTPStatus.INTERNAL_SERVER_ERROR: "a defect of TARSy; its log has the traceback",
    HTTPStatus.SERVICE_UNAVAILABLE: "the database cannot be reached",
}
_HEADERS: dict[HTTPStatus, dict[str, Any]] = {
    HTTPStatus.UNAUTHORIZED: {
        "WWW-Authenticate": {"description": "How to give the token.", "schema": {"type": "string"}, "example": "Bearer"}
    },
    HTTPStatus.TOO_MANY_REQUESTS: {
        "Retry-After": {"description": "Seconds.", "schema": {"type": "string"}, "example": "3"}
    },
    HTTPStatus.SERVICE_UNAVAILABLE: {
        "Retry-After": {
            "description": "Seconds, where it is full and not away.",
            "schema": {"type": "string"},
            "example": "5",
        }
    },
}
_OF_ALL = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_OF_THE_CLOSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_SUFFIXES = {"application/json": "json", "text/markdown": "md"}
"""By the media types of answers: what the files of their examples end in."""
_SCHEMA = "#/components/schemas/Problem"


def body(schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    """How a JSON body that is read by hand is described."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def responses(*statuses: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers these problems too, beside those that others like it can answer."""
    return {status: {"description": PROBLEMS[status]} for status in statuses}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The description of `app`: what FastAPI makes of its routes, with what is the same for many of them."""
    described = utils.get_openapi(
        title="TARSy",
        version=metadata.version("tarsy"),
        summary="Investigates alerts on Kubernetes with chains of LLM agents.",
        description=DESCRIPTION,
        routes=app.routes,
        tags=[{"name": name, "description": description} for name, description in TAGS.items()],
    )
    for context in routing.iter_route_contexts(app.routes):
        if context.original_route and getattr(context, "include_in_schema", False):
            for method in context.methods or ():
                _complete(described["paths"][context.path_format][method.lower()], context, method=method)
    components = described.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for left_over in ("HTTPValidationError", "ValidationError"):
        schemas.pop(left_over, None)
    details = problems.Details.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**details.pop("$defs"), "Problem": details}
    components["responses"] = {_name(status): _problem(status) for status in PROBLEMS}
    components["securitySchemes"] = SCHEMES
    _untitle(described)
    return described


def rights(dependant: models.Dependant | None) -> Iterator[str]:
    """The names of the rights that a route asks for."""
    for dependency in dependant.dependencies if dependant else ():
        if isinstance(getattr(dependency.call, "__self__", None), permissions.Access):
            name = dependency.call.__name__  # type: ignore[union-attr]
            if name != permissions.Access.greets.__name__:
                yield name
        yield from rights(dependency)


def _complete(operation: dict[str, Any], context: routing.RouteContext, *, method: str) -> None:
    """Add to an operation what its route does not say itself."""
    asked = [RIGHTS[name] for name in dict.fromkeys(rights(context.dependant))]
    if asked:
        operation["security"] = [{scheme: []} for scheme in asked[0].by]
        needs = " and ".join(right.needs for right in asked)
        operation["description"] = f"{operation.get('description', '')}\n\nNeeds {needs}.".strip()
    else:
        operation["security"] = []
    operation["summary"] = (context.description or "").partition("\n")[0].rstrip(".")
    own = [HTTPStatus(int(status)) for status in operation["responses"] if int(status) >= HTTPStatus.BAD_REQUEST]
    declared = context.responses or {}
    statuses = {*_OF_ALL, *(_OF_THE_CLOSED if asked else ()), *own}
    if "{" in (context.path_format or ""):
        statuses.add(HTTPStatus.NOT_FOUND)
    if method not in ("GET", "HEAD"):
        statuses.add(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    if "requestBody" in operation:
        statuses.add(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    for status in sorted(statuses):
        if "model" in declared.get(status, {}):
            operation["responses"][str(int(status))]["content"] |= _problem(status)["content"]
        else:
            operation["responses"][str(int(status))] = {"$ref": f"#/components/responses/{_name(status)}"}
    _exemplify(operation)


def _exemplify(operation: dict[str, Any]) -> None:
    """Put the examples of an operation into it."""
    name = operation["operationId"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        _put(content, f"{name}.body.{_SUFFIXES[kind]}")
    for status, answer in operation["responses"].items():
        number = "" if status < "300" else f".{status}"
        for kind in answer.get("content", {}).keys() & _SUFFIXES.keys():
            _put(answer["content"][kind], f"{name}{number}.{_SUFFIXES[kind]}")


def _put(content: dict[str, Any], file: str) -> None:
    example = examples().get(file)
    if example is not None:
        content["example"] = json.loads(example) if file.endswith(".json") else example


@lru_cache(maxsize=1)
def examples() -> Mapping[str, str]:
    """The examples' files: `OPERATION.json` is an answer, `OPERATION.body.json` a body.

    `OPERATION.503.json` is what a model of its own tells of a failure.
    """
    folder = resources.files("tarsy.api") / "examples"
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name[0] not in "._"}


def _problem(status: HTTPStatus) -> dict[str, Any]:
    """The answer that a problem of this status is."""
    faults = [problems.Fault(place="query.limt", message="no such parameter: there is after, limit")]
    listed_faults = faults if status == HTTPStatus.UNPROCESSABLE_ENTITY else []
    content = {"schema": {"$ref": _SCHEMA}, "example": problems.body(status, _DETAILS[status], faults=listed_faults)}
    answer: dict[str, Any] = {"description": PROBLEMS[status], "content": {problems.MEDIA_TYPE: content}}
    if status in _HEADERS:
        answer["headers"] = _HEADERS[status]
    return answer


def _name(status: HTTPStatus) -> str:
    """`NotFound`: the status's phrase as a name."""
    return "".join(word.capitalize() for word in problems.phrase(status).replace("-", " ").split())


def _untitle(part: Any) -> None:
    """Take out the titles that pydantic makes of names: they say nothing more."""
    if isinstance(part, dict):
        for property_schema in _properties(part):
            property_schema.pop("title", None)
        for value in part.values():
            _untitle(value)
    elif isinstance(part, list):
        for value in part:
            _untitle(value)


def _properties(part: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The schemas that `part` names: those of an object's properties, or of a parameter."""
    named = part.get("properties")
    if isinstance(named, dict) and part.get("type") == "object":
        yield from (property_schema for property_schema in named.values() if isinstance(property_schema, dict))
    if "in" in part and isinstance(part.get("schema"), dict):
        yield part["schema"]
