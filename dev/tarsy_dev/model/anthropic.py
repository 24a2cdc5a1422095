"""Anthropic's protocol, as the anthropic SDK 2 speaks it: the pieces of `POST /v1/messages`.

Requests are parsed as strictly as the real server's: unknown fields are refused, in pydantic's words as there, and
what it refuses of a conversation is refused: `anthropic_conversation` has those rules. Answers are made of the SDK's
own types (`anthropic_answer`, loaded with the first answer: they take seconds).
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pydantic

from tarsy_dev import keys
from tarsy_dev.model import anthropic_conversation as conversation
from tarsy_dev.model import script

if TYPE_CHECKING:
    from tarsy_dev.model import anthropic_answer

name: Final = "anthropic"
routes: Final = ("/v1/messages",)

_TYPES = {
    400: ("invalid_request_error", "Invalid request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit."),
    500: ("api_error", "Internal server error"),
    504: ("timeout_error", "Request timed out"),
    529: ("overloaded_error", "Overloaded"),
}
_NO_KEY = script.HttpError(status=401, message="x-api-key header is required")
_NO_VERSION = script.HttpError(status=400, message="anthropic-version: header is required")
_NO_JSON = script.HttpError(status=400, message="The request body is not valid JSON: expected value")
_VERSIONS = ("2023-06-01", "2026-10-21")
_SAMPLING = ("temperature", "top_p", "top_k")
"""The parameters that the newer version does not have."""
_LEAST_BUDGET = 1024
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


_ADAPTIVE = re.compile(r"claude-\w+-(4-[6-9]|[5-9])")
"""The models that think as much as suits them."""
_BUDGETED = re.compile(r"claude-\w+-4(-[0-6])?(-\d{8})?$")
"""The models that take a budget."""


class _Schema(pydantic.BaseModel):
    """A JSON schema of an object; what else it says is the tool's."""

    model_config = pydantic.ConfigDict(extra="allow")
    type: Literal["object"]
    properties: dict[str, Any] = {}

    @pydantic.model_validator(mode="after")
    def _accepted(self) -> _Schema:
        if {"oneOf", "allOf", "anyOf"} & (self.model_extra or {}).keys():
            raise ValueError("input_schema does not support oneOf, allOf, or anyOf at the top level")
        if not all(_PROPERTY.fullmatch(name) for name in self.properties):
            raise ValueError(f"Property keys should match pattern '^{_PROPERTY.pattern}$'")
        return self


class _Custom(conversation.Cached):
    type: Literal["custom"] | None = None
    name: Annotated[str, pydantic.Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str = ""
    input_schema: _Schema


class _WebSearch(conversation.Cached):
    type: Literal["web_search_20250305"]
    name: Literal["web_search"]
    max_uses: Annotated[int, pydantic.Field(gt=0)] | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None


def _kind(tool: Any) -> str:
    return "web_search" if isinstance(tool, dict) and str(tool.get("type")).startswith("web_search") else "custom"


_Tool = Annotated[
    Annotated[_Custom, pydantic.Tag("custom")] | Annotated[_WebSearch, pydantic.Tag("web_search")],
    pydantic.Discriminator(_kind),
]


class _Enabled(conversation.Wire):
    type: Literal["enabled"]
    budget_tokens: int
    display: Literal["summarized", "omitted"] | None = None


class _Adaptive(conversation.Wire):
    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class _Disabled(conversation.Wire):
    type: Literal["disabled"]


class _ToolChoice(conversation.Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _OutputConfig(conversation.Wire):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class _Request(conversation.Wire):
    model: Annotated[str, pydantic.Field(min_length=1)]
    max_tokens: Annotated[int, pydantic.Field(ge=1)]
    messages: list[conversation.Message]
    system: conversation.Texts = []
    tools: list[_Tool] = []
    tool_choice: _ToolChoice | None = None
    thinking: Annotated[_Enabled | _Adaptive | _Disabled, pydantic.Field(discriminator="type")] | None = None
    output_config: _OutputConfig | None = None
    stream: bool = False
    temperature: Annotated[float, pydantic.Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] = []
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def parse(
    *,
    path: Mapping[str, str],  # noqa: ARG001 - `wire.Wire`'s
    headers: Mapping[str, str],
    body: Any,
) -> tuple[script.Turn, script.HttpError | None]:
    """Read a request; see `wire.Wire`."""
    api_key = headers.get("x-api-key") or headers.get("Authorization", "").removeprefix("Bearer ")
    fields = body if isinstance(body, dict) else {}
    blank = script.Turn(model=str(fields.get("model", "")), streaming=fields.get("stream") is True, api_key=api_key)
    refused = _refused_headers(headers, api_key) or (_NO_JSON if body is None else None)
    try:
        request = _Request.model_validate(fields)
    except pydantic.ValidationError as error:
        return blank, refused or script.HttpError(status=400, message=_complaint(error))
    refusal = (
        _refused_sampling(request, version=headers.get("anthropic-version", ""))
        or _refused_setting(request)
        or conversation.refusal(request.messages, thinking=isinstance(request.thinking, _Enabled))
    )
    return _turn(blank, request), refused or (refusal and script.HttpError(status=400, message=refusal)) or None


def _refused_headers(headers: Mapping[str, str], api_key: str) -> script.HttpError | None:
    if not api_key:
        return _NO_KEY
    match headers.get("anthropic-version"):
        case None:
            return _NO_VERSION
        case version if version not in _VERSIONS:
            return script.HttpError(status=400, message=f'anthropic-version: "{version}" is not a valid version')
    return None


def _refused_sampling(request: _Request, *, version: str) -> str | None:
    sent = [setting for setting in _SAMPLING if setting in request.model_fields_set]
    return f"{sent[0]}: Extra inputs are not permitted" if sent and version == _VERSIONS[-1] else None


def _turn(blank: script.Turn, request: _Request) -> script.Turn:
    system = "".join(text.text for text in request.system)
    messages = conversation.messages(request.messages)
    first_user = next((message.text for message in messages if message.role == "user"), "")
    return dataclasses.replace(
        blank,
        system=system,
        messages=messages,
        tools=tuple(
            script.Tool(name=tool.name, description=tool.description, schema=tool.input_schema.model_dump())
            for tool in request.tools
            if isinstance(tool, _Custom)
        ),
        asked=frozenset(_features_asked(request)),
        thinking=isinstance(request.thinking, _Enabled | _Adaptive),
        key=keys.find(system=system, first_user=first_user),
        kind=keys.kind(system=system, first_user=first_user),
        iteration=sum(message.role == "model" for message in messages),
    )


def _features_asked(request: _Request) -> Iterator[str]:
    yield from (tool.name for tool in request.tools if isinstance(tool, _WebSearch))
    yield from ("cache_control" for block in _marks(request) if block.cache_control)


def _marks(request: _Request) -> Iterator[conversation.Cached]:
    yield from request.tools
    yield from request.system
    yield from conversation.marks(request.messages)


def _refused_setting(request: _Request) -> str | None:
    names = [tool.name for tool in request.tools]
    if any(name in names[:index] for index, name in enumerate(names)):
        return "tools: Tool names must be unique."
    if any(not text.text for text in request.system):
        return "system: text content blocks must be non-empty"
    if request.tool_choice and not names:
        return "tool_choice: tool_choice may only be specified while providing tools."
    if isinstance(request.thinking, _Adaptive) and not _ADAPTIVE.match(request.model):
        return "adaptive thinking is not supported on this model"
    if isinstance(request.thinking, _Enabled) and (refused := _refused_thinking(request, request.thinking)):
        return refused
    return conversation.too_many_marks(_marks(request))


def _refused_thinking(request: _Request, thinking: _Enabled) -> str | None:
    if not _BUDGETED.match(request.model):
        return (
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if thinking.budget_tokens < _LEAST_BUDGET:
        return f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_LEAST_BUDGET}"
    if request.max_tokens <= thinking.budget_tokens:
        return (
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
            "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size"
        )
    if request.temperature not in (None, 1):
        return (
            "`temperature` may only be set to 1 when thinking is enabled. Please consult our documentation at "
            "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#important-considerations-when-using-"
            "extended-thinking"
        )
    if request.tool_choice and request.tool_choice.type in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    return None


def _complaint(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    words = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}
    return f"{'.'.join(map(str, first['loc']))}: {words.get(first['type'], first['msg'])}"


def content_type(*, streaming: bool) -> str:
    """The content type of an answer."""
    return "text/event-stream; charset=utf-8" if streaming else "application/json"


def _answers() -> type[anthropic_answer.Answering]:
    from tarsy_dev.model import anthropic_answer  # the SDK's types: seconds, for any user of this protocol

    return anthropic_answer.Answering


def pieces(*, model_call: script.Turn, answer: script.Answer) -> Iterator[bytes]:
    """The body of an answer; see `wire.Wire`."""
    return _answers()(model_call, answer).pieces()


def flood(*, model_call: script.Turn, megabytes: float | None) -> Iterator[bytes]:
    """The body of an answer of very much text; see `wire.Wire`."""
    return _answers()(model_call, script.Answer(finish="length")).flood(megabytes)


def garbage(*, model_call: script.Turn, text: str) -> bytes:
    """A body around something that is not the protocol's."""
    return f"event: message_start\ndata: {text}\n\n".encode() if model_call.streaming else text.encode()


def error(error: script.HttpError, *, within_stream: bool) -> bytes:
    """An error in Anthropic's shape; see `wire.Wire`."""
    kind, usual = _TYPES.get(error.status, _TYPES[500] if error.status >= 500 else _TYPES[400])
    body = json.dumps(
        {
            "type": "error",
            "error": {"type": error.code or kind, "message": error.message or usual},
            "request_id": f"req_{secrets.token_hex(12)}",
        }
    )
    return f"event: error\ndata: {body}\n\n".encode() if within_stream else body.encode()
