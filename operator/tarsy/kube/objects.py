"""Calls on our two kinds: read, create, and write the status. Errors say whether a later try may help."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib import parse

import pydantic
from kubernetes.aio import client as kubernetes

from tarsy.kube import calls, client
from tarsy.masking import known_secrets
from tarsy.resources import base, chains, investigations, schema
from tarsy.transcript import control_characters, messages

PING_SECONDS = 2.0

_JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500
_FAULTS_TOLD, _FAULTS_MAX = 5, 800  # of an object that cannot be read: how many, and characters of them
_UNREADABLE = "this version of TARSy cannot read the object: correct it, or delete it and create another"
_LISTS = 3  # times that a list is begun, where it is so slow that its pages expire

RefusedError = calls.RefusedError
"""The exception of these calls for a request that the API server would refuse again."""


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An object of ours whose spec this version cannot read: a former CRD took it, or a newer one has more fields."""

    metadata: base.ObjectMeta
    message: str
    """The fields at fault and the remedy, up to `base.MESSAGE_MAX` characters, masked."""
    status: Mapping[str, Any]
    """As the API server has it."""
    cancel: bool = False
    """Whether its spec asks for its end."""


class UnreadableError(Exception):
    """The object is there, and `found` is all that can be said of it."""

    def __init__(self, unreadable: Unreadable) -> None:
        """The message is that of `unreadable`."""
        super().__init__(unreadable.message)
        self.found = unreadable


@dataclass(frozen=True, kw_only=True)
class Created:
    """The outcome of a creation."""

    existed: bool
    """True: an object of that name was there already."""
    found: investigations.AlertInvestigation


async def get_investigation(
    cluster: client.Cluster, *, namespace: str, name: str
) -> investigations.AlertInvestigation | None:
    """The object as it is now, None where there is none; an UnreadableError where its spec cannot be read."""
    async with calls.errors():
        try:
            body = await calls.request(cluster, "GET", _path(investigations.PLURAL, namespace, name))
        except kubernetes.ApiException as error:
            if error.status == 404 and calls.status_of(error):
                return None
            raise
    return _investigation(body)


async def metadata_of_investigation(cluster: client.Cluster, *, namespace: str, name: str) -> base.ObjectMeta | None:
    """The metadata of the object of that name as it is now; None where there is none."""
    async with calls.errors():
        try:
            body = await calls.request(cluster, "GET", _path(investigations.PLURAL, namespace, name), accept=METADATA)
        except kubernetes.ApiException as error:
            if error.status == 404 and calls.status_of(error):
                return None
            raise
    return base.ObjectMeta.model_validate(body["metadata"])


async def uid_of_investigation(cluster: client.Cluster, *, namespace: str, name: str) -> str | None:
    """The uid of the object of that name as it is now; None where there is none."""
    metadata = await metadata_of_investigation(cluster, namespace=namespace, name=name)
    return metadata.uid if metadata else None


async def create_investigation(cluster: client.Cluster, manifest: dict[str, Any]) -> Created:
    """Create the object, or find the one that has its name; an UnreadableError where that cannot be read."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    async with calls.errors():
        try:
            made = await calls.request(
                cluster,
                "POST",
                _path(investigations.PLURAL, namespace),
                query={"fieldValidation": "Strict"},
                body=manifest,
            )
        except kubernetes.ApiException as error:
            if error.status != 409:
                raise
        else:
            return Created(existed=False, found=_investigation(made))
    existing = await get_investigation(cluster, namespace=namespace, name=name)
    if existing is None:  # deleted between the two calls: the sender of the alert sends it again
        raise client.ClusterDownError(f"{namespace}/{name} was deleted while it was looked at")
    return Created(existed=True, found=existing)


async def delete_investigation(
    cluster: client.Cluster, *, namespace: str, name: str, uid: str, generation: int | None = None
) -> Literal["gone", "changed"]:
    """Delete the object of that uid; "changed" where a `generation` is given and its spec is of another.

    "gone" where there is none of that uid any more, too.
    """
    preconditions = {"uid": uid}
    if generation is not None:
        metadata = await metadata_of_investigation(cluster, namespace=namespace, name=name)
        if metadata is None or metadata.uid != uid:
            return "gone"
        if metadata.generation != generation:
            return "changed"
        preconditions["resourceVersion"] = metadata.resource_version
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    async with calls.errors():
        try:
            await calls.request(cluster, "DELETE", _path(investigations.PLURAL, namespace, name), body=options)
        except kubernetes.ApiException as error:
            if error.status == 409:
                return "gone" if generation is None else "changed"
            if error.status != 404 or not calls.status_of(error):
                raise
    return "gone"


async def list_chains(cluster: client.Cluster, *, namespace: str, cached: bool = False) -> list[chains.AgentChain]:
    """The chains of one namespace that can be read, as they are now.

    For that the API server may have to wait for word from etcd, up to 100 ms. With `cached` it answers at once with
    what it has: as they were some milliseconds ago. Source: Kubernetes documentation, "API Concepts", "Semantics for
    get and list".
    """
    listed = await list_all_chains(cluster, namespace=namespace, cached=cached)
    return [listed_chain for listed_chain in listed if isinstance(listed_chain, chains.AgentChain)]


async def list_all_chains(
    cluster: client.Cluster, *, namespace: str, cached: bool = False
) -> list[chains.AgentChain | Unreadable]:
    """The same with those that cannot be read, as with a CRD newer than we are: they must not take the rest along."""
    async with calls.errors():
        body = await calls.request(
            cluster, "GET", _path(chains.PLURAL, namespace), query={"resourceVersion": "0"} if cached else {}
        )
    return [_chain(raw_chain) for raw_chain in body["items"]]


async def apply_status(
    cluster: client.Cluster, *, namespace: str, name: str, uid: str, status: investigations.Status | chains.Status
) -> Literal["written", "gone", "older"]:
    """Write the whole status, if the object still is the one of that uid; "gone" if not.

    "older": a status of a later sequence is there already.

    A JSON Patch with a test of the uid, because neither merge patch nor server-side apply refuses an object that was
    deleted and made again under its name.
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
                f"{_path(plural, namespace, name)}/status",
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


DEPLOYMENT = ("apps/v1", "Deployment")
"""The API version and the kind of Deployments."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to an object, for `kubectl describe` and `kubectl get events`."""

    reason: str
    message: str
    at: datetime
    warning: bool = False
    recurs: bool = False
    """Whether the same at another time is another event."""
    about: tuple[str, str] = (base.API_VERSION, investigations.KIND)
    """The API version and the kind of the object that it happened to."""


async def post_event(cluster: client.Cluster, event: Event, *, namespace: str, name: str, uid: str) -> None:
    """Post `event` about an object; posting it again is no harm, because its name says what it is."""
    at = event.at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    identity = f"{uid} {event.reason} {event.message}{f' {at}' if event.recurs else ''}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    body = {
        "metadata": {"name": f"{name[:236].rstrip('-.')}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": event.about[0],
            "kind": event.about[1],
            "namespace": namespace,
            "name": name,
            "uid": uid,
        },
        "reason": event.reason,
        "message": control_characters.escape(known_secrets.KNOWN.text(event.message))[: base.MESSAGE_MAX],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": "tarsy"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    async with calls.errors():
        try:
            await calls.request(
                cluster, "POST", f"/api/v1/namespaces/{parse.quote(namespace, safe='')}/events", body=body
            )
        except kubernetes.ApiException as error:
            if error.status != 409:
                raise


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An investigation as a list has it: of many thousands little is kept."""

    name: str
    uid: str
    generation: int


async def list_metadata(cluster: client.Cluster, *, namespace: str, unfinished: bool = False) -> list[Listed]:
    """The metadata of a namespace's investigations: of all, or of the `unfinished`, whose status shows no end.

    Of the metadata alone, because the objects may be large, and in pages.
    Pages are of one moment, which etcd may forget between two of them (410); then the list is begun anew.
    Source: Kubernetes documentation, "API Concepts", "Retrieving large results sets in chunks".
    """
    begun = 0
    async with calls.errors():
        while True:
            begun += 1
            try:
                return [metadata async for metadata in _metadata(cluster, namespace=namespace, unfinished=unfinished)]
            except kubernetes.ApiException as error:
                if error.status != 410 or begun == _LISTS:
                    raise


async def _metadata(cluster: client.Cluster, *, namespace: str, unfinished: bool) -> AsyncIterator[Listed]:
    following: str | None = None
    while True:
        query: dict[str, str | int] = {"limit": _PAGE}
        if unfinished:
            query["fieldSelector"] = investigations.UNFINISHED
        if following:
            query["continue"] = following
        page = await calls.request(
            cluster, "GET", _path(investigations.PLURAL, namespace), query=query, accept=_METADATA_LIST
        )
        for entry in page["items"] or ():
            metadata = entry["metadata"]
            yield Listed(name=metadata["name"], uid=metadata["uid"], generation=metadata.get("generation", 0))
        following = page["metadata"].get("continue") or None
        if following is None:
            return


KINDS = (chains.PLURAL, investigations.PLURAL)
"""Ours, by their plural names."""


async def unserved(cluster: client.Cluster) -> list[str]:
    """Which of KINDS the API server does not serve, within PING_SECONDS; both, where their CRDs are not installed.

    Both of its lists have to say so: one that starts learns of groups and of their kinds one after the other.
    """
    async with calls.errors():
        groups = await calls.request(cluster, "GET", "/apis", seconds=PING_SECONDS)
        with _of_shape("GET /apis"):
            served_groups = {version["groupVersion"] for group in groups["groups"] for version in group["versions"]}
        if base.API_VERSION not in served_groups:
            return list(KINDS)
        resources = await calls.request(cluster, "GET", f"/apis/{base.API_VERSION}", seconds=PING_SECONDS)
        with _of_shape(f"GET /apis/{base.API_VERSION}"):
            return sorted(set(KINDS) - {kind["name"] for kind in resources["resources"]})


@contextmanager
def _of_shape(asked: str) -> Iterator[None]:
    """Treat an answer of another shape, a proxy's for one, as the answer of an API server that is away."""
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise client.ClusterDownError(f"the answer to {asked} is not what an API server says") from error


async def ping(cluster: client.Cluster, *, namespace: str) -> None:
    """Return if the API server shows us, within PING_SECONDS, the chains of a namespace: one, as metadata."""
    async with calls.errors():
        await calls.request(
            cluster,
            "GET",
            _path(chains.PLURAL, namespace),
            query={"limit": 1},
            accept=_METADATA_LIST,
            seconds=PING_SECONDS,
        )


async def cluster_uid(cluster: client.Cluster) -> str:
    """Return the identity of this cluster: the uid of its namespace kube-system."""
    async with calls.errors():
        body = await calls.request(cluster, "GET", "/api/v1/namespaces/kube-system")
    return str(body["metadata"]["uid"])


async def namespace_uid(cluster: client.Cluster, namespace: str) -> str | None:
    """The uid of a namespace as it is now, or None: one that was deleted and made again has another."""
    async with calls.errors():
        try:
            body = await calls.request(cluster, "GET", f"/api/v1/namespaces/{parse.quote(namespace, safe='')}")
        except kubernetes.ApiException as error:
            if error.status == 404 and calls.status_of(error):
                return None
            raise
    return str(body["metadata"]["uid"])


async def deployment_uid(cluster: client.Cluster, *, namespace: str, name: str) -> str | None:
    """Return the uid of a Deployment, or None where there is none."""
    path = f"/apis/apps/v1/namespaces/{parse.quote(namespace, safe='')}/deployments/{parse.quote(name, safe='')}"
    async with calls.errors():
        try:
            body = await calls.request(cluster, "GET", path)
        except kubernetes.ApiException as error:
            if error.status == 404 and calls.status_of(error):
                return None
            raise
    return str(body["metadata"]["uid"])


def _path(plural: str, namespace: str, name: str = "") -> str:
    collection = f"/apis/{base.API_VERSION}/namespaces/{parse.quote(namespace, safe='')}/{plural}"
    return f"{collection}/{parse.quote(name, safe='')}" if name else collection


def _chain(body: Any) -> chains.AgentChain | Unreadable:
    metadata = base.ObjectMeta.model_validate(body["metadata"])
    try:
        status = chains.Status.model_validate(body["status"])
    except (pydantic.ValidationError, KeyError):  # one that a newer version wrote is written anew
        status = None
    try:
        return chains.AgentChain(metadata=metadata, spec=messages.storable_json(body["spec"]), status=status)
    except pydantic.ValidationError as error:
        return _unreadable(body, error)


def _investigation(body: Any) -> investigations.AlertInvestigation:
    try:
        return investigations.AlertInvestigation(
            metadata=base.ObjectMeta.model_validate(body["metadata"]), spec=messages.storable_json(body["spec"])
        )
    except pydantic.ValidationError as error:
        raise UnreadableError(_unreadable(body, error)) from error


def _unreadable(body: Any, error: pydantic.ValidationError) -> Unreadable:
    faults = error.errors(include_input=False, include_url=False)
    problems = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults[:_FAULTS_TOLD])
    more = f"; and {len(faults) - _FAULTS_TOLD} more" if len(faults) > _FAULTS_TOLD else ""
    problems = control_characters.escape(messages.storable(known_secrets.KNOWN.text(problems)))[:_FAULTS_MAX]
    return Unreadable(
        metadata=base.ObjectMeta.model_validate(body["metadata"]),
        message=f"{_UNREADABLE}: {problems}{more}",
        status=body.get("status") or {},
        cancel=body["spec"].get("cancel") is True,
    )
