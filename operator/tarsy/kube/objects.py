"""Calls on the two kinds: get, list, create, delete, and write the status.

An error says whether a later try may help: `client.ClusterDownError` or `RefusedError`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib import parse

import pydantic
from kubernetes.aio import client as kubernetes

from tarsy.kube import calls, client
from tarsy.resources import base, chains, investigations, schema
from tarsy.transcript import control_characters, messages

_JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500
_PROBLEMS_MAX, _PROBLEM_CHARACTERS = 5, 800  # of the message about an unreadable object
_UNREADABLE = "this version of TARSy cannot read the object: correct it, or delete it and create another"
_LIST_ATTEMPTS = 3  # a list that is read too slowly begins again, because its pages expire

RefusedError = calls.RefusedError
"""The error of a request that the API server would refuse again."""
ForbiddenError = calls.ForbiddenError
"""The error of a request for which the operator lacks a right."""


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An object whose spec this version cannot read: an older CRD accepted it, or a newer one has more fields."""

    metadata: base.ObjectMeta
    message: str
    """The invalid fields and the remedy, up to `base.MESSAGE_MAX` characters, masked."""
    status: Mapping[str, Any]
    """The status as the API server has it."""
    cancel: bool = False
    """Whether its spec asks to cancel the investigation."""


class UnreadableError(Exception):
    """The object exists, but its spec cannot be read; `unreadable` has its readable parts."""

    def __init__(self, unreadable: Unreadable) -> None:
        super().__init__(unreadable.message)
        self.unreadable = unreadable


@dataclass(frozen=True, kw_only=True)
class Created:
    """The outcome of a creation."""

    existed: bool
    """Whether an object of that name existed already."""
    investigation: investigations.AlertInvestigation


async def get_investigation(
    cluster: client.Cluster, *, namespace: str, name: str
) -> investigations.AlertInvestigation | None:
    """Return the object, read live; None if there is none. Raises UnreadableError if its spec cannot be read."""
    body = await calls.get(cluster, path(investigations.PLURAL, namespace, name))
    return None if body is None else _investigation(cluster, body)


async def get_investigation_metadata(cluster: client.Cluster, *, namespace: str, name: str) -> base.ObjectMeta | None:
    """Return the metadata of the object, read live; None if there is none."""
    body = await calls.get(cluster, path(investigations.PLURAL, namespace, name), accept=METADATA)
    return None if body is None else base.ObjectMeta.model_validate(body["metadata"])


async def get_investigation_uid(cluster: client.Cluster, *, namespace: str, name: str) -> str | None:
    """Return the uid of the object, read live; None if there is none."""
    metadata = await get_investigation_metadata(cluster, namespace=namespace, name=name)
    return metadata.uid if metadata else None


async def create_investigation(cluster: client.Cluster, manifest: dict[str, Any]) -> Created:
    """Create the object, or return the one that has its name. Raises UnreadableError if that one cannot be read."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    async with calls.errors():
        try:
            made = await calls.request(
                cluster,
                "POST",
                path(investigations.PLURAL, namespace),
                query={"fieldValidation": "Strict"},
                body=manifest,
            )
        except kubernetes.ApiException as error:
            if error.status != 409:
                raise
        else:
            return Created(existed=False, investigation=_investigation(cluster, made))
    existing = await get_investigation(cluster, namespace=namespace, name=name)
    if existing is None:  # deleted between the two calls: the alert is sent again
        raise client.ClusterDownError(f"{namespace}/{name} was deleted while it was looked at")
    return Created(existed=True, investigation=existing)


async def delete_investigation(
    cluster: client.Cluster, *, namespace: str, name: str, uid: str, generation: int | None = None
) -> Literal["gone", "changed"]:
    """Delete the object of that uid; return "gone" also if there is none of that uid any more.

    If a `generation` is given and the object has another, it is not deleted: "changed".
    """
    preconditions = {"uid": uid}
    if generation is not None:
        metadata = await get_investigation_metadata(cluster, namespace=namespace, name=name)
        if metadata is None or metadata.uid != uid:
            return "gone"
        if metadata.generation != generation:
            return "changed"
        preconditions["resourceVersion"] = metadata.resource_version
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    async with calls.errors():
        try:
            await calls.request(cluster, "DELETE", path(investigations.PLURAL, namespace, name), body=options)
        except kubernetes.ApiException as error:
            if error.status == 409:
                return "gone" if generation is None else "changed"
            if error.status != 404 or not calls.status_of(error):
                raise
    return "gone"


async def list_chains(cluster: client.Cluster, *, namespace: str, cached: bool = False) -> list[chains.AgentChain]:
    """Return the readable chains of one namespace, read live.

    A live read may have to wait for etcd, up to 100 ms. With `cached` the API server answers at once with the state of
    some milliseconds ago. Source: Kubernetes documentation, "API Concepts", "Semantics for get and list".
    """
    listed = await list_all_chains(cluster, namespace=namespace, cached=cached)
    return [listed_chain for listed_chain in listed if isinstance(listed_chain, chains.AgentChain)]


async def list_usable_chains(
    cluster: client.Cluster, *, namespace: str, cached: bool = False
) -> list[chains.AgentChain]:
    """Return the readable chains that investigations of a namespace may use: its own and the operator's."""
    namespaces = dict.fromkeys((namespace, cluster.served.own))
    listed = await asyncio.gather(*(list_chains(cluster, namespace=name, cached=cached) for name in namespaces))
    return list(itertools.chain.from_iterable(listed))


async def list_all_chains(
    cluster: client.Cluster, *, namespace: str, cached: bool = False
) -> list[chains.AgentChain | Unreadable]:
    """Return the chains of one namespace, also the unreadable ones, as under a CRD that is newer than this program."""
    async with calls.errors():
        body = await calls.request(
            cluster, "GET", path(chains.PLURAL, namespace), query={"resourceVersion": "0"} if cached else {}
        )
    return [_chain(cluster, raw_chain) for raw_chain in body["items"]]


async def apply_status(
    cluster: client.Cluster, *, namespace: str, name: str, uid: str, status: investigations.Status | chains.Status
) -> Literal["written", "gone", "older"]:
    """Write the whole status; "gone" if no object has that uid, "older" if the object has a status of a later sequence.

    The request is a JSON Patch that tests the uid: neither merge patch nor server-side apply refuses an object that was
    deleted and created again under its name.
    """
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status.model_dump(mode="json", by_alias=True, exclude_none=True)},
    ]
    plural = chains.PLURAL if isinstance(status, chains.Status) else investigations.PLURAL
    async with calls.errors():
        try:
            await calls.request(
                cluster,
                "PATCH",
                f"{path(plural, namespace, name)}/status",
                body=patch,
                content_type=_JSON_PATCH,
                accept=METADATA,
            )
        except kubernetes.ApiException as error:
            causes = (calls.status_of(error).get("details") or {}).get("causes") or [] if error.status == 422 else []
            if (error.status == 404 and calls.status_of(error)) or (error.status == 422 and not causes):
                return "gone"
            if any(schema.SEQUENCE_FALLS in str(cause.get("message")) for cause in causes):
                return "older"
            raise
    return "written"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An investigation in a list; few fields, because there may be many thousands."""

    name: str
    uid: str
    generation: int


async def list_investigations(cluster: client.Cluster, *, namespace: str, unfinished: bool = False) -> list[Listed]:
    """Return a namespace's investigations: all, or the `unfinished` ones, whose status shows no end.

    Only metadata is read, because the objects may be large, and in pages. All pages show one moment. etcd may forget it
    between two pages (410); then the list begins again.
    Source: Kubernetes documentation, "API Concepts", "Retrieving large results sets in chunks".
    """
    attempts = 0
    async with calls.errors():
        while True:
            attempts += 1
            try:
                return [listed async for listed in _list_pages(cluster, namespace=namespace, unfinished=unfinished)]
            except kubernetes.ApiException as error:
                if error.status != 410 or attempts == _LIST_ATTEMPTS:
                    raise


async def _list_pages(cluster: client.Cluster, *, namespace: str, unfinished: bool) -> AsyncIterator[Listed]:
    following: str | None = None
    while True:
        query: dict[str, str | int] = {"limit": _PAGE}
        if unfinished:
            query["fieldSelector"] = investigations.UNFINISHED
        if following:
            query["continue"] = following
        page = await calls.request(
            cluster, "GET", path(investigations.PLURAL, namespace), query=query, accept=METADATA_LIST
        )
        for entry in page["items"] or ():
            metadata = entry["metadata"]
            yield Listed(name=metadata["name"], uid=metadata["uid"], generation=metadata.get("generation", 0))
        following = page["metadata"].get("continue") or None
        if following is None:
            return


def path(plural: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all objects of a kind in a namespace."""
    collection = f"/apis/{base.API_VERSION}/namespaces/{parse.quote(namespace, safe='')}/{plural}"
    return f"{collection}/{parse.quote(name, safe='')}" if name else collection


def _chain(cluster: client.Cluster, body: Any) -> chains.AgentChain | Unreadable:
    metadata = base.ObjectMeta.model_validate(body["metadata"])
    try:
        status = chains.Status.model_validate(body["status"])
    except (pydantic.ValidationError, KeyError):  # the status of a newer version is replaced
        status = None
    try:
        return chains.AgentChain(metadata=metadata, spec=messages.storable_json(body["spec"]), status=status)
    except pydantic.ValidationError as error:
        return _unreadable(cluster, body, error)


def _investigation(cluster: client.Cluster, body: Any) -> investigations.AlertInvestigation:
    try:
        return investigations.AlertInvestigation(
            metadata=base.ObjectMeta.model_validate(body["metadata"]),
            spec=messages.storable_json(body["spec"]),
            written=investigations.WrittenStatus.model_validate(body.get("status") or {}),
        )
    except pydantic.ValidationError as error:
        raise UnreadableError(_unreadable(cluster, body, error)) from error


def _unreadable(cluster: client.Cluster, body: Any, error: pydantic.ValidationError) -> Unreadable:
    faults = error.errors(include_input=False, include_url=False)
    problems = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults[:_PROBLEMS_MAX])
    more = f"; and {len(faults) - _PROBLEMS_MAX} more" if len(faults) > _PROBLEMS_MAX else ""
    problems = control_characters.escape(messages.storable(cluster.secrets.mask(problems)))[:_PROBLEM_CHARACTERS]
    return Unreadable(
        metadata=base.ObjectMeta.model_validate(body["metadata"]),
        message=f"{_UNREADABLE}: {problems}{more}",
        status=body.get("status") or {},
        cancel=body["spec"].get("cancel") is True,
    )
