"""Gemini through google-genai.

The raw parts of each answer are its provider state: thought signatures only hold when parts go back whole, unchanged
and in one content. What we have shown and stored beside them (text, calls) is for people.

Source: Gemini API documentation, "Function calling" and "Thought signatures".
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import aiohttp
import pydantic
from google import genai
from google.genai import errors, types
from pydantic import alias_generators

from tarsy import proxies
from tarsy.config import providers
from tarsy.llm import names, provider
from tarsy.telemetry import logs
from tarsy.transcript import messages, ports

_RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_WHOLE = frozenset({"STOP", "MAX_TOKENS"})
_ADDRESS = "https://generativelanguage.googleapis.com"
"""Where the SDK goes by itself."""
_SHAPELESS = (errors.UnknownApiResponseError, ValueError, TypeError, AttributeError)
"""What the SDK raises where a body is no JSON, or JSON of another shape than it takes for granted."""
_NO_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Source: Gemini API documentation, "Thought signatures", on calls that another model made."""
_responses: ContextVar[list[aiohttp.ClientResponse]] = ContextVar("responses")
"""The HTTP responses of the stream that is asked for: the SDK keeps them to itself."""


def build(
    name: str, settings: providers.GoogleProvider, *, key: str | None, session: aiohttp.ClientSession
) -> provider.Provider:
    """The provider `name`, speaking over `session`, which stays the caller's."""
    return Gemini(name, settings, api_key=key or "", http=session)


class _Wire(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=alias_generators.to_camel, extra="allow")


class _FunctionCall(_Wire):
    name: str | None = None
    args: dict[str, Any] | None = None


class _Part(_Wire):
    """A part of an answer, with all that we do not know of it: it goes back as it came."""

    text: str | None = None
    thought: bool | None = None
    function_call: _FunctionCall | None = None

    def whole(self) -> dict[str, Any]:
        """The part as it came."""
        return self.model_dump(by_alias=True, exclude_none=True)


class _Content(_Wire):
    parts: list[_Part] | None = None


class _Candidate(_Wire):
    content: _Content | None = None
    finish_reason: str | None = None


class _PromptFeedback(_Wire):
    block_reason: str | None = None


class _UsageMetadata(_Wire):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    total_token_count: int | None = None


class _Chunk(_Wire):
    """What we read of one chunk of an answer. Source: Gemini API reference, GenerateContentResponse."""

    candidates: list[_Candidate] | None = None
    prompt_feedback: _PromptFeedback | None = None
    usage_metadata: _UsageMetadata | None = None


class Gemini:
    """One Gemini model.

    Of the SDK this uses the client that all its modules stand on: addresses, keys and tokens, the stream and its
    errors. Its models of requests and answers, which stand on top, would be built anew for each request and each chunk,
    and take three times the processor time of all the rest; so requests are written, and answers read, as the wire has
    them.
    """

    def __init__(
        self, name: str, settings: providers.GoogleProvider, *, api_key: str, http: aiohttp.ClientSession
    ) -> None:
        """`name` is the provider's in the platform file: only its own state is sent back. `http` stays the caller's."""
        self.model = settings.model
        self._name = name
        # No SDK timeout: with aiohttp it would be a deadline for the whole stream. No SDK retry: `attempts=1` also
        # stops the hidden one after a refused connection.
        client = genai.Client(
            api_key=api_key,
            http_options=types.HttpOptions(
                base_url=settings.base_url,
                retry_options=types.HttpRetryOptions(attempts=1),
                aiohttp_client=http,
                async_client_args={
                    "middlewares": (_responded,),
                    "proxy": proxies.proxy_for(settings.base_url or _ADDRESS),
                },
            ),
        )
        self._client = client
        self._api = client._api_client

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        wire_names = {spec.name: names.wire(spec.name) for spec in request.tools}
        known = {wire: name for name, wire in wire_names.items()}
        path = f"models/{self.model}:streamGenerateContent?alt=sse"
        parts: list[_Part] = []
        finish: str | None = None
        responses: list[aiohttp.ClientResponse] = []
        _responses.set(responses)
        try:
            body = _body(request, provider=self._name, model=self.model, wire_names=wire_names)
            async for received in await self._api.async_request_streamed("post", path, body):
                chunk = _Chunk.model_validate(json.loads(received.body))
                candidate = chunk.candidates[0] if chunk.candidates else None
                for part in (candidate and candidate.content and candidate.content.parts) or ():
                    parts.append(part)
                    for event in _events(part, known):
                        yield event
                if usage := _usage(chunk.usage_metadata):
                    yield usage
                if chunk.prompt_feedback and chunk.prompt_feedback.block_reason:
                    raise provider.FatalError(f"the prompt was blocked: {chunk.prompt_feedback.block_reason}")
                finish = (candidate and candidate.finish_reason) or finish
        except errors.APIError as error:
            raise _translated(error) from error
        except _SHAPELESS as error:
            raise provider.RetryableError(f"the stream is not the API's: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise provider.RetryableError(f"the connection broke: {error}") from error
        finally:
            # A stream that is left early ends here, and not when the garbage collector finds the SDK's iterators; a
            # response that was read to its end has given its connection back before.
            for response in responses:
                response.close()
        if finish is not None and finish not in _WHOLE:
            raise provider.RejectedError(f"the model stopped with {finish}")
        if finish is not None:
            yield provider.Finish(_state(parts))

    async def close(self) -> None:
        """Close the SDK's connections."""
        await self._client.aio.aclose()
        self._client.close()


async def _responded(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Note the response of each request of a stream, redirected ones too; to another origin there is none.

    aiohttp takes only `Authorization` out of a redirected request: key and conversation would go along.
    """
    responses = _responses.get()
    if responses and request.url.origin() != responses[0].url.origin():
        raise provider.FatalError("the server redirects to another origin, which gets neither key nor conversation")
    with logs.nobodys():  # a connection that is made for it goes on behind its run
        response = await handler(request)
    responses.append(response)
    return response


def _body(request: ports.Request, *, provider: str, model: str, wire_names: Mapping[str, str]) -> dict[str, Any]:
    """One request, as the SDK's models would put it on the wire."""
    declarations = [
        {
            "name": wire_names[spec.name],
            "description": spec.description,
            **({"parameters_json_schema": spec.parameters} if spec.parameters else {}),
        }
        for spec in request.tools
    ]
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    return {
        "contents": list(_contents(request.messages, provider=provider)),
        **({"systemInstruction": {"parts": [{"text": system}], "role": "user"}} if system else {}),
        **({"tools": [{"functionDeclarations": declarations}]} if declarations else {}),
        "generationConfig": _thinking(model),
    }


def _thinking(model: str) -> dict[str, Any]:
    """Gemini 2.5 takes a budget, 3 and newer a level; earlier ones do not think."""
    if model.startswith("gemini-2.5"):
        return {"thinkingConfig": {"include_thoughts": True, "thinking_budget": -1}}
    if model.startswith(("gemini-1", "gemini-2.0")):
        return {}
    return {"thinkingConfig": {"include_thoughts": True}}


def _contents(conversation: Sequence[messages.Message], *, provider: str) -> Iterator[dict[str, Any]]:
    """The conversation as contents: one for each message, the results of one answer's calls together."""
    results: list[dict[str, Any]] = []
    made: dict[str, dict[str, Any]] = {}
    for message in conversation:
        if message.role == "tool":
            results.append(_result(message, made[message.call_id]))
            continue
        if results:
            yield {"role": "user", "parts": results}
            results = []
        match message.role:
            case "user":
                yield {"role": "user", "parts": [{"text": message.text}]}
            case "assistant":
                parts = _said(message, provider=provider)
                called = [part["functionCall"] for part in parts if "functionCall" in part]
                made = {ours.id: call for ours, call in zip(message.calls, called, strict=True)}
                yield {"role": "model", "parts": parts}
    if results:
        yield {"role": "user", "parts": results}


def _said(message: messages.Message, *, provider: str) -> list[dict[str, Any]]:
    """An answer as parts: the provider's own where it gave them, else its text and its calls.

    A call of another provider's has no signature, and Gemini refuses one without: the documented stand-in says so.
    """
    state = message.provider_state
    if state is not None and state.provider == provider:
        own: list[dict[str, Any]] = state.data
        return own
    parts: list[dict[str, Any]] = [{"text": message.text}] if message.text else []
    for index, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": names.wire(call.name), "args": _args(call)}}
        parts.append(part if index else part | {"thoughtSignature": _NO_SIGNATURE})
    return parts


def _args(call: messages.ToolCall) -> dict[str, Any]:
    """Its arguments as an object; {} where they are none, as its result will have told."""
    try:
        loaded = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _result(message: messages.Message, call: Mapping[str, Any]) -> dict[str, Any]:
    response = {"error" if message.failed else "output": message.text, "reference": f"[tool {message.call_id}]"}
    # An answer may leave its calls without ids; their results have none then.
    named = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**named, "response": response}}


def _events(part: _Part, known: Mapping[str, str]) -> Iterator[provider.StreamEvent]:
    if part.function_call is not None:
        wire = part.function_call.name or ""
        yield provider.Call(
            known.get(wire, names.inner(wire)), json.dumps(part.function_call.args or {}, ensure_ascii=False)
        )
    elif part.text:
        yield provider.Thinking(part.text) if part.thought else provider.Text(part.text)


def _state(parts: Sequence[_Part]) -> list[dict[str, Any]]:
    """The parts as JSON, to be sent back as they are; but those that say nothing: what is empty may be signed."""
    try:
        return [whole for part in parts if (whole := part.whole()).keys() - {"text", "thought"} or part.text]
    except ValueError as error:
        raise provider.RejectedError(f"the answer is nested too deep: {error}") from error


def _usage(found: _UsageMetadata | None) -> provider.Usage | None:
    if found is None:
        return None
    return provider.Usage(
        messages.Usage(
            input_tokens=found.prompt_token_count or 0,
            output_tokens=found.candidates_token_count or 0,
            thinking_tokens=found.thoughts_token_count or 0,
            total_tokens=found.total_token_count or 0,
        )
    )


def _translated(error: errors.APIError) -> provider.ProviderError:
    text = f"{error.code} {error.status or ''}: {error.message}"
    if error.code not in _RETRYABLE:
        return provider.FatalError(text)
    return provider.RetryableError(text, after=_retry_after(error))


def _retry_after(error: errors.APIError) -> float | None:
    """Seconds that the provider asks us to wait: the Retry-After header, else the RetryInfo detail."""
    headers = getattr(error.response, "headers", None) or {}
    if str(after := headers.get("Retry-After", "")).isdecimal():
        return float(after)
    inner = error.details.get("error") if isinstance(error.details, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    delays = [str(detail.get("retryDelay", "")) for detail in details or () if isinstance(detail, dict)]
    return next((float(delay[:-1]) for delay in delays if delay[:-1].replace(".", "", 1).isdecimal()), None)
