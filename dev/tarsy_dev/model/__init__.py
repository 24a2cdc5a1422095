"""A scripted model over loopback HTTP, in the provider's own protocol, with the log of what it was asked.

    async with model.serve(model.answers("root cause: a bad image")) as server:
        ...  # point the SDK's base URL at server.url
        assert [request.iteration for request in server.of(stage="analysis")] == [0]

As a process, with the script of the demo: `python -m tarsy_dev.model --port 0 --log FILE`.
"""

from __future__ import annotations

from tarsy_dev.model.investigator import investigate
from tarsy_dev.model.script import (
    LOOK,
    Answer,
    Call,
    CodeRun,
    Cut,
    Flood,
    Garbage,
    Hang,
    HttpError,
    Message,
    Misbehaviour,
    Page,
    Reply,
    Result,
    Script,
    ScriptError,
    Search,
    StreamError,
    Tool,
    Turn,
    Usage,
    agents,
    answers,
    first,
    keyed,
    limited,
    usage_of,
)
from tarsy_dev.model.server import Request, Server, digest, serve

__all__ = [
    "serve",
    "Server",
    "Request",
    "digest",
    "investigate",
    "LOOK",
    "agents",
    "answers",
    "first",
    "keyed",
    "limited",
    "usage_of",
    "Script",
    "ScriptError",
    "Turn",
    "Message",
    "Tool",
    "Result",
    "Reply",
    "Answer",
    "Call",
    "CodeRun",
    "Search",
    "Page",
    "Usage",
    "Misbehaviour",
    "HttpError",
    "Hang",
    "Cut",
    "StreamError",
    "Flood",
    "Garbage",
]
