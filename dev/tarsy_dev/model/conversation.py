"""A conversation in Gemini's protocol: its shape, and what the real server refuses of one.

The messages are the real ones (ai.google.dev/gemini-api/docs/thought-signatures, and the errors that people report
from the API), so that code which reads them sees what it will see. Signatures are checked for every model: Gemini 3
refuses a call without one, and reports show the same of 2.5; where ours is stricter than an old model, what it finds
is a signature that was lost.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import pydantic
from pydantic import alias_generators

from tarsy_dev.model import script, signatures

TEXT = b"text"
"""Content that the signature of a text covers: not the text, whose pieces a client may join."""

FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")

_DUMMIES = (b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go")
"""Signatures that Google's documentation lets a client send for calls that another model made."""

_COUNT = (
    "Please ensure that the number of function response parts is equal to the number of function call parts "
    "of the function call turn."
)
_ORDER = "Please ensure that function response turn comes immediately after a function call turn."
_LAST = "Please ensure that multiturn requests end with a user role or a function response."


class Wire(pydantic.BaseModel):
    """A message of Google's: fields in camel or in snake case, no others."""

    model_config = pydantic.ConfigDict(alias_generator=alias_generators.to_camel, populate_by_name=True, extra="forbid")


def _decoded(text: Any) -> Any:
    """Bytes, of which protobuf's JSON knows both alphabets: the SDK answers standard base64 with the URL-safe one."""
    return base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_")) if isinstance(text, str) else text


class _FunctionCall(Wire):
    name: str
    args: dict[str, Any] = {}
    id: str | None = None


class _FunctionResponse(Wire):
    name: str
    response: dict[str, Any]
    id: str | None = None


class _ToolInvocation(Wire):
    """A call of a tool of the server's own, or what came of it."""

    id: str
    tool_type: str
    args: dict[str, Any] = {}
    response: dict[str, Any] = {}


class _Part(Wire):
    text: str | None = None
    thought: bool = False
    thought_signature: Annotated[bytes, pydantic.BeforeValidator(_decoded)] | None = None
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None
    inline_data: dict[str, Any] | None = None
    file_data: dict[str, Any] | None = None
    executable_code: dict[str, Any] | None = None
    code_execution_result: dict[str, Any] | None = None
    tool_call: _ToolInvocation | None = None
    tool_response: _ToolInvocation | None = None

    @property
    def empty(self) -> bool:
        return not self.model_fields_set - {"thought", "thought_signature"}

    @property
    def is_code(self) -> bool:
        return self.executable_code is not None or self.code_execution_result is not None


class Content(Wire):
    """One entry of `contents`."""

    role: str = "user"
    parts: list[_Part] = []

    @property
    def calls(self) -> list[_Part]:
        """The parts that are calls."""
        return [part for part in self.parts if part.function_call]

    @property
    def responses(self) -> list[_FunctionResponse]:
        """The responses to calls."""
        return [part.function_response for part in self.parts if part.function_response]


def messages(contents: Sequence[Content]) -> tuple[script.Message, ...]:
    """The conversation in words that are no protocol's."""
    return tuple(_message(role, parts) for role, parts in _turns(contents) if role in ("user", "model"))


def _message(role: str, parts: list[_Part]) -> script.Message:
    calls = [part.function_call for part in parts if part.function_call]
    results = [part.function_response for part in parts if part.function_response]
    return script.Message(
        role="model" if role == "model" else "user",
        text="".join(part.text or "" for part in parts if not part.thought),
        thoughts="".join(part.text or "" for part in parts if part.thought),
        calls=tuple(script.Call(name=call.name, args=call.args, id=call.id) for call in calls),
        results=tuple(
            script.Result(
                name=r.name,
                id=r.id,
                text=_output(r.response),
                failed="error" in r.response,
                reference=str(r.response.get("reference", "")),
            )
            for r in results
        ),
    )


def _output(response: dict[str, Any]) -> str:
    """Return the text of a function response: of `output` or `error`, the keys that Google names, else all of it."""
    output = response.get("output", response.get("error"))
    return output if isinstance(output, str) else json.dumps(response)


def _turns(contents: Iterable[Content]) -> Iterator[tuple[str, list[_Part]]]:
    for role, group in itertools.groupby(contents, key=lambda content: content.role):
        yield role, [part for content in group for part in content.parts]


def refusal(contents: Sequence[Content]) -> str | None:
    """Return what the real server would answer to this conversation with 400, or None."""
    refused = _refused_shape(contents) or _refused_responses(contents) or _refused_native(contents)
    return refused or _refused_signature(contents)


def _refused_shape(contents: Sequence[Content]) -> str | None:
    if not contents:
        return "* GenerateContentRequest.contents: contents is not specified\n"
    for index, content in enumerate(contents):
        location = f"* GenerateContentRequest.contents[{index}].parts"
        if content.role not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not content.parts:
            return f"{location}: contents.parts must not be empty.\n"
        if any(part.empty for part in content.parts):
            return f"{location}: required oneof field 'data' must have one initialized field\n"
    return _LAST if contents[-1].role == "model" else None


def _refused_responses(contents: Sequence[Content]) -> str | None:
    """Function responses follow their calls at once, as many, for the same names and, where given, ids."""
    asked: list[_FunctionCall] = []
    for role, parts in _turns(contents):
        answered = [part.function_response for part in parts if part.function_response]
        if role == "model":
            asked = [part.function_call for part in parts if part.function_call]
            continue
        if answered and not asked:
            return _ORDER
        if len(answered) != len(asked):
            return _COUNT
        names = sorted(call.name for call in asked), sorted(response.name for response in answered)
        if names[0] != names[1]:
            return f"Please ensure that function responses answer the calls of their turn: {names[0]}, not {names[1]}."
        ids = {call.id for call in asked if call.id}
        if unknown := [response.id for response in answered if response.id and ids and response.id not in ids]:
            return f"Please ensure that function response ids are ids of the function call turn: {unknown[0]}."
    return None


def _refused_native(contents: Sequence[Content]) -> str | None:
    """Refuse a conversation without a response to each call, or a result of each code, that the server ran."""
    for content in contents:
        calls = [part.tool_call.id for part in content.parts if part.tool_call]
        if calls != [part.tool_response.id for part in content.parts if part.tool_response]:
            return "Please ensure that each tool call is followed by its tool response."
        ran = ["code" if part.executable_code else "result" for part in content.parts if part.is_code]
        if ran != ["code", "result"] * (len(ran) // 2):
            return "Please ensure that each executable code is followed by its code execution result."
    return None


def _refused_signature(contents: Sequence[Content]) -> str | None:
    """In the current exchange the first call of each turn carries a signature; any that is carried is genuine.

    The exchange starts with the last user content that is not a function response.
    """
    starts = [index for index, content in enumerate(contents) if content.role == "user" and not content.responses]
    for index, content in enumerate(contents):
        first = content.calls[0].function_call if content.calls else None
        if first and not content.calls[0].thought_signature and starts and index > starts[-1]:
            return (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                f"data, function call `default_api:{first.name}` , position {index + 1}. Please refer to "
                "https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
            )
        if any(not _genuine(part) for part in content.parts if part.thought_signature):
            return "Corrupted thought signature."
    return None


def _genuine(part: _Part) -> bool:
    signature = part.thought_signature or b""
    covered = TEXT
    if call := part.function_call:
        covered = signatures.of_call(call.name, call.args)
    elif native := part.tool_call:
        covered = signatures.of_call(native.tool_type, native.args)
    return signature in _DUMMIES or signatures.genuine(signature, covered)
