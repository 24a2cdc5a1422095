"""From what an MCP server answers to the text that the model reads and the transcript keeps."""

from __future__ import annotations

import json

from mcp import types

from tarsy.transcript import messages, ports


def output(result: types.CallToolResult) -> ports.ToolOutput:
    """The result as text, whole; content that is no text is told."""
    texts = [_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ports.ToolOutput(text="\n".join(texts), failed=bool(result.is_error))


def bounded(text: str, *, limit: int, of: int | None = None) -> str:
    """`text`, cut to about `limit` characters where it is longer, with a last line that says so.

    `of` is how long it is in all, where `text` is only its beginning.
    """
    length = len(text) if of is None else of
    if length > limit:
        text = f"{text[:limit]}\n{messages.CUT.format(limit=limit, length=length)}"
    return messages.storable(text)


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return f"[a link to {block.uri}]"
        case _:
            return f"[content of type {block.type} is not shown]"
