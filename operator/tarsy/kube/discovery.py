"""Discovery: the kinds that the API server serves, and the identities of its cluster and namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib import parse

from tarsy.kube import calls, client, objects
from tarsy.resources import base, chains, investigations

PING_SECONDS = 2.0
KINDS = (chains.PLURAL, investigations.PLURAL)
"""The plural names of the two kinds."""


async def unserved_kinds(cluster: client.Cluster) -> list[str]:
    """Return the members of KINDS that the API server does not serve: both, if their CRDs are not installed.

    Both lists of the API server must have a kind: while it starts, groups and kinds appear at different times. Each of
    the two requests has PING_SECONDS.
    """
    async with calls.errors():
        groups = await calls.request(cluster, "GET", "/apis", seconds=PING_SECONDS)
        with _answer_to("GET /apis"):
            served_groups = {version["groupVersion"] for group in groups["groups"] for version in group["versions"]}
        if base.API_VERSION not in served_groups:
            return list(KINDS)
        resources = await calls.request(cluster, "GET", f"/apis/{base.API_VERSION}", seconds=PING_SECONDS)
        with _answer_to(f"GET /apis/{base.API_VERSION}"):
            return sorted(set(KINDS) - {kind["name"] for kind in resources["resources"]})


@contextmanager
def _answer_to(request: str) -> Iterator[None]:
    """Treat an answer of another shape, such as a proxy's, as that of an API server that is away."""
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise client.ClusterDownError(f"the answer to {request} is not that of an API server") from error


async def ping(cluster: client.Cluster, *, namespace: str) -> None:
    """Return if the API server lists a chain's metadata in `namespace` within PING_SECONDS; else raise."""
    path = objects.path(chains.PLURAL, namespace)
    async with calls.errors():
        await calls.request(
            cluster, "GET", path, query={"limit": 1}, accept=objects.METADATA_LIST, seconds=PING_SECONDS
        )


async def cluster_uid(cluster: client.Cluster) -> str:
    """Return the identity of this cluster: the uid of its namespace kube-system."""
    async with calls.errors():
        body = await calls.request(cluster, "GET", "/api/v1/namespaces/kube-system")
    return str(body["metadata"]["uid"])


async def namespace_uid(cluster: client.Cluster, namespace: str) -> str | None:
    """Return the uid of a namespace, read live; None if there is none.

    A namespace that is deleted and created again gets another uid.
    """
    body = await calls.get(cluster, f"/api/v1/namespaces/{parse.quote(namespace, safe='')}")
    return None if body is None else str(body["metadata"]["uid"])
