"""How many tokens a request has, by estimate: only its provider can count them, and tells how many there were."""

from __future__ import annotations

import json
from typing import Any

from tarsy.transcript import messages, ports

CHARACTERS_A_TOKEN = 3
"""Characters of a token. Prose has more; logs and JSON, of which requests are full, have as few."""
_SCALAR = 4
"""Characters of a number, or of another word of JSON's."""


def tokens(request: ports.Request) -> int:
    """The tokens of all that is sent: the conversation, its calls and the tools; but for providers' state."""
    characters = sum(map(message_characters, request.messages)) + sum(map(tool_characters, request.tools))
    return -(-characters // CHARACTERS_A_TOKEN)


def message_characters(message: messages.Message, provider: str = "") -> int:
    """The characters of a message that are sent, with what `provider` wants back; what another one does is not sent."""
    size = len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)
    state = message.provider_state
    if state is not None and state.provider == provider:
        return max(size, _of_json(state.data))  # it holds text and calls as well
    return size


def tool_characters(tool: messages.ToolSpec) -> int:
    """The characters of a tool that are sent."""
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))


def _of_json(value: Any) -> int:
    """The characters of JSON, without its punctuation; no deeper than what is stored may be."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _of_json(member) for key, member in value.items())
    if isinstance(value, list):
        return sum(map(_of_json, value))
    return _SCALAR
