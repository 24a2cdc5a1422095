"""Text from outside stands in a Markdown document as it is, and is nothing but text in it."""

from __future__ import annotations

import hypothesis
import markdown_it
from hypothesis import strategies
from tarsy.api import markdown

PARTS = strategies.sampled_from(
    ["`", "```", "~~~", "#", "# x", "<b>", "<!--", "[x](http://x)", "![", "- ", "> ", "|", "\n", "\r\n", "\n\n", "    "]
)
HOSTILE = strategies.lists(PARTS | strategies.text(max_size=5), max_size=12).map("".join)


def parsed(document: str) -> list[tuple[str, str]]:
    """The leaves of a document: what they are, and what stands in them."""
    leaves: list[tuple[str, str]] = []
    for token in markdown_it.MarkdownIt("commonmark").parse(document):
        leaves += [(child.type, child.content) for child in token.children or ()]
        if token.type not in ("inline", "paragraph_open", "paragraph_close"):
            leaves.append((token.type, token.content))
    return leaves


@hypothesis.given(HOSTILE)
def test_a_block_holds_its_text_and_ends_where_it_ends(text: str) -> None:
    read = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    assert parsed(f"before\n\n{markdown.fence(text)}behind\n") == [
        ("text", "before"),
        ("fence", f"{read}\n"),
        ("text", "behind"),
    ]


@hypothesis.given(HOSTILE)
def test_a_span_holds_its_text_on_one_line(text: str) -> None:
    read = " ".join(text.split()).replace("\0", "\ufffd") or "(nothing)"
    assert parsed(f"{markdown.span(text)}: x\n\n# y {markdown.span(text)}\n") == [
        ("code_inline", read),
        ("text", ": x"),
        ("heading_open", ""),
        ("text", "y "),
        ("code_inline", read),
        ("heading_close", ""),
    ]
