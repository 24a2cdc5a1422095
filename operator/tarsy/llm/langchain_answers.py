"""One answer from LangChain's chunks: its content blocks, tool calls and token counts, put together and bounded."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core import messages as lc
from langchain_core.messages import ai
from langchain_core.messages import content as types_of_content

from tarsy.llm import provider
from tarsy.transcript import messages

_ARGUMENTS_MAX = 4 * 1024 * 1024
"""Characters in the calls of one answer, which are not shown before they are complete."""
_BLOCKS_MAX = 64 * 1024 * 1024
"""Characters in the blocks of one answer, which go back to the provider."""
_PIECE = 64
"""Characters that count for each piece of a block, and each call, however short: it takes memory."""
_REFUSED = frozenset(
    {"content_filter", "safety", "refusal", "recitation", "malformed_function_call", "error", "failed", "cancelled"}
)
"""The reasons with which a model stops without an answer."""
_GROWING = frozenset(
    {"text", "thinking", "signature", "arguments", "partial_json", "input_json", "refusal", "reasoning"}
)
"""The fields of a content block that arrive in pieces."""
_FIRST = frozenset({"type"})
"""The fields that only the first piece of a block sets; Anthropic's later pieces have types of their own."""


def _parsed(s: str, *, strict: bool = False) -> Any:
    """Return the value of complete JSON; None for anything else."""
    try:
        return json.loads(s, strict=strict)
    except ValueError:
        return None


# LangChain parses each piece of a call's arguments in advance, which is not needed here: it removes the last character
# until the rest is JSON. For a piece of 64 KB that is no JSON, the event loop would stand still for seconds.
ai.parse_partial_json = _parsed  # type: ignore[attr-defined]
# LangChain collects these names from its own types anew for each block of each message: half of a call of the
# responses API.
types_of_content._get_data_content_block_types = functools.cache(types_of_content._get_data_content_block_types)


@dataclass
class Block:
    """A block of an answer's content, put together from its pieces."""

    fields: dict[str, Any] = field(default_factory=dict)
    _growing: dict[str, list[str]] = field(default_factory=dict)
    _lists: dict[str, dict[object, Block]] = field(default_factory=dict)

    def add(self, piece: dict[str, Any]) -> None:
        """Add a piece: text is appended, parts of lists are added by their `index`, other fields are replaced."""
        for key, value in piece.items():
            if key == "index" or value is None:
                continue
            if key in _GROWING and isinstance(value, str):
                self._growing.setdefault(key, []).append(value)
            elif isinstance(value, list):
                parts = self._lists.setdefault(key, {})
                for part in value:
                    if not isinstance(part, dict):
                        self.fields.setdefault(key, []).append(part)
                        continue
                    parts.setdefault(part.get("index", (len(parts),)), Block()).add(part)
            elif (value != "" and key not in _FIRST) or key not in self.fields:
                self.fields[key] = value

    def to_json(self) -> dict[str, Any]:
        """Return the block as JSON, without the indexes of its parts."""
        parts = {
            key: [*self.fields.get(key, ()), *(part.to_json() for part in parts.values())]
            for key, parts in self._lists.items()
        }
        return {**self.fields, **{key: "".join(pieces) for key, pieces in self._growing.items()}, **parts}


@dataclass
class _Call:
    """A tool call as it arrives."""

    name: str = ""
    id: str = ""
    pieces: list[str] = field(default_factory=list)


@dataclass
class Answer:
    """The parts of an answer that have arrived."""

    blocks: dict[object, Block] = field(default_factory=dict)
    """Its content, if that is more than text."""
    calls: dict[object, _Call] = field(default_factory=dict)
    response: provider.Response = field(default_factory=provider.Response)
    """What the last chunk told of it."""
    finish: str | None = None
    calls_size: int = 0
    """Characters of the calls."""
    blocks_size: int = 0
    """Characters of the blocks."""

    def add_blocks(self, content: Sequence[Any]) -> None:
        """Add pieces of the content; a piece without an index is a block of its own."""
        for piece in content:
            if isinstance(piece, dict):
                self.blocks_size += _PIECE + _characters(piece)
                if self.blocks_size > _BLOCKS_MAX:
                    raise provider.RejectedError(f"the answer is longer than {_BLOCKS_MAX} characters")
                self.blocks.setdefault(piece.get("index", (len(self.blocks),)), Block()).add(piece)

    def add_calls(self, chunks: Sequence[Any]) -> None:
        """Add pieces of calls; one without an index continues the last call, unless it begins another."""
        for chunk in chunks:
            key = chunk.get("index")
            if key is None:
                begins = chunk.get("name") or chunk.get("id") or not self.calls
                key = (len(self.calls),) if begins else next(reversed(self.calls))
            if key not in self.calls:
                self.calls_size += _PIECE
            call = self.calls.setdefault(key, _Call())
            call.name = call.name or chunk.get("name") or ""
            call.id = call.id or chunk.get("id") or ""
            if piece := chunk.get("args"):
                call.pieces.append(piece)
                self.calls_size += len(piece)
        if self.calls_size > _ARGUMENTS_MAX:
            raise provider.RejectedError(f"the answer's calls are longer than {_ARGUMENTS_MAX} characters")

    def is_complete(self) -> bool:
        """Return whether the model came to an end; raise RejectedError if it stopped without an answer."""
        if self.finish is not None and self.finish.lower() in _REFUSED:
            raise provider.RejectedError(f"the model stopped with {self.finish}", code=self.finish)
        if self.finish == "tool_calls" and not self.calls:
            raise provider.RejectedError("the model announced tool calls, and made none")
        return self.finish is not None

    @property
    def call_ids(self) -> list[str]:
        """The provider's own ids of the calls."""
        return [call.id for call in self.calls.values()]


def call_chunks(message: Any) -> Sequence[Any]:
    """Return the pieces of calls in a message, which is itself a piece or a complete one."""
    if pieces := getattr(message, "tool_call_chunks", None):
        return pieces  # type: ignore[no-any-return]
    if isinstance(message, lc.AIMessageChunk) and not message.tool_calls:
        return ()
    chunks = [{**call, "args": json.dumps(call["args"], ensure_ascii=False)} for call in message.tool_calls]
    return [*chunks, *message.invalid_tool_calls]


def content_event(block: Any) -> provider.StreamEvent:
    """Return the text or thought in a piece of content; an empty text for any other piece."""
    match block:
        case str(text) | {"type": "text", "text": str(text)}:
            return provider.Text(text)
        case {"type": "thinking", "thinking": str(text)} | {"type": "reasoning", "reasoning": str(text)}:
            return provider.Thinking(text)
        case {"type": "reasoning", "summary": list(parts)}:
            return provider.Thinking("".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)))
        case _:
            return provider.Text("")


def usage(reported: Any) -> messages.Usage:
    """Return token counts with separate thinking tokens: some providers include them in the output, others do not."""
    details = reported.get("output_token_details") or {}
    thinking = sum(count or 0 for key, count in details.items() if key.endswith("reasoning"))
    input_tokens, output, total = (reported.get(f"{kind}_tokens") or 0 for kind in ("input", "output", "total"))
    output = max(0, (total - input_tokens if total > input_tokens else output) - thinking)
    return messages.Usage(
        input_tokens=input_tokens,
        output_tokens=output,
        thinking_tokens=thinking,
        total_tokens=total or input_tokens + output + thinking,
    )


def _characters(piece: dict[str, Any]) -> int:
    """Return the characters of a piece of a block; lists and objects count as JSON."""
    strings = sum(len(value) for value in piece.values() if isinstance(value, str))
    return strings + sum(len(json.dumps(value)) for value in piece.values() if isinstance(value, list | dict))
