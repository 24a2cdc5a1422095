"""The way from an MCP server's answer to the text that the model reads and the transcript keeps.

Text is passed on unchanged; other content is named, with its type and size, and not passed on, because it cannot be
read here. A result is masked before anything of it is cut: a cut could take the head off a secret, and leave its body
unknown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import replace
from typing import Any

from mcp import types

from tarsy.masking import masker
from tarsy.transcript import excerpts, messages, ports

WHOLE_MAX = 8 * 1024 * 1024
"""Characters of a result that are kept."""
MASKED_AT_ONCE = 4 * 1024
"""Characters; masking more goes to a thread. A hostile text of so many takes 50 ms."""
LARGE = 1024 * 1024
"""Characters from which results are masked one after the other: what a text may take is counted in seconds."""
BEGINNING = 64 * 1024
"""Characters that are told of a result for all of which there was no time."""
MASKED_BEYOND = 64 * 1024
"""Characters that are masked behind these, so that no secret stands half before the cut."""
COMPARED_MAX = 256 * 1024
"""Characters of text that are compared with the structured content beside them."""
_NO_TIME = "[withheld: about {:,} more characters: there was no time to look through all of them; ask for less]"
_NO_WORDS = "the tool failed, and did not say why"

_large = futures.ThreadPoolExecutor(1, thread_name_prefix="masking")


def output(result: types.CallToolResult) -> ports.ToolOutput:
    """The result as text, whole and not yet masked."""
    texts = [_text(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _says(result.content, structured):
        texts.append(json.dumps(structured, ensure_ascii=False))
    failed = bool(result.is_error)
    return ports.ToolOutput(text="\n".join(texts) or (_NO_WORDS if failed else ""), failed=failed)


async def cleaned(output: ports.ToolOutput, *, mask: Callable[[str], str]) -> ports.ToolOutput:
    """`output`, masked and as it can be stored; what cannot be masked, or not in time, is withheld."""
    size = len(output.text)
    if size <= MASKED_AT_ONCE:
        return _cleaned(output, mask)
    executor = _large if size > LARGE else None
    return await asyncio.get_running_loop().run_in_executor(executor, _cleaned, output, mask)


def _cleaned(output: ports.ToolOutput, mask: Callable[[str], str]) -> ports.ToolOutput:
    text = output.text
    masked = masker.or_withheld(mask, text)
    if masked == masker.WITHHELD:
        return ports.ToolOutput(text=masked, failed=True)
    if not masker.is_withheld(masked, text):
        return replace(
            output, text=messages.storable(excerpts.middle_cut(masked, WHOLE_MAX, advice=excerpts.ASK_FOR_LESS))
        )
    if len(text) > BEGINNING + MASKED_BEYOND:
        beginning = text[: BEGINNING + MASKED_BEYOND]
        looked = masker.or_withheld(mask, beginning)
        if looked != masker.WITHHELD and not masker.is_withheld(looked, beginning):
            excerpt = looked[: max(0, len(looked) - MASKED_BEYOND)]
            masked = f"{excerpt}\n{_NO_TIME.format(len(text) - BEGINNING)}"
    return replace(output, text=messages.storable(masked), length=len(text))


def masked(tool: types.Tool, mask: Callable[[str], str]) -> types.Tool:
    """A tool as it is shown and offered: a server may put a secret into its description or its schema, too.

    A schema that is none any more once it is masked says only that an object is wanted.
    """
    serialized = json.dumps([tool.description, tool.input_schema], ensure_ascii=False)
    masked_text = masker.or_withheld(mask, serialized)
    if masked_text == serialized:
        return tool
    try:
        description, schema = json.loads(masked_text)
    except (ValueError, RecursionError):
        description, schema = masker.or_withheld(mask, tool.description or ""), None
    if not isinstance(description, str) or not isinstance(schema, dict):
        description, schema = str(description), {"type": "object"}
    return tool.model_copy(update={"description": description, "input_schema": schema})


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}, {_one_line(block.mime_type)}, {_bytes(block.data):,} bytes: not shown]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[resource {_one_line(resource.uri)}]\n{resource.text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            kind = _one_line(resource.mime_type or "of unknown type")
            return f"[resource {_one_line(resource.uri)}, {kind}, {_bytes(resource.blob):,} bytes: not shown]"
        case types.ResourceLink():
            size = None if block.size is None else f"{block.size:,} bytes"
            about = ", ".join(filter(None, (_one_line(block.mime_type or ""), size)))
            return f"[a link to {_one_line(block.uri)}{f', {about}' if about else ''}]"
        case _:
            return f"[content of type {block.type}: not shown]"


def _one_line(name: str) -> str:
    """Return a server's name for something, on one line; of a data URI only the type."""
    line = " ".join(name.split())
    return f"{line.partition(',')[0]},…" if line.startswith("data:") else line


def _bytes(encoded: str) -> int:
    """How many bytes some base64 stands for."""
    return len(encoded) * 3 // 4 - encoded.count("=", -2)


def _says(content: Sequence[types.ContentBlock], structured: Any) -> bool:
    """Whether the texts say what is structured, so that it is not to be said twice.

    Servers send the same JSON as text, as the protocol wants it; a list they send as a text for each of its items, and
    what is no object they wrap into one for the structure. Text that is too long to be compared is taken for the same.
    """
    texts = [block.text for block in content if isinstance(block, types.TextContent)]
    if sum(map(len, texts)) > COMPARED_MAX:
        return True
    wrapped = structured.get("result") if isinstance(structured, dict) and structured.keys() == {"result"} else None
    structures = list(_parsed(texts)) if texts else []
    return any(structure in structures for structure in (structured, wrapped) if structure is not None)


def _parsed(texts: Sequence[str]) -> Iterator[Any]:
    """Yield the JSON that texts may hold: each for itself, and all of them as a list."""
    read = [_read(text) for text in texts]
    yield from texts
    yield from read
    yield list(texts)
    yield read


def _read(text: str) -> Any:
    """The JSON that a text is; itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
