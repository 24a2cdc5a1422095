"""A conversation in Anthropic's protocol: its shape, and what the real server refuses of one.

The messages are the real ones, as people report them from the API. Stricter than today's server is that users and
assistants take turns: it joins neighbours of one role.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import pydantic

from tarsy_dev.model import script, signatures

ID = r"^[a-zA-Z0-9_-]+$"
_BREAKPOINTS = 4


class Wire(pydantic.BaseModel):
    """A message of Anthropic's: these fields and no others."""

    model_config = pydantic.ConfigDict(extra="forbid")


class _CacheControl(Wire):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Cached(Wire):
    """A block that may be the end of a cached prefix."""

    cache_control: _CacheControl | None = None


class _Citation(Wire):
    type: Literal["web_search_result_location"]
    cited_text: str
    encrypted_index: str
    title: str | None
    url: str


class Text(Cached):
    """Text, of a message or of the system prompt."""

    type: Literal["text"]
    text: str
    citations: list[_Citation] | None = None


def _as_blocks(content: Any) -> Any:
    """A string is short for one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts = Annotated[list[Text], pydantic.BeforeValidator(_as_blocks)]
"""Text, or blocks of it."""


class _Thinking(Wire):
    type: Literal["thinking"]
    thinking: str
    signature: str


class _RedactedThinking(Wire):
    type: Literal["redacted_thinking"]
    data: str


class _Caller(Wire):
    type: Literal["direct"]


class _ToolUse(Cached):
    type: Literal["tool_use"]
    id: Annotated[str, pydantic.Field(pattern=ID)]
    name: Annotated[str, pydantic.Field(pattern=r"^[a-zA-Z0-9_-]{1,200}$")]
    input: dict[str, Any]
    caller: _Caller | None = None


class _ToolResult(Cached):
    type: Literal["tool_result"]
    tool_use_id: Annotated[str, pydantic.Field(pattern=ID)]
    content: Texts = []
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(text.text for text in self.content)


class _ServerToolUse(Cached):
    type: Literal["server_tool_use"]
    id: Annotated[str, pydantic.Field(pattern=r"^srvtoolu_[a-zA-Z0-9_]+$")]
    name: Literal["web_search"]
    input: dict[str, Any]
    caller: _Caller | None = None


class _Found(Wire):
    type: Literal["web_search_result"]
    title: str
    url: str
    encrypted_content: str
    page_age: str | None = None


class _NotFound(Wire):
    type: Literal["web_search_tool_result_error"]
    error_code: str


class _WebSearchToolResult(Cached):
    type: Literal["web_search_tool_result"]
    tool_use_id: Annotated[str, pydantic.Field(pattern=r"^srvtoolu_[a-zA-Z0-9_]+$")]
    content: list[_Found] | _NotFound
    caller: _Caller | None = None


_Block = Annotated[
    Text | _Thinking | _RedactedThinking | _ToolUse | _ToolResult | _ServerToolUse | _WebSearchToolResult,
    pydantic.Field(discriminator="type"),
]
_THOUGHTS = (_Thinking, _RedactedThinking)
_OF_USERS = (Text, _ToolResult)


class Message(Wire):
    """One entry of `messages`."""

    role: Literal["user", "assistant"]
    content: Annotated[list[_Block], pydantic.BeforeValidator(_as_blocks)]

    @property
    def calls(self) -> list[_ToolUse]:
        """The calls of the client's tools."""
        return [block for block in self.content if isinstance(block, _ToolUse)]

    @property
    def results(self) -> list[_ToolResult]:
        """The results of such calls."""
        return [block for block in self.content if isinstance(block, _ToolResult)]


def seal(content: str) -> str:
    """A fresh signature of something: opaque text that `sealed` knows."""
    return base64.b64encode(signatures.issue(content.encode())).decode()


def _sealed(signature: str, content: str) -> bool:
    try:
        return signatures.genuine(base64.b64decode(signature, validate=True), content.encode())
    except (binascii.Error, ValueError):
        return False


REDACTED = "thoughts that nobody is shown"
"""The text of which the data of redacted thinking is a seal."""


def messages(conversation: Sequence[Message]) -> tuple[script.Message, ...]:
    """The conversation in words that are no protocol's."""
    names = {call.id: call.name for message in conversation for call in message.calls}
    return tuple(_message(message, names) for message in conversation)


def _message(message: Message, names: dict[str, str]) -> script.Message:
    return script.Message(
        role="model" if message.role == "assistant" else "user",
        text="".join(block.text for block in message.content if isinstance(block, Text)),
        thoughts="".join(block.thinking for block in message.content if isinstance(block, _Thinking)),
        calls=tuple(script.Call(name=call.name, args=call.input, id=call.id) for call in message.calls),
        results=tuple(
            script.result(names.get(result.tool_use_id, ""), result.tool_use_id, result.text, failed=result.is_error)
            for result in message.results
        ),
    )


def refusal(conversation: Sequence[Message], *, thinking: bool) -> str | None:
    """Return what the real server would answer to this conversation with 400, or None; `thinking` is with a budget."""
    rules: tuple[Callable[[Sequence[Message]], Iterator[str]], ...] = (
        _refused_turns,
        _refused_texts,
        _refused_results,
        _refused_seals,
        _refused_thoughts if thinking else lambda _: iter(()),
    )
    return next((words for rule in rules for words in rule(conversation)), None)


def too_many_marks(marked: Iterable[Cached]) -> str | None:
    """Return the refusal if more ends of cached prefixes are marked than there may be."""
    count = sum(block.cache_control is not None for block in marked)
    if count <= _BREAKPOINTS:
        return None
    return f"A maximum of {_BREAKPOINTS} blocks with cache_control may be provided. Found {count}."


def marks(conversation: Sequence[Message]) -> Iterator[Cached]:
    """Yield the blocks of a conversation that may be marked."""
    for message in conversation:
        yield from (block for block in message.content if isinstance(block, Cached))


def _refused_turns(conversation: Sequence[Message]) -> Iterator[str]:
    if not conversation:
        yield "messages: at least one message is required"
        return
    if conversation[0].role != "user":
        yield 'messages: first message must use the "user" role'
    for before, after in itertools.pairwise(conversation):
        if before.role == after.role:
            yield (
                'messages: roles must alternate between "user" and "assistant", but found multiple '
                f'"{after.role}" roles in a row'
            )
    last = conversation[-1]
    paused = last.content and isinstance(last.content[-1], _ServerToolUse | _WebSearchToolResult)
    if last.role == "assistant" and not paused:
        yield ("This model does not support assistant message prefill. The conversation must end with a user message.")


def _refused_texts(conversation: Sequence[Message]) -> Iterator[str]:
    for index, message in enumerate(conversation):
        if not message.content:
            yield (
                f"messages.{index}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )
        for number, block in enumerate(message.content):
            if message.role == "user" and not isinstance(block, _OF_USERS):
                yield f"messages.{index}.content.{number}: `{block.type}` blocks can only be in `assistant` messages"
            if message.role == "assistant" and isinstance(block, _ToolResult):
                yield f"messages.{index}.content.{number}: `tool_result` blocks can only be in `user` messages"
            if message.role == "user" and isinstance(block, Text) and block.citations:
                yield f"messages.{index}.content.{number}.text.citations: citations can only be in `assistant` messages"
            if isinstance(block, _ToolResult) and block.is_error and not block.text:
                yield f"messages.{index}.content.{number}.tool_result: content cannot be empty if `is_error` is true"
            for text in block.content if isinstance(block, _ToolResult) else [block]:
                if isinstance(text, Text) and not text.text:
                    yield "messages: text content blocks must be non-empty"
                if isinstance(text, Text) and not text.text.strip():
                    yield "messages: text content blocks must contain non-whitespace text"


def _refused_results(conversation: Sequence[Message]) -> Iterator[str]:
    """Results follow their calls at once, before any text, one for each."""
    seen: set[str] = set()
    asked: list[str] = []
    for index, message in enumerate(conversation):
        answered = [result.tool_use_id for result in message.results]
        for number, result in enumerate(answered):
            if result not in asked:
                yield (
                    f"messages.{index}.content.{number}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{result}. Each `tool_result` block must have a corresponding `tool_use` block in the previous "
                    "message."
                )
            if result in answered[:number]:
                yield f"messages.{index}.content.{number}: each tool_use must have a single result. Found multiple"
        if missing := [call for call in asked if call not in answered[: len(asked)]]:
            yield (
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        if answered and not all(isinstance(block, _ToolResult) for block in message.content[: len(answered)]):
            yield f"messages.{index}: `tool_result` blocks must come before any other content"
        asked = [call.id for call in message.calls]
        for number, call in enumerate(asked):
            if call in seen:
                yield f"messages.{index}.content.{number}: `tool_use` ids must be unique"
            seen.add(call)
    if asked:
        yield (
            f"messages.{len(conversation) - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {', '.join(asked)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
            "next message."
        )


def _refused_seals(conversation: Sequence[Message]) -> Iterator[str]:
    """Refuse seals that are not, byte for byte, what was issued; each search stands before what it found."""
    for index, message in enumerate(conversation):
        for number, block in enumerate(message.content):
            where = f"messages.{index}.content.{number}"
            for what in _broken_seals(block):
                yield f"{where}: Invalid {what}"
            searched = [before.id for before in message.content[:number] if isinstance(before, _ServerToolUse)]
            if isinstance(block, _WebSearchToolResult) and block.tool_use_id not in searched:
                yield (
                    f"{where}: unexpected `tool_use_id` found in `web_search_tool_result` blocks: "
                    f"{block.tool_use_id}. Each `web_search_tool_result` block must have a corresponding "
                    "`server_tool_use` block before it."
                )


def _broken_seals(block: _Block) -> Iterator[str]:
    match block:
        case _Thinking(thinking=thinking, signature=signature) if not _sealed(signature, thinking):
            yield "`signature` in `thinking` block"
        case _RedactedThinking(data=data) if not _sealed(data, REDACTED):
            yield "`data` in `redacted_thinking` block"
        case _WebSearchToolResult(content=list() as found):
            if not all(_sealed(page.encrypted_content, page.url) for page in found):
                yield "`encrypted_content` in `web_search_result` block"
        case Text(citations=list() as citations):
            if not all(_sealed(citation.encrypted_index, citation.url) for citation in citations):
                yield "`encrypted_index` in `web_search_result_location` citation"


def _refused_thoughts(conversation: Sequence[Message]) -> Iterator[str]:
    """An answer starts with its thoughts, if it has any; the first one of the turn that goes on has to, if it calls."""
    start = 0
    for index, message in enumerate(conversation):
        if message.role == "user":
            start = start if message.results else index + 1
            continue
        first = message.content[0]
        if isinstance(first, _THOUGHTS):
            continue
        if any(isinstance(block, _THOUGHTS) for block in message.content):
            yield (
                f"messages.{index}.content.0: If an assistant message contains any thinking blocks, the first block "
                f"must be `thinking` or `redacted_thinking`. Found `{first.type}`."
            )
    if start < len(conversation):
        first = conversation[start].content[0]
        if conversation[start].calls and not isinstance(first, _THOUGHTS):
            yield (
                f"messages.{start}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                f"`{first.type}`. When `thinking` is enabled, a final `assistant` message must start with a thinking "
                "block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you include "
                "thinking blocks from previous turns. To avoid this requirement, disable `thinking`. Please consult "
                "our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
            )
