"""One request to the API server, below the client's generated calls, and its errors: whether a later try may help."""

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
    """The API server refuses what we ask, and would again; the message is its own."""


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
    """The answer to one request, as JSON; an ApiException where the API server refuses it.

    By the client's connections and credentials, below its generated calls: their models are built for each request,
    and take half a second and 24 MB to import.
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
    except ValueError as error:  # a proxy's page, say
        raise client.ClusterDownError(f"the answer to {method} {path} is no JSON: {error}") from error


@asynccontextmanager
async def errors() -> AsyncIterator[None]:
    """Tell what the API server refuses from what may work later: a RefusedError, or a client.ClusterDownError."""
    try:
        yield
    except kubernetes.ApiException as error:
        reason_text = status_of(error)
        if error.status == 404 and not reason_text:  # a path that it does not know, not an object
            message = f"the kinds of {base.API_VERSION} are not installed: kubectl apply -f crds/"
            raise client.ClusterDownError(message) from error
        message = f"the API server answers {error.status}: {reason_text.get('message') or error.reason}"
        if error.status is None or error.status >= 500 or error.status in (401, 403, 408, 429):
            raise client.ClusterDownError(message) from error
        raise RefusedError(message) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        message = str(error) or type(error).__name__
        raise client.ClusterDownError(f"the API server cannot be reached: {message}") from error


def status_of(error: kubernetes.ApiException) -> dict[str, Any]:
    """The Status that the API server answered with: its own sentence names the verb and the resource.

    {} where it was none: a 404 then is about the path and not the object, whose kind is not served, or not yet.
    """
    try:
        status = json.loads(error.body or "{}")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
