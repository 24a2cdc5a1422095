"""One answer of a model, collected from the events of its stream, and the check whether it repeats itself.

A model that has begun to repeat one passage does not stop by itself, and its output costs until a limit ends it.
Passages are compared character by character, so log lines that differ in a timestamp or a number do not count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from tarsy.llm import provider
from tarsy.masking import known_secrets
from tarsy.transcript import messages

TOKENS_MAX = 10**9
"""The highest plausible token count of one request; a larger one is a server's mistake."""
REPEATED_TAIL = 6_000
"""Characters at the end of a stream that count as repetition if they consist of one passage."""
PASSAGE_MAX = 500
"""Characters of the longest passage. There is no shortest: a shorter passage, repeated twice, is a longer one."""
CHECK_EVERY = 250
"""Characters between two checks of a stream, which keeps the cost of a check low."""


class RepetitionWatch:
    """Checks the end of one stream at each 250th character, independently of its pieces."""

    def __init__(self) -> None:
        self._tail = ""
        self._pieces: list[str] = []
        self._size = 0
        """Characters of all pieces; the tail is checked already."""

    def add(self, piece: str) -> int:
        """Add the next piece of the stream; return the length of the repeated passage, or 0 without repetition."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < CHECK_EVERY:
            return 0
        text = self._tail + "".join(self._pieces)
        ends = range(len(self._tail) + CHECK_EVERY, len(text) + 1, CHECK_EVERY)
        tails = (text[end - REPEATED_TAIL : end] for end in ends if end >= REPEATED_TAIL)
        repeated = next((length for tail in tails if (length := passage_length(tail))), 0)
        checked = ends[-1]
        self._tail = text[max(0, checked - REPEATED_TAIL) : checked]
        self._pieces = [text[checked:]]
        self._size = len(text) - checked
        return repeated


def passage_length(tail: str) -> int:
    """Return the length of the shortest passage whose repeats are all of `tail`; else 0. The last may be cut.

    One comparison is enough. If `tail`, of twice the longest passage at least, repeats any passage, then the shortest
    one that its beginning can repeat divides that passage (Fine and Wilf), so all of `tail` repeats it as well.
    """
    length = tail.find(tail[:PASSAGE_MAX], 1, 2 * PASSAGE_MAX)
    return length if length > 0 and tail.startswith(tail[length:]) else 0


@dataclass
class Answer:
    """The parts of an answer that have arrived."""

    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[messages.ToolCall] = field(default_factory=list)
    native: list[messages.NativeResult] = field(default_factory=list)
    response: provider.Response = field(default_factory=provider.Response)
    usage: messages.Usage = field(default_factory=messages.Usage)
    finish: provider.Finish | None = None
    size: int = 0
    """Characters of all parts."""
    _text_watch: RepetitionWatch = field(default_factory=RepetitionWatch)
    _thinking_watch: RepetitionWatch = field(default_factory=RepetitionWatch)

    def add(self, event: provider.StreamEvent) -> None:
        """Add the next event of the stream; raise RejectedError once the model repeats itself."""
        match event:
            case provider.Text(text):
                self.text.append(text)
                self.size += len(text)
                _refuse_repetition(self._text_watch.add(text), part="answer")
            case provider.Thinking(text):
                self.thinking.append(text)
                self.size += len(text)
                _refuse_repetition(self._thinking_watch.add(text), part="thoughts")
            case provider.Call(name, arguments):
                name, arguments = messages.storable(name), messages.storable(arguments)
                self.calls.append(messages.ToolCall(id="", name=name, arguments=arguments))
                self.size += len(name) + len(arguments)
            case provider.CodeExecution() | provider.Grounding():
                result = native_result(event)
                self.native.append(result)
                self.size += len(result.content) + len(json.dumps(result.details))
            case provider.Response(model, response_id):
                self.response = provider.Response(model or self.response.model, response_id or self.response.id)
            case provider.Usage(usage):
                self.usage = _plausible(usage)
            case provider.Finish():
                self.finish = event

    def message(self, provider_name: str, *, secrets: known_secrets.KnownSecrets) -> messages.Message:
        """Return the answer as a message of the transcript, without known secrets, which a gateway may repeat."""
        state, mask = self.finish and self.finish.state, secrets.mask
        return messages.Message(
            role="assistant",
            text=mask(messages.storable("".join(self.text))),
            thinking=mask(messages.storable("".join(self.thinking))),
            calls=tuple(replace(call, name=mask(call.name), arguments=mask(call.arguments)) for call in self.calls),
            native=tuple(
                replace(result, content=mask(result.content), details=secrets.mask_json(result.details))
                for result in self.native
            ),
            provider_state=messages.ProviderState(provider=provider_name, data=secrets.mask_json(state))
            if state
            else None,
        )


def native_result(event: provider.CodeExecution | provider.Grounding) -> messages.NativeResult:
    """Return the result of a provider's own tool, as it is stored with the answer."""
    if isinstance(event, provider.CodeExecution):
        details = {"code": event.code, "language": event.language, "outcome": event.outcome}
        return messages.NativeResult(
            tool="code_execution", content=messages.storable(event.output), details=messages.storable_json(details)
        )
    lines, sources = [], []
    for source in event.sources:
        words = (*source.title.split(), source.url, source.problem and f"({source.problem})")
        lines.append(" ".join(filter(None, words)))
        problem = {"problem": source.problem} if source.problem else {}
        sources.append({"title": source.title, "url": source.url} | problem)
    return messages.NativeResult(
        tool=event.tool,
        content=messages.storable("\n".join(lines)),
        details=messages.storable_json({"queries": list(event.queries), "sources": sources}),
    )


def _refuse_repetition(passage: int, *, part: str) -> None:
    """Raise RejectedError unless the length of the repeated `passage` is 0. The passage is not quoted."""
    if passage:
        problem = f"the last {REPEATED_TAIL} characters of its {part} are one passage of {passage} over and over"
        raise provider.RejectedError(f"the model repeated itself: {problem}")


def _plausible(usage: messages.Usage) -> messages.Usage:
    """Return the reported token counts, limited to 0 to TOKENS_MAX."""
    input_tokens, output_tokens, thinking_tokens, total_tokens = (
        min(max(count, 0), TOKENS_MAX)
        for count in (usage.input_tokens, usage.output_tokens, usage.thinking_tokens, usage.total_tokens)
    )
    return messages.Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        thinking_tokens=thinking_tokens,
        total_tokens=total_tokens,
    )
