"""Answers in Anthropic's protocol, made of the anthropic SDK's own types."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anthropic import types

from tarsy_dev.model import anthropic_conversation as conversation
from tarsy_dev.model import script

_STOP: dict[script.Finish, types.StopReason] = {
    "length": "max_tokens",
    "safety": "refusal",
    "paused": "pause_turn",
}
_DIRECT = types.DirectCaller(type="direct")
_FLOOD = 64 * 1024  # characters in one event

_Event: TypeAlias = (
    types.RawMessageStartEvent
    | types.RawMessageDeltaEvent
    | types.RawMessageStopEvent
    | types.RawContentBlockStartEvent
    | types.RawContentBlockDeltaEvent
    | types.RawContentBlockStopEvent
)


@dataclass(frozen=True)
class _Block:
    """A block of an answer: as it begins, what is added, and the whole of it."""

    complete: types.ContentBlock
    start: types.ContentBlock
    deltas: Sequence[types.RawContentBlockDelta] = ()


class Answering:
    """One answer being written."""

    def __init__(self, model_call: script.Turn, answer: script.Answer) -> None:
        self._turn = model_call
        self._answer = answer
        self._usage = answer.usage or script.usage_of(model_call, answer)
        self._message = f"msg_{secrets.token_hex(12)}"

    def pieces(self) -> Iterator[bytes]:
        """The body; of a stream, each delta ends a piece."""
        if not self._turn.streaming:
            body = self._whole(self._blocks()).to_json(indent=None).encode()
            yield body[: len(body) // 2]
            yield body[len(body) // 2 :]
            return
        begun = self._begun()
        for index, block in enumerate(self._blocks()):
            begun += _sent(
                types.RawContentBlockStartEvent(type="content_block_start", index=index, content_block=block.start)
            )
            begun += b"" if index else _named("ping", '{"type": "ping"}')
            for delta in block.deltas:
                event = types.RawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta)
                yield begun + _sent(event)
                begun = b""
            begun += _sent(types.RawContentBlockStopEvent(type="content_block_stop", index=index))
        yield begun + self._ended()

    def flood(self, megabytes: float | None) -> Iterator[bytes]:
        """A body of very much text, which does not repeat itself soon."""
        text = "".join(f"all work and no play {day:010}\n" for day in range(_FLOOD // 32))
        if self._turn.streaming:
            start, delta = _text(""), types.TextDelta(type="text_delta", text=text)
            yield self._begun() + _sent(
                types.RawContentBlockStartEvent(type="content_block_start", index=0, content_block=start)
            )
            piece = _sent(types.RawContentBlockDeltaEvent(type="content_block_delta", index=0, delta=delta))
            after = _sent(types.RawContentBlockStopEvent(type="content_block_stop", index=0)) + self._ended()
        else:
            piece = json.dumps(text)[1:-1].encode()
            body = self._whole([_Block(complete=_text(text), start=_text(""))]).to_json(indent=None).encode()
            before, _, after = body.partition(piece)
            yield before
        sent = 0
        while megabytes is None or sent < megabytes * 1e6:
            yield piece
            sent += len(piece)
        yield after

    def _begun(self) -> bytes:
        usage = types.Usage(output_tokens=1, **self._inputs())
        message = types.Message(
            id=self._message,
            type="message",
            role="assistant",
            model=self._turn.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return _sent(types.RawMessageStartEvent(type="message_start", message=message))

    def _ended(self) -> bytes:
        search_blocks = self._searches()
        usage = types.MessageDeltaUsage(
            output_tokens=self._usage.output + self._usage.thinking,
            output_tokens_details=types.OutputTokensDetails(thinking_tokens=self._usage.thinking),
            **({"server_tool_use": _searched(search_blocks)} if search_blocks else {}),
            **self._inputs(),
        )
        delta = types.raw_message_delta_event.Delta(stop_reason=self._stop_reason(), stop_sequence=None)
        return _sent(types.RawMessageDeltaEvent(type="message_delta", delta=delta, usage=usage)) + _sent(
            types.RawMessageStopEvent(type="message_stop")
        )

    def _whole(self, blocks: Sequence[_Block]) -> types.Message:
        return types.Message(
            id=self._message,
            type="message",
            role="assistant",
            model=self._turn.model,
            content=[block.complete for block in blocks],
            stop_reason=self._stop_reason(),
            stop_sequence=None,
            usage=types.Usage(
                output_tokens=self._usage.output + self._usage.thinking,
                output_tokens_details=types.OutputTokensDetails(thinking_tokens=self._usage.thinking),
                **self._inputs(),
            ),
        )

    def _inputs(self) -> dict[str, int]:
        """Return the input tokens, apart by cache where the conversation marks what is to be cached."""
        count = self._usage.input
        cached = "cache_control" in self._turn.asked
        read = count // 2 if cached and self._turn.iteration else 0
        written = count // 4 if cached else 0
        return {
            "input_tokens": count - read - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
        }

    def _stop_reason(self) -> types.StopReason:
        return _STOP.get(self._answer.finish, "tool_use" if self._answer.calls else "end_turn")

    def _searches(self) -> Sequence[script.Search]:
        return self._answer.searches if "web_search" in self._turn.asked else ()

    def _blocks(self) -> list[_Block]:
        """Thoughts, searches, text with its citations, calls: as the real one has them."""
        answer = self._answer
        size = answer.chunk if self._turn.streaming else 0
        blocks: list[_Block] = []
        if answer.redacted and self._turn.thinking:
            hidden = types.RedactedThinkingBlock(
                type="redacted_thinking", data=conversation.seal(conversation.REDACTED)
            )
            blocks.append(_Block(complete=hidden, start=hidden))
        if answer.thoughts and self._turn.thinking:
            blocks.append(_thoughts(answer.thoughts, size, signed=answer.signed))
        searches = self._searches()
        for search in searches:
            blocks += _search(search)
        if answer.text:
            blocks.append(_text_block(answer.text, size, [page for search in searches for page in search.pages]))
        for call in answer.calls:
            cut = answer.finish == "malformed call" and call is answer.calls[-1]
            blocks.append(_called(call, size, cut=cut))
        return blocks


def _thoughts(text: str, size: int, *, signed: bool) -> _Block:
    signature = conversation.seal(text) if signed else ""
    return _Block(
        complete=types.ThinkingBlock(type="thinking", thinking=text, signature=signature),
        start=types.ThinkingBlock(type="thinking", thinking="", signature=""),
        deltas=[
            *(types.ThinkingDelta(type="thinking_delta", thinking=piece) for piece in script.cut(text, size)),
            types.SignatureDelta(type="signature_delta", signature=signature),
        ],
    )


def _text_block(text: str, size: int, cited: Sequence[script.Page]) -> _Block:
    citations: list[types.TextCitation] = [
        types.CitationsWebSearchResultLocation(
            type="web_search_result_location",
            cited_text=text[:150],
            encrypted_index=conversation.seal(page.url),
            title=page.title,
            url=page.url,
        )
        for page in cited
    ]
    complete_block = types.TextBlock(type="text", text=text, citations=citations) if citations else _text(text)
    return _Block(
        complete=complete_block,
        start=_text("") if not cited else types.TextBlock(type="text", text="", citations=[]),
        deltas=[
            *(types.TextDelta(type="text_delta", text=piece) for piece in script.cut(text, size)),
            *(types.CitationsDelta(type="citations_delta", citation=citation) for citation in citations),
        ],
    )


def _search(search: script.Search) -> list[_Block]:
    identity = f"srvtoolu_{secrets.token_hex(12)}"
    asked = {"query": search.query}
    results_block = types.WebSearchToolResultBlock(
        type="web_search_tool_result",
        tool_use_id=identity,
        content=[
            types.WebSearchResultBlock(
                type="web_search_result",
                title=page.title,
                url=page.url,
                encrypted_content=conversation.seal(page.url),
                page_age=None,
            )
            for page in search.pages
        ],
    )
    return [
        _Block(
            complete=types.ServerToolUseBlock(
                type="server_tool_use", id=identity, name="web_search", input=asked, caller=_DIRECT
            ),
            start=types.ServerToolUseBlock(
                type="server_tool_use", id=identity, name="web_search", input={}, caller=_DIRECT
            ),
            deltas=_input(json.dumps(asked), 0),
        ),
        _Block(complete=results_block, start=results_block),
    ]


def _searched(searches: Sequence[script.Search]) -> types.ServerToolUsage:
    return types.ServerToolUsage(web_search_requests=len(searches), web_fetch_requests=0)


def _called(call: script.Call, size: int, *, cut: bool) -> _Block:
    identity = call.id or f"toolu_{secrets.token_hex(12)}"
    arguments = dict(call.args)
    sent_arguments = call.arguments if call.args or call.raw is not None else ""
    return _Block(
        complete=types.ToolUseBlock(type="tool_use", id=identity, name=call.name, input=arguments, caller=_DIRECT),
        start=types.ToolUseBlock(type="tool_use", id=identity, name=call.name, input={}, caller=_DIRECT),
        deltas=_input(sent_arguments[: len(sent_arguments) // 2] if cut else sent_arguments, size),
    )


def _input(text: str, size: int) -> list[types.InputJSONDelta]:
    """In fragments, the first of which is empty: so the real one sends it."""
    fragments = ["", *script.cut(text, size or max(1, len(text) // 2))]
    return [types.InputJSONDelta(type="input_json_delta", partial_json=fragment) for fragment in fragments]


def _text(text: str) -> types.TextBlock:
    return types.TextBlock(type="text", text=text)


def _sent(event: _Event) -> bytes:
    return _named(event.type, event.to_json(indent=None))


def _named(event: str, payload: str) -> bytes:
    return f"event: {event}\ndata: {payload}\n\n".encode()
