"""Answers of the scripted model, in words that belong to no provider's protocol.

A script is a function from a `Turn` (the request) to a `Reply` (the response): an `Answer`, or one of the ways in which
a model misbehaves. It may be a coroutine function, so that a test can hold an answer back until it has done something.
Scripts keep no state: what they need to know of the past is in the turn, so that an answer depends on the conversation
alone, and a second worker that takes an investigation over gets what the first would have got.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tarsy_dev import errors, keys

LOOK = "No tool has shown you anything yet."
"""How the one prompt begins that asks a model to look before it concludes."""

CHARACTERS_PER_TOKEN = 4  # by which usage is derived; what matters is only that it is always the same


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call. `id` is the wire's: "" asks for a fresh one, None for a call without."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = ""
    raw: str | None = None
    """The text of the arguments, where the wire has one, instead of the JSON of `args`."""

    @property
    def arguments(self) -> str:
        """The arguments' text, where the wire has one."""
        return json.dumps(dict(self.args)) if self.raw is None else self.raw

    @property
    def short(self) -> str:
        """The tool's name without its server."""
        return _short(self.name)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a tool call, as the model was sent it."""

    name: str
    text: str
    failed: bool = False
    id: str | None = None
    reference: str = ""
    """The name by which the model is to refer to it, such as `[tool 2.1]`; "" where it got none."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of the conversation; neighbours of the same role are one message."""

    role: Literal["user", "model"]
    text: str = ""
    thoughts: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool that was declared; `schema` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """Its name without its server."""
        return _short(self.name)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request, parsed."""

    model: str
    system: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    thinking: bool = False
    """Summaries of the thoughts were asked for."""

    native_tools: tuple[str, ...] = ()
    """The provider's own tools that were allowed, by its names."""

    streaming: bool = True
    asked: frozenset[str] = frozenset()
    """Other parts of the answer that were asked for, in the wire's words."""

    api_key: str = field(default="", repr=False)
    key: keys.Key = field(default_factory=keys.Key)
    kind: keys.Kind = "agent"
    """The purpose: the work of an agent, the join of several agents' work, the summary of it all, a question, or a
    summary of the result of a tool.
    """

    iteration: int = 0
    """How many turns of the model the conversation already has."""

    earlier: int = 0
    """How many requests of this key came before, whichever their iteration."""

    repeats: int = 0
    """How many requests of this key and this iteration came before."""

    @property
    def is_look(self) -> bool:
        """Whether a model that concluded without having looked at anything is asked to look."""
        return bool(self.messages) and self.messages[-1].role == "user" and self.messages[-1].text.startswith(LOOK)

    @property
    def concluded(self) -> str:
        """Return the last text of the model, "" if it has not said anything."""
        return next((message.text for message in reversed(self.messages) if message.role == "model"), "")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts of one answer; `output` is without the thinking."""

    input: int
    output: int
    thinking: int = 0


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the web."""

    title: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search on the web by the provider's own tool, and what it found."""

    query: str
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CodeRun:
    """Code that the provider runs for the model."""

    code: str
    output: str = ""
    failed: bool = False


Finish = Literal["stop", "length", "safety", "malformed call", "paused"]
"""How an answer ends. Paused: the provider's own tools were at work for so long that the client is to ask on."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of a model. `Answer()` is the empty answer: no parts at all."""

    text: str = ""
    thoughts: str = ""
    redacted: bool = False
    """Thoughts that are shown to no client come first, where a protocol has such."""

    searches: tuple[Search, ...] = ()
    """Left out where the request does not allow the tool."""

    code: tuple[CodeRun, ...] = ()
    """The same."""

    read: Mapping[str, bool] = field(default_factory=dict)
    """URLs that the model reads by the provider's own tool, and whether each could be; the same."""

    calls: tuple[Call, ...] = ()

    signed: bool = True
    """Carry a fresh thought signature: on the first call, or on the text if there is none."""

    usage: Usage | None = None
    """None: `usage_of`."""

    finish: Finish = "stop"
    chunk: int = 0
    """Characters of text or thought in one streamed piece; 0 is all in one."""

    delay: float = 0.0
    """Seconds until the answer begins."""

    pause: float = 0.0
    """Seconds between two pieces of it."""


@dataclass(frozen=True, kw_only=True)
class HttpError:
    """An error in the provider's shape instead of an answer; an empty message is the provider's usual one."""

    status: int
    message: str = ""
    retry_after: float | None = None
    """Seconds, told both by the header and in the body."""

    code: str = ""
    """The provider's name for it; "" is the one that goes with the status."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Silence until the client leaves: before the headers, or after the first pieces of an answer."""

    after: int | None = None
    """How many pieces are sent first; None: not even the headers."""

    answer: Answer = Answer(text="This answer will not be finished.", chunk=4)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The connection closes before the headers (`after=None`), or after the first pieces of an answer."""

    after: int | None = 1
    answer: Answer = Answer(text="This answer will not be finished.", chunk=4)


@dataclass(frozen=True, kw_only=True)
class StreamError:
    """An error object within the stream, after the first pieces of an answer; not streamed, it is an `HttpError`."""

    error: HttpError = HttpError(status=503)
    after: int = 1
    answer: Answer = Answer(text="This answer will not be finished.", chunk=4)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Text without end, or `megabytes` of it."""

    megabytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A 200 whose body is this text, in an event of the stream if it is one."""

    text: str = '{"candidates": [{"content": {"parts": [{"te'


Misbehaviour = HttpError | Hang | Cut | StreamError | Flood | Garbage
Reply = Answer | Misbehaviour
Script = Callable[[Turn], Reply | Awaitable[Reply]]


class ScriptError(errors.Error):
    """A script was asked for something that it does not hold."""


def answers(
    *replies: Reply | str,
    synthesis: Reply | str = "synthesis",
    summary: Reply | str = "summary",
    tool_summary: Reply | str = "tool summary",
) -> Script:
    """Reply n for iteration n; a string is an answer of that text. ScriptError for an iteration past the last.

    What joins agents' work and what sums it up is answered as `agents` says. Who is asked to look before it concludes,
    and has no reply for that, says the same again.
    """

    def script(model_call: Turn) -> Reply:
        if model_call.iteration < len(replies):
            return _reply(replies[model_call.iteration])
        if model_call.is_look and model_call.iteration == len(replies):
            return _reply(model_call.concluded)
        message = f"{model_call.key} asked for iteration {model_call.iteration} of a script of {len(replies)} replies"
        raise ScriptError(message)

    return agents(script, synthesis=synthesis, summary=summary, tool_summary=tool_summary)


def agents(
    script: Script,
    *,
    synthesis: Reply | str = "synthesis",
    summary: Reply | str = "summary",
    tool_summary: Reply | str = "tool summary",
) -> Script:
    """`script` for agents and for questions; what joins and sums up is answered with these, whatever it is of."""

    def answered(model_call: Turn) -> Reply | Awaitable[Reply]:
        match model_call.kind:
            case "synthesis":
                return _reply(synthesis)
            case "summary":
                return _reply(summary)
            case "tool_summary":
                return _reply(tool_summary)
            case _:
                return script(model_call)

    return answered


def _reply(reply: Reply | str) -> Reply:
    return Answer(text=reply) if isinstance(reply, str) else reply


def first(
    count: int, reply: Reply, *, then: Script, iteration: int | None = None, kind: keys.Kind | None = None
) -> Script:
    """Give `reply` to the first `count` requests of each key, and after that what `then` says.

    With `iteration`, only requests of that iteration count and are hit; with `kind`, only those of that kind.
    """

    def script(model_call: Turn) -> Reply | Awaitable[Reply]:
        counted = model_call.earlier if iteration is None else model_call.repeats
        hit = counted < count and iteration in (None, model_call.iteration) and kind in (None, model_call.kind)
        return reply if hit else then(model_call)

    return script


GEMINIS_LIMIT = "The input token count ({sent}) exceeds the maximum number of tokens allowed ({limit})."


def limited(script: Script, tokens: int, *, message: str = GEMINIS_LIMIT) -> Script:
    """Refuse turns of more than `tokens`, as `usage_of` counts them, with 400 and `message`; else what `script` says.

    `message` is the provider's own, with blanks for what was `{sent}` and for the `{limit}`.
    """

    def answered(model_call: Turn) -> Reply | Awaitable[Reply]:
        sent = usage_of(model_call, Answer()).input
        if sent > tokens:
            return HttpError(status=400, message=message.format(sent=sent, limit=tokens))
        return script(model_call)

    return answered


def keyed(model_call: Turn, calls: Sequence[Call]) -> tuple[Call, ...]:
    """Fill the `key` argument of each call, so that the tool server's log tells the calls apart (`keys.CallKey`)."""
    return tuple(
        dataclasses.replace(
            call, args={**call.args, "key": str(keys.CallKey(*model_call.key, model_call.iteration, index))}
        )
        for index, call in enumerate(calls)
    )


def cut(text: str, size: int) -> list[str]:
    """Pieces of so many characters; with 0 all of it, none of an empty text."""
    step = size or max(len(text), 1)
    return [text[start : start + step] for start in range(0, len(text), step)]


def result(name: str, identity: str, text: str, *, failed: bool = False) -> Result:
    """A result whose reference, and whether it failed, stand at the head of its text: many protocols have no field."""
    match = _REFERRED.match(text)
    if match is None:
        return Result(name=name, id=identity, text=text, failed=failed)
    return Result(
        name=name, id=identity, text=match["text"], failed=failed or bool(match["failed"]), reference=match["reference"]
    )


_REFERRED = re.compile(r"\A(?P<reference>\[tool [\d.]+\])(?P<failed> failed)?\n(?P<text>.*)\Z", re.DOTALL)


def usage_of(model_call: Turn, answer: Answer) -> Usage:
    """The usage of an answer, derived from the two alone."""
    asked = [model_call.system, *map(repr, model_call.tools)]
    for message in model_call.messages:
        asked += [message.text, message.thoughts, *map(_call_text, message.calls), *(r.text for r in message.results)]
    return Usage(
        input=_tokens("".join(asked)),
        output=_tokens(answer.text + "".join(map(_call_text, answer.calls))),
        thinking=_tokens(answer.thoughts),
    )


def _call_text(call: Call) -> str:
    return f"{call.name}{dict(call.args)}"  # without the id, which may be a fresh one


def _tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _short(name: str) -> str:
    return re.split(r"__|\.", name)[-1]
