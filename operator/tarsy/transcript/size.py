"""How large a request is, by estimate: three characters to a token, which is more tokens than most text has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tarsy.transcript import messages, ports

CHARACTERS = 3
"""To a token. English has four or five, logs and JSON about three."""
BESIDE = 24
"""Characters that a message has beside what it says: whose it is, and which call's."""
_SCALAR = 4
"""Characters of a number, or of another word of JSON's."""


def tokens(request: ports.Request) -> int:
    """The tokens of a whole request; what its provider counts may differ by a third."""
    return (sum(map(of_message, request.messages)) + of_tools(request.tools)) // CHARACTERS


def of_message(message: messages.Message, provider: str | None = None) -> int:
    """The characters of a message that goes to `provider`: what another one wants back does not; None is any."""
    said = len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)
    state = message.provider_state
    if state is not None and provider in (None, state.provider):
        said = max(said, _of_json(state.data))  # it holds text and calls as well
    return said + BESIDE


def of_tools(tools: Iterable[messages.ToolSpec]) -> int:
    """The characters of what a request says of its tools."""
    return sum(len(tool.name) + len(tool.description) + _of_json(tool.parameters) for tool in tools)


def _of_json(value: Any) -> int:
    """The characters of JSON, without its punctuation; no deeper than what is stored may be."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _of_json(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(map(_of_json, value))
    return _SCALAR
