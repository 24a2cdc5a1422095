"""Gemini through google-genai: the stream, and what goes wrong with it.

`gemini_requests` says what is asked, `gemini_answers` reads what is answered, and `vertexai` asks the same elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import httpx2
from google import genai
from google.genai import errors, types

from tarsy.config.model import providers
from tarsy.llm import gemini_answers, gemini_requests, http, names, provider
from tarsy.transcript import ports

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_UNAUTHORIZED = frozenset({401, 403})
_SHAPELESS = (errors.UnknownApiResponseError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The exceptions of the SDK for a body that is no JSON, or JSON of an unexpected shape.

Their messages quote the whole body.
"""
_OVERFLOW = re.compile("input token count .{0,80}(exceeds the maximum|model only supports up to)", re.DOTALL)
"""How the Gemini API says it, and how Vertex AI does."""
_HIDDEN = "***"
_UNKNOWN = "http://unknown.invalid"
"""Stands for the server until the SDK has said where it goes."""


def build(
    name: str, settings: providers.GoogleProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """The provider `name`, speaking over `session`, which stays the caller's."""
    return Gemini(name, settings, api_key=key or "", http=session)


class Speaker:
    """One Gemini model, reached by a client of the SDK; subclasses supply address and credentials.

    Of the SDK this uses the low-level client: addresses, keys and tokens, the stream and its errors. The SDK's models
    of requests and answers are left out: they would be built anew for each request and each chunk, and take three times
    the processor time of all the rest. So requests are written, and chunks read, in their wire format.
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
        try:
            body = gemini_requests.body(
                request, provider=self._name, model=self.model, thinking=self._thinking, wire_names=wire_names
            )
            asked = self._api._build_request("post", path, body)
            async with http.closing():
                response = await self._api._async_request(http_request=asked, stream=True)
                async for received in response:
                    if isinstance(received, dict) and "error" in received:
                        code: Any = received["error"].get("code")
                        await errors.APIError.raise_error_async(code, received, response)
                    for event in reading.add(received):
                        yield event
        except errors.APIError as error:
            raise self._translated(error) from error
        except _SHAPELESS as error:
            why = f"the stream is not the API's: {type(error).__name__}"
            raise provider.RetryableError(why, code="protocol") from error
        except (httpx2.HTTPError, OSError) as error:
            raise provider.RetryableError(f"the connection broke: {_broken(error)}", code="connection") from error
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
        """Return the secrets that the server knows; errors must not show them."""
        raise NotImplementedError

    def _unauthorized(self) -> str:
        """Return the remedy for a refused credential."""
        raise NotImplementedError

    def _unknown(self) -> str:
        """Return the remedy for an unknown model."""
        return f"check model of llm_providers.{self._name}: '{self.model}'"

    def _translated(self, error: errors.APIError) -> provider.ProviderError:
        message = str(error.message)[: http.TOLD_MAX]
        text = f"{error.code} {str(error.status or '')[: http.TOLD_MAX]}: {message}"
        for secret in self._secrets():
            text = text.replace(secret, _HIDDEN)
        code = str(error.code or "")
        if error.code in _RETRYABLE:
            return provider.RetryableError(text, after=_retry_after(error), code=code)
        if error.code in _UNAUTHORIZED or any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(error)):
            text = f"{text}; {self._unauthorized()}"
        elif error.code == 404:
            text = f"{text}; {self._unknown()}"
        elif _OVERFLOW.search(message):
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


def client(session: aiohttp.ClientSession, *, base_url: str | None, **access: Any) -> genai.Client:
    """Return the SDK's client over `session`; `access` supplies address and credentials.

    The SDK's timeout is off, because it would be a deadline for each read. Its retries are off too: `attempts=1` also
    stops the hidden one after a refused connection.
    """
    made = genai.Client(
        **access,
        http_options=types.HttpOptions(
            base_url=base_url,
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_async_client=http.client(_UNKNOWN, session, only_data=True),
        ),
    )
    api = made._api_client
    api._async_httpx_client = http.client(api._http_options.base_url or _UNKNOWN, session, only_data=True)
    return made


def _broken(error: Exception) -> str:
    """Return the problem of a connection, without the memory address of its TLS settings."""
    below = error.__cause__
    if isinstance(below, aiohttp.ClientConnectorError):
        why = os.strerror(below.errno) if below.errno else below.strerror  # asyncio's own words have the address again
        return f"cannot connect to {below.host}:{below.port}: {why}"
    return str(error) or type(error).__name__


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
