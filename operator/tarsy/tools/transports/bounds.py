"""How much of an MCP server's is taken: of its messages, before they are parsed, and of the tools that it offers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pydantic
from mcp import types
from mcp.shared import message

from tarsy.tools import pins
from tarsy.transcript import messages

MESSAGE_MAX = 8 * 1024 * 1024
"""Bytes of one message from a server."""
TOO_LARGE = f"it sent more than {MESSAGE_MAX // 2**20} MiB in one message"
VALUES_MAX = 250_000
"""JSON values in one message: 8 MiB of `[]` would take 900 MB of memory and the loop for seconds."""
TOO_MANY = f"it sent more than {VALUES_MAX} values in one message"

ITEMS_MAX = 1000
"""Parts of one result: the SDK tries five models on each, and tells what is wrong with all."""
TOO_MANY_ITEMS = f"it sent a result of more than {ITEMS_MAX} parts"

TOOLS_MAX = 1000
"""Tools of one server; a model could not choose among more."""
DESCRIPTION_MAX = 8 * 1024
"""Characters of a tool's description."""
SCHEMA_MAX = 64 * 1024
"""Characters of a tool's schema."""

_USABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
"""The form of a function's name for Gemini; a request with any other is refused whole."""


_PLACE_MAX = 4


def checked(received: message.SessionMessage | Exception) -> message.SessionMessage | Exception:
    """The message; where it is a result of too many parts, an error that says so; of too many tools the first."""
    if not isinstance(received, message.SessionMessage) or not isinstance(received.message, types.JSONRPCResponse):
        return received
    answer = received.message
    if isinstance(tools := answer.result.get("tools"), list):
        answer.result["tools"] = tools[: TOOLS_MAX + 1]  # one more than are taken says that there are more
    if any(isinstance(part, list) and len(part) > max(ITEMS_MAX, TOOLS_MAX + 1) for part in answer.result.values()):
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_MANY_ITEMS)
        return message.SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=answer.id, error=error))
    return received


def error_text(error: BaseException) -> str:
    """Return the message of `error`, without the groups around it; of validation errors their count and the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError) and not str(error):
        return "it does not answer"
    if not isinstance(error, pydantic.ValidationError):
        return str(error) or type(error).__name__
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(map(str, first["loc"][:_PLACE_MAX]))
    return f"{error.error_count()} problems, the first: {location}: {first['msg']}"


def on_one_line(text: str) -> str:
    """`text` without what does not print: it goes into logs, statuses and events."""
    return " ".join("".join(char if char.isprintable() else " " for char in messages.storable(text)).split())


@dataclass
class Offer:
    """The tools of one server, as far as they can be used."""

    server: str
    tools: list[types.Tool] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """The names of its other tools, as text for a log."""
    full: bool = False
    """Whether there was a tool that found no place."""
    hashes: dict[str, str] = field(default_factory=dict)
    """The hashes of the server's descriptions of its tools, by name."""
    stopped: Mapping[str, pins.Stopped] = field(default_factory=dict)
    """Its tools that are not what was pinned, by their names."""

    @property
    def problem(self) -> str:
        """The problem with the tools, or ""; only the text behind a colon is the server's."""
        of_names = f"has {len(self.left_out)} tools that are left out, because of their names" if self.left_out else ""
        if len(self.left_out) == 1:
            of_names = "has 1 tool that is left out, because of its name"
        of_number = f"offers too many tools, those after the first {TOOLS_MAX} are left out" if self.full else ""
        return "; ".join(filter(None, (of_names, of_number, pins.stopped_text(self.stopped))))

    def stop(self, stopped: Mapping[str, pins.Stopped]) -> None:
        """Offer these tools no longer."""
        self.stopped = stopped
        self.tools = [tool for tool in self.tools if tool.name not in stopped]

    def add(self, tools: Iterable[types.Tool]) -> None:
        """Take what is usable of `tools`, each cut to what a tool may be."""
        names = {tool.name for tool in self.tools}
        for tool in tools:
            if len(self.tools) + len(self.left_out) == TOOLS_MAX:
                self.full = True
                return
            usable = tool.name and _USABLE_NAME.fullmatch(f"{self.server}__{tool.name}")
            if usable and tool.name not in names:
                self.tools.append(_cut(tool))
                self.hashes[tool.name] = pins.digest(tool)
                names.add(tool.name)
            else:
                self.left_out.append(ascii(tool.name[:64]))


def _cut(tool: types.Tool) -> types.Tool:
    """Return the fields of a tool that are read."""
    text = tool.description or tool.title or ""
    if len(text) > DESCRIPTION_MAX:
        text = f"{text[:DESCRIPTION_MAX]} [cut]"
    # A schema that cannot be stored, is too long or nests without end says nothing that a model could use.
    plain = messages.is_plain_json(tool.input_schema) and len(json.dumps(tool.input_schema)) <= SCHEMA_MAX
    schema = tool.input_schema if plain else {"type": "object"}
    return types.Tool(name=tool.name, description=text, input_schema=schema, annotations=tool.annotations)
