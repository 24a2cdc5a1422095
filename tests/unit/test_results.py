from __future__ import annotations

import pytest
from mcp import types
from tarsy.tools import results

TEXT = types.TextContent(type="text", text="web-0 is Running")
IMAGE = types.ImageContent(type="image", data="aGk=", mime_type="image/png")
EMBEDDED = types.EmbeddedResource(
    type="resource", resource=types.TextResourceContents(uri="file:///log", text="out of memory")
)
BLOB = types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="file:///core", blob="aGk="))
LINK = types.ResourceLink(type="resource_link", name="log", uri="file:///log")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([TEXT, EMBEDDED], "web-0 is Running\nout of memory"),
        ([IMAGE, TEXT], "[content of type image is not shown]\nweb-0 is Running"),
        ([BLOB], "[content of type resource is not shown]"),
        ([LINK], "[a link to file:///log]"),
        ([], ""),
    ],
)
def test_what_is_no_text_is_told_instead_of_shown(content: list[types.ContentBlock], text: str) -> None:
    output = results.output(types.CallToolResult(content=content))
    assert (output.text, output.failed) == (text, False)


def test_structured_content_is_shown_where_there_is_no_other() -> None:
    structured = {"phase": "Läuft"}
    both = types.CallToolResult(content=[TEXT], structured_content=structured)
    assert results.output(both).text == "web-0 is Running"
    alone = types.CallToolResult(content=[], structured_content=structured)
    assert results.output(alone).text == '{"phase": "Läuft"}'


def test_an_error_stays_one() -> None:
    assert results.output(types.CallToolResult(content=[TEXT], is_error=True)).failed


@pytest.mark.parametrize(("size", "cut"), [(10, False), (11, True)])
def test_what_is_too_long_is_cut_and_the_cut_is_told(size: int, cut: bool) -> None:
    text = results.bounded("é" * size, limit=10)
    assert text == "é" * 10 + ("\n[cut: 10 of 11 characters are shown; ask for less]" if cut else "")


def test_text_that_the_store_cannot_hold_is_replaced() -> None:
    assert results.bounded("a\x00b\ud800c\U0001f4a5", limit=100) == "a\ufffdb\ufffdc\U0001f4a5"
