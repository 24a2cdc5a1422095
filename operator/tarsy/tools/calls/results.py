"""The result of a tool call: from the MCP server's answer to the text that the model reads and the transcript stores.

Text is passed on unchanged. Other content is replaced by its type and size, because models cannot read it here. A
result is masked before it is cut: a cut could remove the beginning of a secret, and the rest would not be recognised.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import replace
from typing import Any

from mcp import types

from tarsy.masking import masker
from tarsy.transcript import excerpts, messages, ports

RESULT_MAX = 8 * 1024 * 1024
"""Characters of a stored result."""
MASKED_ON_LOOP = 4 * 1024
"""Characters that are masked on the event loop, which takes 50 ms for a hostile text; longer texts go to a thread."""
LARGE = 1024 * 1024
"""Characters above which results are masked one after the other, because each may take seconds."""
BEGINNING = 64 * 1024
"""Characters that are shown of a result that could not be masked in time."""
MASKED_BEYOND = 64 * 1024
"""Further characters that are masked together with the beginning, so that the cut divides no secret."""
COMPARED_MAX = 256 * 1024
"""Characters of text that are compared with structured content."""
NO_TIME = "[withheld: about {:,} more characters: there was no time to look through all of them; ask for less]"
_NO_WORDS = "the tool failed, and did not say why"

_WORD = re.compile(r"\w+")

_large_executor = futures.ThreadPoolExecutor(1, thread_name_prefix="masking")


def to_output(result: types.CallToolResult) -> ports.ToolOutput:
    """The result as text, complete and not yet masked."""
    texts = [_text(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _repeats(result.content, structured):
        texts.append(json.dumps(structured, ensure_ascii=False))
    failed = bool(result.is_error)
    return ports.ToolOutput(text="\n".join(texts) or (_NO_WORDS if failed else ""), failed=failed)


async def mask_and_cut(output: ports.ToolOutput, *, mask: Callable[[str], str]) -> ports.ToolOutput:
    """`output`, masked, cut and storable. A text that cannot be masked in time is withheld."""
    size = len(output.text)
    if size <= MASKED_ON_LOOP:
        return _mask_and_cut(output, mask)
    executor = _large_executor if size > LARGE else None
    return await asyncio.get_running_loop().run_in_executor(executor, _mask_and_cut, output, mask)


def _mask_and_cut(output: ports.ToolOutput, mask: Callable[[str], str]) -> ports.ToolOutput:
    text = output.text
    masked = masker.or_withheld(mask, text)
    if masked == masker.WITHHELD:
        return ports.ToolOutput(text=masked, failed=True)
    if not masker.is_withheld(masked, text):
        cut = excerpts.middle_cut(masked, RESULT_MAX, advice=excerpts.ASK_FOR_LESS)
        return replace(output, text=messages.storable(cut))
    if len(text) > BEGINNING + MASKED_BEYOND:
        beginning = text[: BEGINNING + MASKED_BEYOND]
        masked_beginning = masker.or_withheld(mask, beginning)
        if masked_beginning != masker.WITHHELD and not masker.is_withheld(masked_beginning, beginning):
            excerpt = masked_beginning[: max(0, len(masked_beginning) - MASKED_BEYOND)]
            masked = f"{excerpt}\n{NO_TIME.format(len(text) - BEGINNING)}"
    return replace(output, text=messages.storable(masked), length=len(text))


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
    """A URI or a media type on one line; of a data URI only the type."""
    line = " ".join(name.split())
    return f"{line.partition(',')[0]},…" if line.startswith("data:") else line


def _bytes(encoded: str) -> int:
    """The number of bytes in base64."""
    return len(encoded) * 3 // 4 - encoded.count("=", -2)


def _repeats(content: Sequence[types.ContentBlock], structured: Any) -> bool:
    """Whether the texts already contain the structured content.

    By the protocol, servers send the same JSON as text. They send a list as one text for each of its members, and wrap
    a value that is no object into an object for the structured content. Texts too long to compare count as the same.
    """
    texts = [block.text for block in content if isinstance(block, types.TextContent)]
    if sum(map(len, texts)) > COMPARED_MAX:
        return True
    wrapped = structured.get("result") if isinstance(structured, dict) and structured.keys() == {"result"} else None
    values = list(_parsed(texts)) if texts else []
    return any(value in values for value in (structured, wrapped) if value is not None) or (
        bool(texts) and _has_words_of(structured, "\n".join(texts))
    )


def _has_words_of(structured: Any, text: str) -> bool:
    """Whether a text has all words of structured content: those of its values as often, those of its names once.

    kubernetes-mcp-server sends objects as YAML, and lists as tables with the names as headings.
    """
    names: set[str] = set()
    values: Counter[str] = Counter()
    members = list(structured.values()) if isinstance(structured, dict) else []
    left = members if len(members) == 1 and isinstance(members[0], list) else [structured]  # "items", "result"
    while left:
        match left.pop():
            case dict() as inner:
                names.update(word for name in inner for word in _words(name))
                left.extend(inner.values())
            case list() as inner:
                left.extend(inner)
            case str() as value:
                values.update(_words(value))
            case value:
                values.update(_words(json.dumps(value)))
    words = Counter(_words(text))
    return bool(values) and values <= words and names <= words.keys()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _parsed(texts: Sequence[str]) -> Iterator[Any]:
    """Yield the JSON that texts may contain: each text, and the list of all."""
    values = [_json_or_text(text) for text in texts]
    yield from texts
    yield from values
    yield list(texts)
    yield values


def _json_or_text(text: str) -> Any:
    """The value of a text that is JSON; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
