"""From what an MCP server answers to the text that the model reads and the transcript keeps."""

from __future__ import annotations

import json
from collections.abc import Callable

from mcp import types

from tarsy.masking import masker
from tarsy.transcript import messages, ports


def output(result: types.CallToolResult) -> ports.ToolOutput:
    """The result as text, whole; content that is no text is told."""
    texts = [_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ports.ToolOutput(text="\n".join(texts), failed=bool(result.is_error))


def masked(tool: types.Tool, mask: Callable[[str], str]) -> types.Tool:
    """A tool as it is shown and offered: a server may put a secret into its description or its schema, too.

    A schema that is none any more once it is masked says only that an object is wanted.
    """
    told = json.dumps([tool.description, tool.input_schema], ensure_ascii=False)
    shown = masker.or_withheld(mask, told)
    if shown == told:
        return tool
    try:
        description, schema = json.loads(shown)
    except (ValueError, RecursionError):
        description, schema = masker.or_withheld(mask, tool.description or ""), None
    if not isinstance(description, str) or not isinstance(schema, dict):
        description, schema = str(description), {"type": "object"}
    return tool.model_copy(update={"description": description, "input_schema": schema})


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
