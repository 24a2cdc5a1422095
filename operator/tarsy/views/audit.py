"""The audit: who did what, when, from where, to what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from tarsy.store.base import audit
from tarsy.views import base


class AuditEvent(base.View):
    """A change, an export or a sign-in."""

    id: UUID
    at: datetime
    who: str
    """The caller: the user that a trusted proxy names, else the Kubernetes user, else api-client."""
    address: str
    """The address that the request came from; "" if unknown."""
    action: str
    namespace: str
    """The namespace of the investigation; of all else the operator's own."""
    name: str
    """The name of the investigation's object, or of the MCP server; "" for sessions of browsers."""
    investigation: UUID | None
    details: dict[str, Any]
    """More about it, such as the reason of a hold."""


class AuditPage(base.View):
    """A page of the audit, newest first."""

    items: list[AuditEvent]
    namespaces: list[str] | None
    """The namespaces of the list; None for all, also those that are gone."""
    unchecked_namespaces: list[base.UncheckedNamespace]
    """The namespaces that may be missing: whether the caller has the right in them cannot be checked now."""
    next: str | None
    """The cursor of the next page; None on the last page."""


def page(
    read: audit.Page,
    *,
    namespaces: Iterable[str] | None,
    unchecked: Mapping[str, str],
    cursor: str | None,
    mask: base.Mask,
) -> AuditPage:
    """Return a page of the audit of `namespaces`, without `unchecked` ones; `cursor` is the next page's."""
    return AuditPage(
        items=[AuditEvent(**{**vars(row), "details": base.masked(row.details, mask)}) for row in read.items],
        namespaces=None if namespaces is None else sorted(namespaces),
        unchecked_namespaces=base.unchecked_namespaces(unchecked),
        next=cursor,
    )
