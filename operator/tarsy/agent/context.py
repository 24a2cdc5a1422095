"""The part of a conversation that a request can carry, and the lines that replace the rest: a pure function of the log.

The oldest results of tools give way first, each to a line; the alert, answers and their calls never do. The results of
the last answer, which no model has read yet, stay. Only if they alone are too long are the longest of them cut, all to
one length. A result that gave way stays replaced, and some more than necessary give way at once: a provider's cache of
a conversation holds up to the first message that has changed.

Tokens are estimated by characters, corrected by the provider's count of the previous request. The part that it counted
is scaled by that count. Newer messages are scaled upwards only, because the first request is all prose, while later
ones hold logs and JSON, which have more tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tarsy.transcript import excerpts, messages, record, token_estimate

TARGET = 0.8
"""The share of the limit that a request has at most once something gave way."""
LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""The bounds of a provider's count divided by our estimate; a ratio beyond them counts something else."""
LEAST_SHOWN = 400
"""Characters of a result of the last turn that are shown in any case."""
BESIDE = 24
"""Characters that a message has beside what it says: whose it is, and which call's."""
_NAME_MAX = 80
"""Characters of a tool's name that a line tells: a model may call a tool whatever it likes."""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The results that give way; see `entries.ContextCompacted`."""

    results: tuple[str, ...]
    cut: tuple[str, ...]
    shown: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """How large a request is; in characters as they would count if there were three to each of its tokens."""

    lengths: list[int]
    """The characters of each message's text."""
    rates: list[float]
    """The tokens of one such character."""
    total: float
    """The tokens of the whole request."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """A conversation that is about to be sent to a provider."""

    conversation: Sequence[messages.Message]
    """As `messages.conversation` gives it, and what is added for this request."""
    provider: str
    tools: Sequence[messages.ToolSpec] = ()
    """Declared in the request, beside the conversation."""
    repeatable: Collection[str] = ()
    """The tools that may be called again for what is not shown any more."""
    compacted: Mapping[str, int]
    """See `record.Execution.compacted`."""
    reported: record.Reported | None

    def visible(self) -> tuple[messages.Message, ...]:
        """The conversation as it is sent: each message that there is, and lines for the results that gave way."""
        return tuple(self._visible_message(message, self.compacted) for message in self.conversation)

    @property
    def tokens(self) -> int:
        """The estimated tokens of the request."""
        return math.ceil(self._measured().total / token_estimate.CHARACTERS_A_TOKEN)

    def compaction(self, limit: int | None, *, refused: bool = False) -> Compaction | None:
        """Return the results that give way for a request of at most `limit` tokens (None: no limit), or None.

        `refused`: the provider refused the request as too large, so the limit is half of it. None: nothing has to give
        way, or nothing is left that could.
        """
        if limit is None and not refused:
            return None
        measured = self._measured()
        if refused or limit is None:
            most = goal = measured.total / 2
        else:
            most, goal = limit * token_estimate.CHARACTERS_A_TOKEN, TARGET * limit * token_estimate.CHARACTERS_A_TOKEN
            if measured.total <= most:
                return None
        last = max((index for index, message in enumerate(self.conversation) if message.calls), default=0)
        results, left = self._oldest(last, measured, goal)
        cut: list[str] = []
        longest = 0
        if left > most and not (refused and results):  # which may have been enough
            cut, longest = self._longest(last, measured, goal - left)
        if not results and not cut:
            return None
        tokens = math.ceil(measured.total / token_estimate.CHARACTERS_A_TOKEN)
        return Compaction(results=tuple(results), cut=tuple(cut), shown=longest, tokens=tokens)

    def _oldest(self, last: int, measured: _Measured, goal: float) -> tuple[list[str], float]:
        """The oldest results before message `last`, as many as it takes for the goal, and what is left then."""
        results, left = [], measured.total
        for index, message in enumerate(self.conversation[:last]):
            if left <= goal:
                break
            saved = measured.lengths[index] - len(self._line(message)) if message.role == "tool" else 0
            if saved > 0:
                results.append(message.call_id)
                left -= saved * measured.rates[index]
        return results, left

    def _longest(self, last: int, measured: _Measured, more: float) -> tuple[list[str], int]:
        """The longest results behind message `last`, and the length that is left of each, to have so much `more` room.

        Room is less than nothing where they are too long.
        """
        fresh = [index for index in range(last, len(self.conversation)) if self.conversation[index].role == "tool"]
        if not fresh:
            return [], 0
        lengths = [measured.lengths[index] for index in fresh]
        room = sum(lengths) + more / measured.rates[fresh[0]]  # they came together, so they have one rate
        longest = max(LEAST_SHOWN, _level(lengths, room) - excerpts.NOTE_MAX)
        cut = [
            self.conversation[index].call_id for index in fresh if measured.lengths[index] > longest + excerpts.NOTE_MAX
        ]
        return cut, longest if cut else 0

    def _measured(self) -> _Measured:
        sent_tokens = self.visible()
        sizes = [BESIDE + token_estimate.message_characters(message, self.provider) for message in sent_tokens]
        tools = sum(map(token_estimate.tool_characters, self.tools))
        measured_count, ratio = self._ratio(sizes, tools)
        rates = [ratio if index < measured_count else max(1.0, ratio) for index in range(len(sizes))]
        total = tools * ratio + sum(part * rate for part, rate in zip(sizes, rates, strict=True))
        return _Measured(lengths=[len(message.text) for message in sent_tokens], rates=rates, total=total)

    def _ratio(self, sizes: Sequence[int], tools: int) -> tuple[int, float]:
        """How many of the messages the provider has counted, and how its count compares with our estimate of them."""
        then = self.reported
        if then is None:
            return 0, 1.0
        if then.compacted is self.compacted and then.provider == self.provider:
            counted = sum(sizes[: then.messages])
        else:
            before = (self._visible_message(message, then.compacted) for message in self.conversation[: then.messages])
            counted = sum(BESIDE + token_estimate.message_characters(message, then.provider) for message in before)
        ratio = then.tokens * token_estimate.CHARACTERS_A_TOKEN / max(1, counted + tools)
        return then.messages, min(max(ratio, LEAST_RATIO), MOST_RATIO)

    def _visible_message(self, message: messages.Message, compacted: Mapping[str, int]) -> messages.Message:
        characters = compacted.get(message.call_id) if message.role == "tool" else None
        if characters is None:
            return message
        return replace(message, text=self._cut(message, characters) if characters else self._line(message))

    def _line(self, message: messages.Message) -> str:
        """Return the line that replaces a result."""
        name = excerpts.one_line(message.tool_name, _NAME_MAX)
        what = f"an error of {name}" if message.failed else name
        again = "; call the tool again if they are needed" if message.tool_name in self.repeatable else ""
        return f"[compacted to save space: {len(message.text):,} characters of {what}{again}]"

    def _cut(self, message: messages.Message, characters: int) -> str:
        advice = excerpts.ASK_FOR_LESS if message.tool_name in self.repeatable else ""
        return excerpts.middle_cut(message.text, characters, label="cut to save space", advice=advice)


def build(
    execution: record.Execution, conversation: Sequence[messages.Message], tools: Sequence[messages.ToolSpec]
) -> Context:
    """The conversation of `execution` as its provider is about to be sent it, with these tools declared."""
    return Context(
        conversation=conversation,
        provider=execution.source.provider,
        tools=tools,
        repeatable={spec.name for spec in execution.started.tools if spec.idempotent},
        compacted=execution.compacted,
        reported=execution.reported,
    )


def _level(lengths: Collection[int], room: float) -> int:
    """The length to which the longest are to be cut, so that all of them together have no more than `room`."""
    left = room
    ascending = sorted(lengths)
    for index, length in enumerate(ascending):
        share = left / (len(ascending) - index)
        if length > share:
            return max(0, int(share))
        left -= length
    return ascending[-1] if ascending else 0
