"""The two dialects of models: tools in the provider's protocol (native), or tools in text (ReAct).

Both store the same: answers, the calls in them, and results. So loop, record and takeover know no dialect. A dialect
renders a conversation for a request, and reads an answer.

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
    """How requests to a model are rendered, and its answers read."""

    def describe_tools(self, tools: Sequence[messages.ToolSpec]) -> str:
        """Return the description of the tools for the prompt; "" if requests declare them."""
        ...

    def declared_tools(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:
        """Return the tools that a request declares."""
        ...

    def render(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """Return the conversation as a request carries it."""
        ...

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """Return an answer as it is stored, its calls without ids; a Failure if it is unusable.

        `final`: the model was asked for a conclusion, and may call no tools.
        """
        ...

    def problem(self, answer: messages.Message) -> str:
        """Return why a stored answer is neither a call nor a conclusion; "" if it is one of them."""
        ...


class Native:
    """The dialect with tools in the provider's protocol."""

    def describe_tools(self, tools: Sequence[messages.ToolSpec]) -> str:  # noqa: ARG002 - requests declare them
        """Return nothing."""
        return ""

    def declared_tools(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:
        """Return all tools."""
        return tuple(tools)

    def render(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """Return the conversation with consecutive user messages joined."""
        return _joined(conversation)

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """Return the answer as it is; a conclusion without calls."""
        if final and answer.calls:
            # The provider's state goes with the calls: sent back, it would name calls that have no results.
            if not answer.text.strip():
                return _rejected("tool calls instead of a conclusion")
            return replace(answer, calls=(), provider_state=None)
        if not answer.calls and not answer.text.strip():
            return _rejected("an empty answer")
        return answer

    def problem(self, answer: messages.Message) -> str:  # noqa: ARG002 - any text is a conclusion
        """Return "": any text is a conclusion."""
        return ""


class React:
    """The dialect in text: tools in the prompt, actions in answers, results in the next user message."""

    def describe_tools(self, tools: Sequence[messages.ToolSpec]) -> str:
        """Return a paragraph for each tool: its name, its description, and the schema of its arguments."""
        descriptions = (
            f"{tool.name}: {tool.description}\nArguments (JSON Schema): {json.dumps(tool.parameters)}" for tool in tools
        )
        return escaping.quote_steps("\n\n".join(descriptions))

    def declared_tools(self, tools: Sequence[messages.ToolSpec]) -> tuple[messages.ToolSpec, ...]:  # noqa: ARG002 - the prompt has them
        """Return none: the prompt describes them."""
        return ()

    def render(self, conversation: Sequence[messages.Message]) -> tuple[messages.Message, ...]:
        """Return answers up to their action or conclusion, and results as observations."""
        return _joined(map(_in_text, conversation))

    def read(self, answer: messages.Message, *, final: bool) -> messages.Message | messages.Failure:
        """Return the answer with its first action as its call, if it has one."""
        if answer.calls:  # no request declares tools
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
        """Return why the text is neither an action nor an answer."""
        return "" if answer.calls else react.read(answer.text).problem


NATIVE, REACT = Native(), React()

_MADE_UP = "(an observation that no tool gave)"
"""The text of an answer that begins with a made-up observation: providers refuse an empty text."""


def _joined(conversation: Iterable[messages.Message]) -> tuple[messages.Message, ...]:
    """Return the conversation with consecutive user messages joined, so that user and assistant alternate."""
    joined: list[messages.Message] = []
    for message in conversation:
        if joined and joined[-1].role == message.role == "user":
            joined[-1] = replace(joined[-1], text=f"{joined[-1].text}\n\n{message.text}")
        else:
            joined.append(message)
    return tuple(joined)


def _in_text(message: messages.Message) -> messages.Message:
    """Return a message in the ReAct dialect."""
    match message.role:
        case "assistant":
            used = react.read(message.text).used
            # Text after the action is made up: it is not sent back, nor is the provider's state, which holds it too.
            state = message.provider_state if not message.text[used:].strip() else None
            answer_text = message.text[:used] if message.text[:used].strip() else _MADE_UP
            return messages.Message(role="assistant", text=answer_text, provider_state=state)
        case "tool":
            result = escaping.quote_steps(message.text)
            return messages.Message(role="user", text=f"Observation: [tool {message.call_id}] {result}")
        case _:
            return message


def _rejected(reply: str) -> messages.Failure:
    return messages.Failure(kind="rejected", text=f"the model gave {reply}")
