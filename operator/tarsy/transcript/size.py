"""How many tokens a request has, by estimate: only its provider can count them, and tells how many there were."""

from __future__ import annotations

import json

from tarsy.transcript import messages, ports

CHARACTERS = 3
"""Of a token. Prose has more; logs and JSON, of which requests are full, have as few."""


def tokens(request: ports.Request) -> int:
    """The tokens of all that is sent: the conversation, its calls and the tools; but for providers' state."""
    characters = sum(map(of_message, request.messages)) + sum(map(of_tool, request.tools))
    return -(-characters // CHARACTERS)


def of_message(message: messages.Message) -> int:
    """The characters of a message that are sent."""
    return len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.calls)


def of_tool(tool: messages.ToolSpec) -> int:
    """The characters of a tool that are sent."""
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters))
