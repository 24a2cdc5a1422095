"""A conversation in OpenAI's responses API: the items of a request, and what the real server refuses of them.

Reasoning vouches for what came behind it (`signatures`), and goes back with it: calls whose reasoning is gone are
refused, and so is content that is another answer's, or has been touched.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import pydantic

from tarsy_dev.model import openai_shapes as shapes
from tarsy_dev.model import script, signatures

_CALL_ID = re.compile(r"fc_(?P<reasoning>[0-9a-f]{16})_\d+")
"""A call's item of ours names the reasoning that it came with."""


class _Text(shapes.Wire):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[Any] | None = None


class Message(shapes.Wire):
    """A message of any role."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Text]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    @property
    def text(self) -> str:
        """Return the message as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _Call(shapes.Wire):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class _Output(shapes.Wire):
    type: Literal["function_call_output"]
    call_id: str
    output: str
    id: str | None = None
    status: str | None = None


class _Summary(shapes.Wire):
    type: Literal["summary_text"]
    text: str


class _Reasoning(shapes.Wire):
    type: Literal["reasoning"]
    id: str
    summary: list[_Summary]
    encrypted_content: str | None = None
    content: list[dict[str, Any]] | None = None
    status: str | None = None


class _Search(shapes.Wire):
    type: Literal["web_search_call"]
    id: str
    status: str
    action: dict[str, Any] | None = None


Item = Annotated[Message | _Call | _Output | _Reasoning | _Search, pydantic.Field(discriminator="type")]


def system(items: Sequence[Item]) -> str:
    """The instructions among the items."""
    messages_only = [item for item in items if isinstance(item, Message)]
    return "".join(message.text for message in messages_only if message.role in ("system", "developer"))


def messages(items: Sequence[Item]) -> Iterator[script.Message]:
    """The conversation in words that are no protocol's; neighbours may be of one role."""
    names = {item.call_id: item.name for item in items if isinstance(item, _Call)}
    for item in items:
        match item:
            case Message(role="user"):
                yield script.Message(role="user", text=item.text)
            case Message(role="assistant"):
                yield script.Message(role="model", text=item.text)
            case _Reasoning():
                yield script.Message(role="model", thoughts="".join(part.text for part in item.summary))
            case _Call():
                yield script.Message(role="model", calls=(shapes.call(item.name, item.arguments, item.call_id),))
            case _Output():
                tool_result = script.result(names[item.call_id], item.call_id, item.output)
                yield script.Message(role="user", results=(tool_result,))


def refusal(items: Sequence[Item]) -> script.HttpError | None:
    """Return what the real server would answer to these items with 400, or None."""
    return _refused_items(items) or _refused_reasoning(items)


def _refused_items(items: Sequence[Item]) -> script.HttpError | None:
    """Each call has an output behind it, and each output a call before it."""
    if not items:
        return shapes.refused("Invalid 'input': empty array. Expected an array with minimum length 1.", "empty_array")
    called: list[str] = []
    for index, item in enumerate(items):
        if isinstance(item, _Call):
            refusal = shapes.refused_names(f"input[{index}].name", [item.name])
            if refusal := refusal or shapes.refused_arguments(item.arguments):
                return refusal
            if item.call_id in called:
                return shapes.refused(f"Duplicate function call with call_id {item.call_id}.")
            called.append(item.call_id)
        if isinstance(item, _Output):
            if item.call_id not in called:
                return shapes.refused(f"No tool call found for function call output with call_id {item.call_id}.")
            called.remove(item.call_id)
        if isinstance(item, Message) and called:
            break
    return shapes.refused(f"No tool output found for function call {called[0]}.") if called else None


def _refused_reasoning(items: Sequence[Item]) -> script.HttpError | None:
    """_Reasoning goes back whole, with what came behind it, and that with its reasoning."""
    behind: list[Item] = []
    for item in reversed(items):
        if isinstance(item, _Reasoning):
            if not behind:
                return shapes.refused(
                    f"Item '{item.id}' of type 'reasoning' was provided without its required following item."
                )
            if item.encrypted_content is None:
                return shapes.refused(
                    f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false. Try "
                    "again with `store` set to true, or remove this item from your input."
                )
            if not _is_genuine(item, behind):
                return shapes.refused(
                    f"The encrypted content {item.encrypted_content[:5]}... could not be verified. Reason: Encrypted "
                    "content could not be decrypted or parsed.",
                    "invalid_encrypted_content",
                )
            behind = []
        elif isinstance(item, _Output) or (isinstance(item, Message) and item.role != "assistant"):
            if refusal := _refused_orphan(behind):
                return refusal
            behind = []
        else:
            behind.insert(0, item)
    return _refused_orphan(behind)


def _refused_orphan(items: Sequence[Item]) -> script.HttpError | None:
    for item in items:
        named = _CALL_ID.fullmatch(item.id or "") if isinstance(item, _Call) else None
        if named:
            return shapes.refused(
                f"Item '{named.string}' of type 'function_call' was provided without its required 'reasoning' item: "
                f"'rs_{named['reasoning']}'."
            )
    return None


def _is_genuine(item: _Reasoning, behind: Sequence[Item]) -> bool:
    try:
        content = base64.b64decode(item.encrypted_content or "", validate=True)
    except binascii.Error:
        return False
    calls = [following.call_id for following in behind if isinstance(following, _Call)]
    return signatures.genuine(content, vouched(item.id, calls))


def vouched(reasoning: str, calls: Sequence[str]) -> bytes:
    """Return the bytes that encrypted reasoning vouches for."""
    return json.dumps([reasoning, *calls]).encode()
