"""The two dialects in which a model is asked and answers: with tools of the provider's protocol, or in text (ReAct).

What is stored is the same for both: answers, the calls that they ask for, and results. So loop, record and takeover
know no dialect; it says what a request carries of that, and how an answer is read.

Source: Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models", 2022.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tarsy.agent import escaping
from tarsy.transcript import messages, react


class Dialect(Protocol):
    """How a model is asked, and how its answers are read."""

    def described(self, tools: Sequence[messages.ToolSpec]) -> str:
        """Return the prompt's description of the tools, or "" if requests carry it.

        Others wrote it, so markers enclose it.
        """
        ...

    def offered(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:
        """Return the tools as a request offers them."""
        ...

    def sent(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """The conversation as a request carries it."""
        ...

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """An answer as it is kept, its calls without ids; a Failure where it is of no use.

        `final`: it was asked for a conclusion, and may call nothing.
        """
        ...

    def problem(self, answer: messages.Message) -> str:
        """Why an answer that was kept is neither a call nor a conclusion; "" where it is one of them."""
        ...


class Native:
    """Tools are declared in the request, and called by the provider's own means."""

    def described(self, tools: Sequence[messages.ToolSpec]) -> str:  # noqa: ARG002 - requests say it
        """Nothing."""
        return ""

    def offered(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:
        """All of them."""
        return tuple(tools)

    def sent(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """As it is."""
        return _joined(conversation)

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """As it came; a conclusion without the calls beside it."""
        if final and answer.calls:
            # Asked without tools, it called some. Its state goes with them: sent back, it would speak of calls that
            # have no results.
            if not answer.text.strip():
                return _rejected("tool calls instead of a conclusion")
            return replace(answer, calls=(), provider_state=None)
        if not answer.calls and not answer.text.strip():
            return _rejected("an empty answer")
        return answer

    def problem(self, answer: messages.Message) -> str:  # noqa: ARG002 - any text is a conclusion
        """Nothing: any text is a conclusion."""
        return ""


class React:
    """Tools stand in the prompt; thoughts, actions and answers in text, results in what the user says next."""

    def described(self, tools: Sequence[messages.ToolSpec]) -> str:
        """A paragraph for each: its name, what it does, and the schema of its arguments."""
        descriptions = (
            f"{tool.name}: {tool.description}\nArguments (JSON Schema): {json.dumps(tool.parameters)}" for tool in tools
        )
        return escaping.quote_steps("\n\n".join(descriptions))

    def offered(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:  # noqa: ARG002 - the prompt says it
        """None: they stand in the prompt."""
        return ()

    def sent(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """Answers as far as they count, and results as observations."""
        return _joined(map(_in_text, conversation))

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """With the first action as its call, if there is one."""
        if answer.calls:  # declared in no request
            answer = replace(answer, calls=(), provider_state=None)
        if not answer.text.strip():
            return _rejected("an empty answer")
        if len(answer.text) > react.READ_MAX:
            return _rejected(f"an answer of {len(answer.text)} characters, where a step has at most {react.READ_MAX}")
        reading = react.read(answer.text)
        if final and reading.action:
            return _rejected("another action instead of a conclusion")
        if final and not reading.answer and not answer.text[: reading.used].strip():
            return _rejected("observations of its own instead of a conclusion")
        if not reading.action:
            return answer
        call = messages.ToolCall(id="", name=reading.action, arguments=react.arguments(reading.input))
        return replace(answer, calls=(call,))

    def problem(self, answer: messages.Message) -> str:
        """Why it is neither an action nor an answer."""
        return "" if answer.calls else react.read(answer.text).problem


NATIVE, REACT = Native(), React()

_MADE_UP = "(an observation that no tool gave)"
"""The text of an answer of which nothing counts: providers refuse an empty one."""


def _joined(conversation: Iterable[messages.Message]) -> tuple[messages.Message, ...]:
    """Return the conversation with consecutive user messages joined: user and assistant alternate."""
    joined: list[messages.Message] = []
    for message in conversation:
        if joined and joined[-1].role == message.role == "user":
            joined[-1] = replace(joined[-1], text=f"{joined[-1].text}\n\n{message.text}")
        else:
            joined.append(message)
    return tuple(joined)


def _in_text(message: messages.Message) -> messages.Message:
    """A message of a conversation in the ReAct dialect."""
    match message.role:
        case "assistant":
            used = react.read(message.text).used
            # What a model made up behind its action is never sent back, in its own words (its state) neither.
            state = message.provider_state if not message.text[used:].strip() else None
            answer_text = message.text[:used] if message.text[:used].strip() else _MADE_UP
            return messages.Message(role="assistant", text=answer_text, provider_state=state)
        case "tool":
            result = escaping.quote_steps(message.text)
            return messages.Message(role="user", text=f"Observation: [tool {message.call_id}] {result}")
        case _:
            return message


def _rejected(what: str) -> messages.Failure:
    return messages.Failure(kind="rejected", text=f"the model gave {what}")
