"""Gemini through google-genai: the stream, and what goes wrong with it.

`gemini_requests` says what is asked, `gemini_answers` reads what is answered, and `vertexai` asks the same elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from typing import Any

import aiohttp
from google import genai
from google.genai import errors, types

from tarsy import proxies
from tarsy.config import providers
from tarsy.llm import gemini_answers, gemini_requests, names, provider
from tarsy.telemetry import logs
from tarsy.transcript import ports

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_UNAUTHORIZED = frozenset({401, 403})
_SHAPELESS = (errors.UnknownApiResponseError, ValueError, TypeError, AttributeError)
"""What the SDK raises where a body is no JSON, or JSON of another shape than it takes for granted."""
_OVERFLOW = re.compile("input token count .{0,80}(exceeds the maximum|model only supports up to)", re.DOTALL)
"""How the Gemini API says it, and how Vertex AI does."""
_HIDDEN = "***"
_responses: ContextVar[list[aiohttp.ClientResponse]] = ContextVar("responses")
"""The HTTP responses of the stream that is asked for: the SDK keeps them to itself."""


def build(
    name: str, settings: providers.GoogleProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """The provider `name`, speaking over `session`, which stays the caller's."""
    return Gemini(name, settings, api_key=key or "", http=session)


class Speaker:
    """One Gemini model, by a client of the SDK; where it is asked, and as whom, is for those who inherit.

    Of the SDK this uses the client that all its modules stand on: addresses, keys and tokens, the stream and its
    errors. Its models of requests and answers, which stand on top, would be built anew for each request and each chunk,
    and take three times the processor time of all the rest; so requests are written, and answers read, as the wire has
    them.
    """

    def __init__(
        self, name: str, settings: providers.GoogleProvider | providers.VertexAIProvider, *, client: genai.Client
    ) -> None:
        """`name` is the provider's in the platform file: only its own state is sent back."""
        self.model = settings.model
        self._name = name
        self._thinking = settings.thinking
        self._client = client
        self._api = client._api_client

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        wire_names = {spec.name: names.wire(spec.name) for spec in request.tools}
        reading = gemini_answers.Reading({wire: name for name, wire in wire_names.items()})
        path = await self._path()
        responses: list[aiohttp.ClientResponse] = []
        _responses.set(responses)
        try:
            body = gemini_requests.body(
                request, provider=self._name, model=self.model, thinking=self._thinking, wire_names=wire_names
            )
            async for received in await self._api.async_request_streamed("post", path, body):
                for event in reading.add(received.body):
                    yield event
        except errors.APIError as error:
            raise self._translated(error) from error
        except _SHAPELESS as error:
            raise provider.RetryableError(f"the stream is not the API's: {error}", code="protocol") from error
        except (aiohttp.ClientError, OSError) as error:
            raise provider.RetryableError(f"the connection broke: {_broken(error)}", code="connection") from error
        finally:
            # A stream that is left early ends here, and not when the garbage collector finds the SDK's iterators; a
            # response that was read to its end has given its connection back before.
            for response in responses:
                response.close()
        for event in reading.end():
            yield event

    async def close(self) -> None:
        """Close the SDK's connections."""
        await self._client.aio.aclose()
        self._client.close()

    async def _path(self) -> str:
        """Where on the server an answer is asked for; awaited until it can be."""
        raise NotImplementedError

    def _secrets(self) -> Sequence[str]:
        """What the server knows of us, and nobody else may."""
        raise NotImplementedError

    def _unauthorized(self) -> str:
        """What to do where the server does not let us in."""
        raise NotImplementedError

    def _unknown(self) -> str:
        """What to do where the server has no such model."""
        return f"check model of llm_providers.{self._name}: '{self.model}'"

    def _translated(self, error: errors.APIError) -> provider.ProviderError:
        text = f"{error.code} {error.status or ''}: {error.message}"
        for secret in self._secrets():
            text = text.replace(secret, _HIDDEN)
        code = str(error.code or "")
        if error.code in _RETRYABLE:
            return provider.RetryableError(text, after=_retry_after(error), code=code)
        if error.code in _UNAUTHORIZED or "API_KEY_INVALID" in _reasons(error):
            text = f"{text}; {self._unauthorized()}"
        elif error.code == 404:
            text = f"{text}; {self._unknown()}"
        elif _OVERFLOW.search(str(error.message)):
            return provider.ContextOverflowError(
                f"{text}; set context_tokens of llm_providers.{self._name} to what it takes"
            )
        return provider.FatalError(text, code=code)


class Gemini(Speaker):
    """One model of the Gemini API, by a key."""

    def __init__(
        self, name: str, settings: providers.GoogleProvider, *, api_key: str, http: aiohttp.ClientSession
    ) -> None:
        """`http` stays the caller's."""
        made = client(http, base_url=settings.base_url, vertexai=False, api_key=api_key)
        super().__init__(name, settings, client=made)
        self._api_key = api_key
        self._key = "api_key_env" if settings.api_key_file is None else "api_key_file"

    async def _path(self) -> str:
        return f"models/{self.model}:streamGenerateContent?alt=sse"

    def _secrets(self) -> Sequence[str]:
        return (self._api_key,)  # Google names the key that it has suspended

    def _unauthorized(self) -> str:
        return f"check {self._key} of llm_providers.{self._name}, and what the key may do"


def client(http: aiohttp.ClientSession, *, base_url: str | None, **access: Any) -> genai.Client:
    """The SDK's client over `http`; `access` says where it goes and as whom.

    No SDK timeout: with aiohttp it would be a deadline for the whole stream. No SDK retry: `attempts=1` also stops the
    hidden one after a refused connection.
    """
    made = genai.Client(
        **access,
        http_options=types.HttpOptions(
            base_url=base_url,
            retry_options=types.HttpRetryOptions(attempts=1),
            aiohttp_client=http,
            async_client_args={"middlewares": (_responded,)},
        ),
    )
    api = made._api_client
    api._async_client_session_request_args["proxy"] = proxies.proxy_for(api._http_options.base_url or "")
    return made


async def _responded(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Note the response of each request of a stream, redirected ones too; to another origin there is none.

    aiohttp takes only `Authorization` out of a redirected request: key and conversation would go along.
    """
    responses = _responses.get()
    if responses and request.url.origin() != responses[0].url.origin():
        why = "the server redirects to another origin, which gets neither key nor conversation"
        raise provider.FatalError(why, code="redirect")
    with logs.nobodys():  # a connection that is made for it goes on behind its run
        response = await handler(request)
    responses.append(response)
    return response


def _broken(error: Exception) -> str:
    """What aiohttp says of a connection, without the address in memory of its TLS settings."""
    if isinstance(error, aiohttp.ClientConnectorError):
        why = os.strerror(error.errno) if error.errno else error.strerror  # asyncio's own words have the address again
        return f"cannot connect to {error.host}:{error.port}: {why}"
    return str(error) or type(error).__name__


def _reasons(error: errors.APIError) -> list[str]:
    """The machine-readable reasons of an error (google.rpc.ErrorInfo)."""
    return [str(detail.get("reason", "")) for detail in _details(error)]


def _retry_after(error: errors.APIError) -> float | None:
    """Seconds that the provider asks us to wait: the Retry-After header, else the RetryInfo detail."""
    headers = getattr(error.response, "headers", None) or {}
    if str(after := headers.get("Retry-After", "")).isdecimal():
        return float(after)
    delays = [str(detail.get("retryDelay", "")) for detail in _details(error)]
    return next((float(delay[:-1]) for delay in delays if delay[:-1].replace(".", "", 1).isdecimal()), None)


def _details(error: errors.APIError) -> list[dict[str, Any]]:
    inner = error.details.get("error") if isinstance(error.details, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
