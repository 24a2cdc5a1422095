"""Gemini through google-genai: its client, the stream of an answer, and the translation of errors.

`gemini_requests` writes requests, `gemini_answers` reads answers, and `vertexai` does the same on Google Cloud.
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
from tarsy.llm import gemini_answers, gemini_requests, http, provider, tool_calls
from tarsy.transcript import ports

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_UNAUTHORIZED = frozenset({401, 403})
_UNEXPECTED_BODY = (errors.UnknownApiResponseError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The exceptions of the SDK for a body that is no JSON, or JSON of an unexpected shape.

Their messages quote the whole body.
"""
_OVERFLOW = re.compile("input token count .{0,80}(exceeds the maximum|model only supports up to)", re.DOTALL)
"""The words of the Gemini API and of Vertex AI for a request that is too large."""
_UNKNOWN = "http://unknown.invalid"
"""The server's address until the SDK has chosen it."""


def build(
    name: str, settings: providers.GoogleProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """Build the provider `name` over `session`, which stays the caller's."""
    return Gemini(name, settings, api_key=key or "", http=session)


class GeminiModel:
    """One Gemini model, over a client of the SDK; subclasses supply address and credentials.

    Of the SDK this uses the low-level client: addresses, keys and tokens, the stream and its errors. The SDK's models
    of requests and answers would be built anew for each request and each chunk, and take three times the processor time
    of all the rest. So requests are written, and chunks read, in their wire format.
    """

    def __init__(
        self,
        name: str,
        settings: providers.GoogleProvider | providers.VertexAIProvider,
        *,
        client: genai.Client,
        credentials_remedy: str,
        model_remedy: str = "",
    ) -> None:
        """`name` is the provider's in the platform file: only its own state is sent back.

        The remedies are for refused credentials and for an unknown model.
        """
        self.model = settings.model
        self._name = name
        self._thinking = settings.thinking
        self._max_output_tokens = settings.max_output_tokens
        self._client = client
        self._api = client._api_client
        self._credentials_remedy = credentials_remedy
        self._model_remedy = f"check model of llm_providers.{name}: '{self.model}'{model_remedy}"

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        tools = {tool_calls.wire_name(spec.name): spec.name for spec in request.tools}
        answer = gemini_answers.Answer(tools)
        path = await self._path()
        try:
            body = gemini_requests.body(
                request,
                provider=self._name,
                model=self.model,
                thinking=self._thinking,
                max_output_tokens=self._max_output_tokens,
            )
            sent = self._api._build_request("post", path, body)
            async with http.closing():
                response = await self._api._async_request(http_request=sent, stream=True)
                async for received in response:
                    if isinstance(received, dict) and "error" in received:
                        code: Any = received["error"].get("code")
                        await errors.APIError.raise_error_async(code, received, response)
                    for event in answer.add(received):
                        yield event
        except errors.APIError as error:
            raise self._translated(error) from error
        except _UNEXPECTED_BODY as error:
            problem = f"the stream is not the API's: {type(error).__name__}"
            raise provider.RetryableError(problem, code="protocol") from error
        except (httpx2.HTTPError, OSError) as error:
            raise provider.RetryableError(
                f"the connection broke: {_connection_problem(error)}", code="connection"
            ) from error
        for event in answer.end():
            yield event

    async def close(self) -> None:
        """Close the SDK's connections."""
        await self._client.aio.aclose()
        self._client.close()

    async def _path(self) -> str:
        """Return the path of requests; waits for credentials that have to be fetched."""
        raise NotImplementedError

    def _secrets(self) -> Sequence[str]:
        """Return the secrets that the server may repeat in errors, which must not show them."""
        raise NotImplementedError

    def _translated(self, error: errors.APIError) -> provider.ProviderError:
        message = str(error.message)[: http.ERROR_TEXT_MAX]
        text = f"{error.code} {str(error.status or '')[: http.ERROR_TEXT_MAX]}: {message}"
        for secret in self._secrets():
            text = provider.without(secret, text)
        code = str(error.code or "")
        if error.code in _RETRYABLE:
            return provider.RetryableError(text, after=_retry_after(error), code=code)
        if error.code in _UNAUTHORIZED or any(detail.get("reason") == "API_KEY_INVALID" for detail in _details(error)):
            text = f"{text}; {self._credentials_remedy}"
        elif error.code == 404:
            text = f"{text}; {self._model_remedy}"
        elif _OVERFLOW.search(message):
            return provider.ContextOverflowError(
                f"{text}; set context_tokens of llm_providers.{self._name} to its limit"
            )
        return provider.FatalError(text, code=code)


class Gemini(GeminiModel):
    """One model of the Gemini API, with an API key."""

    def __init__(
        self, name: str, settings: providers.GoogleProvider, *, api_key: str, http: aiohttp.ClientSession
    ) -> None:
        """The caller closes `http`."""
        key = "api_key_env" if settings.api_key_file is None else "api_key_file"
        super().__init__(
            name,
            settings,
            client=client(http, base_url=settings.base_url, vertexai=False, api_key=api_key),
            credentials_remedy=f"check {key} of llm_providers.{name}, and what the key may do",
        )
        self._api_key = api_key

    async def _path(self) -> str:
        return f"models/{self.model}:streamGenerateContent?alt=sse"

    def _secrets(self) -> Sequence[str]:
        return (self._api_key,)  # Google names the key that it has suspended


def client(session: aiohttp.ClientSession, *, base_url: str | None, **access: Any) -> genai.Client:
    """Return the SDK's client over `session`; `access` supplies address and credentials.

    The SDK's timeout is off, because it would be a deadline for each read. Its retries are off too: `attempts=1` also
    stops the hidden one after a refused connection.
    """
    sdk = genai.Client(
        **access,
        http_options=types.HttpOptions(
            base_url=base_url,
            retry_options=types.HttpRetryOptions(attempts=1),
            httpx_async_client=http.client(_UNKNOWN, session, only_data=True),
        ),
    )
    api = sdk._api_client
    api._async_httpx_client = http.client(api._http_options.base_url or _UNKNOWN, session, only_data=True)
    return sdk


def _connection_problem(error: Exception) -> str:
    """Return the problem of a connection, without the memory address of its TLS settings."""
    below = error.__cause__
    if isinstance(below, aiohttp.ClientConnectorError):
        problem = os.strerror(below.errno) if below.errno else below.strerror  # asyncio's text has the address too
        return f"cannot connect to {below.host}:{below.port}: {problem}"
    return str(error) or type(error).__name__


def _retry_after(error: errors.APIError) -> float | None:
    """Return the seconds that the provider asks us to wait: its Retry-After header, else its RetryInfo detail."""
    headers = getattr(error.response, "headers", None) or {}
    if str(after := headers.get("Retry-After", "")).isdecimal():
        return float(after)
    delays = [str(detail.get("retryDelay", "")) for detail in _details(error)]
    return next((float(delay[:-1]) for delay in delays if delay[:-1].replace(".", "", 1).isdecimal()), None)


def _details(error: errors.APIError) -> list[dict[str, Any]]:
    inner = error.details.get("error") if isinstance(error.details, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
