"""The rights that routes need and the security schemes of their callers, as the API's description names them.

A method of `permissions.Access` that checks a right has it as a parameter.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Security

from tarsy.serve import openapi

SCHEMES: dict[str, dict[str, Any]] = {
    "kubernetes": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of a user or service account of the cluster, checked by TokenReview.",
    },
    "proxy": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Forwarded-User",
        "description": "The caller, as a proxy names it. It counts from trusted addresses alone.",
    },
    "webhook": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of webhooks (TARSY_WEBHOOK_TOKEN, ingest.tokens), which only sends alerts.",
    },
}


def _right(name: str, needs: str, *, schemes: tuple[str, ...] = ("kubernetes", "proxy")) -> Any:
    return Security(openapi.Right(name, needs, schemes=schemes))


Create = Annotated[
    None,
    _right(
        "create",
        "create on alertinvestigations in the namespace that it names, else in ingest.namespace",
        schemes=("kubernetes", "proxy", "webhook"),
    ),
]
CreateIn = Annotated[
    None,
    _right("create-in", "create on alertinvestigations in that namespace", schemes=("kubernetes", "proxy", "webhook")),
]
List = Annotated[
    None, _right("list", "list on alertinvestigations in the namespaces that it names, or in any served one")
]
Get = Annotated[None, _right("get", "get on alertinvestigations in the investigation's namespace")]
Update = Annotated[None, _right("update", "update on alertinvestigations in the investigation's namespace")]
Feedback = Annotated[
    None, _right("feedback", "create on alertinvestigations/feedback in the investigation's namespace")
]
Retry = Annotated[None, _right("retry", "get and create on alertinvestigations in the investigation's namespace")]
Delete = Annotated[
    None,
    _right(
        "delete",
        "delete on alertinvestigations in the investigation's namespace; in all, where that namespace is gone",
    ),
]
MatchChains = Annotated[
    None,
    _right(
        "match-chains",
        "create on alertinvestigations, or list on agentchains, in that namespace",
    ),
]
ListChains = Annotated[None, _right("list-chains", "list on agentchains in the operator's namespace")]
UpdateServer = Annotated[
    None, _right("update-server", "update on mcpservers.tarsy.dev of that name in the operator's namespace")
]
GetAudit = Annotated[None, _right("get-audit", "get on auditevents.tarsy.dev in these namespaces")]
SignIn = Annotated[
    None, _right("sign-in", "no right of its own: a session has the rights of the token", schemes=("kubernetes",))
]
