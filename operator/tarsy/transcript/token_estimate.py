"""An estimate of the tokens of a request: only its provider can count them, after it was sent."""

from __future__ import annotations

import json
from typing import Any

from tarsy.transcript import messages, ports

CHARACTERS_A_TOKEN = 3
"""Characters to a token. Prose has more; the logs and JSON in requests have as few."""
_SCALAR = 4
"""The length of a JSON number or constant, in characters."""


def tokens(request: ports.Request) -> int:
    """Return the tokens of the conversation, its calls and the tools, without providers' state."""
    characters = sum(map(message_characters, request.messages)) + sum(map(tool_characters, request.tools))
    return -(-characters // CHARACTERS_A_TOKEN)


FRAME = 64
"""The bytes that stand for a provider's framing of a message or a tool."""


def utf8_bytes(request: ports.Request) -> int:
    """Return a bound of the request's tokens: its UTF-8 bytes, with providers' state, JSON and frames."""
    total = 0
    for message in request.messages:
        called = sum(len(f"{call.id}{call.name}{call.arguments}".encode()) for call in message.calls)
        state = message.provider_state
        own = 0 if state is None else len(json.dumps(state.data, ensure_ascii=False).encode())
        total += FRAME * (1 + len(message.calls)) + len(message.text.encode()) + called + own
    for tool in request.tools:
        parameters = json.dumps(tool.parameters, ensure_ascii=False)
        total += FRAME + len(f"{tool.name}{tool.description}{parameters}".encode())
    return total


def message_characters(message: messages.Message, provider: str = "") -> int:
    """Return the characters of a message in a request, including its state if `provider` gave that."""
    size = len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)
    state = message.provider_state
    if state is not None and state.provider == provider:
        return max(size, _json_characters(state.data))  # it holds text and calls as well
    return size


def tool_characters(tool: messages.ToolSpec) -> int:
    """Return the characters of a tool in a request."""
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))


def _json_characters(value: Any) -> int:
    """Return the characters of JSON without its punctuation."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _json_characters(member) for key, member in value.items())
    if isinstance(value, list):
        return sum(map(_json_characters, value))
    return _SCALAR
