"""Compaction: which tool results a request shortens to fit the context of a model. Pure functions of the log.

The oldest results are replaced first, each by a line. The alert, answers and their calls always stay. The results of
the last answer stay too, because no model has read them yet; only if they alone are too long, the longest of them are
cut to one length. A replaced result stays replaced, and more than necessary are replaced at once, because a provider's
cache of a conversation is valid up to the first changed message.

Tokens are estimated from characters and corrected by the provider's count of the previous request. The messages that it
counted are scaled by that count. Newer messages are only scaled upwards: the first request is all prose, and later ones
have logs and JSON, which need more tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tarsy.transcript import excerpts, messages, record, token_estimate

TARGET = 0.8
"""The share of the limit to which a compaction reduces a request."""
LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""The bounds of a provider's count divided by our estimate; a ratio beyond them must count something else."""
LEAST_SHOWN = 400
"""The minimum length of a cut result, in characters."""
BESIDE = 24
"""Characters that each message adds to its text: its role and its call."""
_NAME_MAX = 80
"""Characters of a tool's name in a line: models make up names."""


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The results that are shortened; see `entries.ContextCompacted`."""

    results: tuple[str, ...]
    cut: tuple[str, ...]
    shown: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """The size of a request, in characters at three to a token."""

    lengths: list[int]
    """The length of each message's text."""
    rates: list[float]
    """The correction of each message's estimate."""
    total: float
    """The size of the whole request, corrected."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """A conversation that is about to be sent to a provider."""

    conversation: Sequence[messages.Message]
    """The conversation (`messages.conversation`), and the messages that are added for this request."""
    provider: str
    tools: Sequence[messages.ToolSpec] = ()
    """The tools that the request declares."""
    repeatable: Collection[str] = ()
    """The tools that the model may call again for a result that is replaced."""
    execution: str = ""
    """The id of the execution, if the model has tools that look into its results; else ""."""
    compacted: Mapping[str, int]
    """See `record.Execution.compacted`."""
    reported: record.Reported | None

    def visible(self) -> tuple[messages.Message, ...]:
        """Return the conversation as it is sent, with shortened results."""
        return tuple(self._visible_message(message, self.compacted) for message in self.conversation)

    @property
    def tokens(self) -> int:
        """The estimated tokens of the request."""
        return math.ceil(self._measured().total / token_estimate.CHARACTERS_A_TOKEN)

    def compaction(self, limit: int | None, *, refused: bool = False) -> Compaction | None:
        """Return the results to shorten for a request of at most `limit` tokens; None if there are none, or no need.

        `refused`: the provider refused the request as too large, so half its size is the limit. `limit` None is no
        limit.
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
        if left > most and not (refused and results):  # after a refusal the replaced results may be enough
            cut, longest = self._longest(last, measured, goal - left)
        if not results and not cut:
            return None
        tokens = math.ceil(measured.total / token_estimate.CHARACTERS_A_TOKEN)
        return Compaction(results=tuple(results), cut=tuple(cut), shown=longest, tokens=tokens)

    def _oldest(self, last: int, measured: _Measured, goal: float) -> tuple[list[str], float]:
        """Return the oldest results before message `last` whose lines reach the goal, and the size that is left."""
        results, left = [], measured.total
        for index, message in enumerate(self.conversation[:last]):
            if left <= goal:
                break
            saved = measured.lengths[index] - len(self._line(message)) if message.role == "tool" else 0
            if saved > 0:
                results.append(message.call_id)
                left -= saved * measured.rates[index]
        return results, left

    def _longest(self, last: int, measured: _Measured, spare: float) -> tuple[list[str], int]:
        """Return the longest results after message `last`, and the length to which each is cut.

        `spare` is the size that they may grow by; it is negative if they are too long.
        """
        fresh = [index for index in range(last, len(self.conversation)) if self.conversation[index].role == "tool"]
        if not fresh:
            return [], 0
        lengths = [measured.lengths[index] for index in fresh]
        room = sum(lengths) + spare / measured.rates[fresh[0]]  # they have one rate, because they were added together
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
        """Return how many messages the provider has counted, and its count divided by our estimate of them."""
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
        if not characters:
            return replace(message, text=self._line(message))
        advice = excerpts.ASK_FOR_LESS if message.tool_name in self.repeatable else ""
        advice = excerpts.in_full(f"{self.execution}/{message.call_id}") if self.execution else advice
        cut = excerpts.middle_cut(message.text, characters, label="cut to save space", advice=advice)
        return replace(message, text=cut)

    def _line(self, message: messages.Message) -> str:
        """Return the line that replaces a result."""
        name = excerpts.one_line(message.tool_name, _NAME_MAX)
        what = f"an error of {name}" if message.failed else name
        again = "; call the tool again if they are needed" if message.tool_name in self.repeatable else ""
        if self.execution:
            again = f"; result.search and result.read have them: call {self.execution}/{message.call_id}"
        return f"[compacted to save space: {len(message.text):,} characters of {what}{again}]"


def build(
    execution: record.Execution, conversation: Sequence[messages.Message], tools: Sequence[messages.ToolSpec]
) -> Context:
    """Return the context of the next request of `execution`, with these tools declared."""
    return Context(
        conversation=conversation,
        provider=execution.source.provider,
        tools=tools,
        repeatable={spec.name for spec in execution.started.tools if spec.idempotent},
        execution=execution.started.execution if execution.looks_into_results else "",
        compacted=execution.compacted,
        reported=execution.reported,
    )


def _level(lengths: Collection[int], room: float) -> int:
    """Return the length to which the longest are cut, so that all together have at most `room`."""
    left = room
    ascending = sorted(lengths)
    for index, length in enumerate(ascending):
        share = left / (len(ascending) - index)
        if length > share:
            return max(0, int(share))
        left -= length
    return ascending[-1] if ascending else 0
