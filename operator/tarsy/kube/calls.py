"""Requests to the API server, below the client's generated calls, and their errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib import parse

import aiohttp
from kubernetes.aio import client as kubernetes

from tarsy.kube import client
from tarsy.resources import base


class RefusedError(Exception):
    """The API server refuses a request, and would refuse it again; the message is its own."""


class ForbiddenError(client.ClusterDownError):
    """The operator's account lacks the right to a request (403), as in a namespace without the RoleBinding."""


async def request(
    cluster: client.Cluster,
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: Any = None,
    content_type: str = "application/json",
    accept: str = "application/json",
    seconds: float = client.REQUEST_SECONDS,
) -> Any:
    """Send one request and return the answer as JSON. Raises ApiException if the API server refuses it.

    The request uses the client's connections and credentials, but not its generated calls: these build models for each
    request, and take half a second and 24 MB to import.
    """
    headers = {"Accept": accept, "Content-Type": content_type} | cluster.api.default_headers
    await cluster.api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
    url = f"{cluster.configuration.host}{path}" + (f"?{parse.urlencode(query)}" if query else "")
    answer = await cluster.api.call_api(method, url, headers, body, _request_timeout=seconds)
    content = await answer.read()
    if not 200 <= answer.status <= 299:
        raise kubernetes.ApiException.from_response(http_resp=answer, body=content.decode(errors="replace"), data=None)
    try:
        return json.loads(content)
    except ValueError as error:  # such as a proxy's page
        raise client.ClusterDownError(f"the answer to {method} {path} is no JSON: {error}") from error


async def get(cluster: client.Cluster, path: str, *, accept: str = "application/json") -> Any:
    """Return the object at `path`, as JSON; None if there is none."""
    async with errors():
        try:
            return await request(cluster, "GET", path, accept=accept)
        except kubernetes.ApiException as error:
            if error.status == 404 and status_of(error):
                return None
            raise


@asynccontextmanager
async def errors() -> AsyncIterator[None]:
    """Raise RefusedError for a request that the API server would refuse again, and ClusterDownError for all else.

    A right that is missing is a ForbiddenError, which is a ClusterDownError: it may be granted later.
    """
    try:
        yield
    except kubernetes.ApiException as error:
        status = status_of(error)
        if error.status == 404 and not status:  # the API server does not know the path
            message = f"the kinds of {base.API_VERSION} are not installed: kubectl apply -f crds/"
            raise client.ClusterDownError(message) from error
        message = f"the API server answers {error.status}: {status.get('message') or error.reason}"
        if error.status == 403:
            raise ForbiddenError(message) from error
        if error.status is None or error.status >= 500 or error.status in (401, 408, 429):
            raise client.ClusterDownError(message) from error
        raise RefusedError(message) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        message = str(error) or type(error).__name__
        raise client.ClusterDownError(f"the API server cannot be reached: {message}") from error


def status_of(error: kubernetes.ApiException) -> dict[str, Any]:
    """Return the Status in the API server's answer; its message names the verb and the resource.

    {} if the answer is no Status. A 404 is then about the path and not the object: its kind is not served yet.
    """
    try:
        status = json.loads(error.body or "{}")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
