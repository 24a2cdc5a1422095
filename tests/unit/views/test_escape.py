"""Text from outside stands in a Markdown document as it is, and changes nothing around it."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import markdown_it
import pytest
from hypothesis import strategies
from support import steps
from tarsy.transcript import control_characters
from tarsy.views import escape

from bench import hostile_texts

PIECES = (
    *("`", "``", "```", "```sh\n", "~~~", "# ", "## x", "###### y", "=", "===", "-", "---", "- ", "1. ", "> ", "* "),
    *("<b>", "</details>", "<!--", "-->", "<script>", "<http://x>", "![", "![a](http://x/y.png)", "[a]", "](", "]: x"),
    *("[a](http://x)", "[a]: http://x", '"', "'", "(", ")", "\\", "http://x/", "www.x.com/", "&lt;", "&", "a@b.c"),
    *("|", "\n", "\r\n", "\n\n", " ", "  ", "    ", "\t", "x", "|---|---|\n", "| a | b |\n"),
)
HOSTILE = strategies.lists(strategies.sampled_from(PIECES) | strategies.text(max_size=3), max_size=16).map("".join)
BELOW = 2
READERS = {
    "CommonMark": markdown_it.MarkdownIt("commonmark"),
    "with tables": markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]),
}


def leaves(document: str, reader: str = "CommonMark") -> list[tuple[str, str]]:
    """The leaves of a document: what they are, and what stands in them."""
    leaf_nodes: list[tuple[str, str]] = []
    for token in READERS[reader].parse(document):
        leaf_nodes += [(child.type, child.content) for child in token.children or ()]
        if token.type not in ("inline", "paragraph_open", "paragraph_close"):
            leaf_nodes.append((token.type, token.content))
    return leaf_nodes


CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
TERMINAL = strategies.lists(
    strategies.sampled_from(["\x1b[2J", "\x1b]52;c;YQ==\x07", "\x9b31m", "\r\n", "\\"])
    | strategies.sampled_from(CONTROLS)
    | strategies.sampled_from(PIECES)
).map("".join)


@hypothesis.given(TERMINAL)
def test_no_control_character_reaches_a_document(text: str) -> None:
    parts = [escape.code_block(text), escape.span(text), escape.table_cell(text), escape.markdown(text, below=2)]
    document = "".join([*parts, escape.details(text, "")])
    assert not set(document) & set(CONTROLS) - {"\n", "\t"}
    assert control_characters.escape(control_characters.escape(text)) == control_characters.escape(text)


def test_control_characters_are_shown_as_python_escapes() -> None:
    assert (
        control_characters.escape("a\x1b[31mred\x1b[0m\x9b\u202eb\x00\x7f") == r"a\x1b[31mred\x1b[0m\x9b\u202eb\x00\x7f"
    )
    assert control_characters.escape("one\r\ntwo\rthree\n\tfour") == "one\ntwo\nthree\n\tfour"
    plain = "K\u00e4se \U0001f468\u200d\U0001f469 \u05d0\u200f \ufeff\u2028"
    assert control_characters.escape(plain) == plain


@hypothesis.given(HOSTILE)
def test_a_block_holds_its_text_and_ends_where_it_ends(text: str) -> None:
    read = control_characters.escape(text)
    assert leaves(f"before\n\n{escape.code_block(text)}behind\n") == [
        ("text", "before"),
        ("fence", f"{read}\n"),
        ("text", "behind"),
    ]


@hypothesis.given(HOSTILE)
def test_escaped_code_span_keeps_its_text_on_one_line(text: str) -> None:
    read = control_characters.escape(" ".join(text.split())) or "(nothing)"
    assert leaves(f"{escape.span(text)}: x\n\n# y {escape.span(text)}\n") == [
        ("code_inline", read),
        ("text", ": x"),
        ("heading_open", ""),
        ("text", "y "),
        ("code_inline", read),
        ("heading_close", ""),
    ]


@hypothesis.given(HOSTILE)
def test_a_cell_holds_its_text_and_no_other_cell(text: str) -> None:
    read = control_characters.escape(" ".join(text.split())) or "(nothing)"
    tokens = READERS["with tables"].parse(f"| a | b |\n|---|---|\n| {escape.table_cell(text)} | x |\n")
    cells = [token for token in tokens if token.type == "inline"][2:]
    assert ["".join(child.content for child in token.children or ()) for token in cells] == [read, "x"]
    assert {child.type for token in cells for child in token.children or ()} <= {"text", "code_inline", "text_special"}


@hypothesis.settings(max_examples=500)
@hypothesis.given(HOSTILE, strategies.sampled_from(sorted(READERS)))
def test_markdown_from_outside_stays_below_its_heading(text: str, reader: str) -> None:
    document = f"# one\n\n## two\n\n{escape.markdown(text, below=BELOW)}## three\n\n`four`\n"
    tokens = READERS[reader].parse(document)
    tops = [token for token in tokens if token.type == "heading_open" and token.tag in ("h1", "h2")]
    assert [(token.tag, token.level) for token in tops] == [("h1", 0), ("h2", 0), ("h2", 0)]
    assert [token.content for token in tokens[-5:] if token.type == "inline"] == ["three", "`four`"]
    types = {kind for kind, _ in leaves(document, reader)}
    assert not types & {"html_inline", "html_block", "image"}, document
    links = [child for token in tokens for child in token.children or () if child.type == "link_open"]
    assert all("\n" not in str(link.attrs["href"]) and "`" not in str(link.attrs["href"]) for link in links)


@hypothesis.given(HOSTILE)
def test_definitions_of_links_are_text(text: str) -> None:
    environment: dict[str, object] = {}
    READERS["CommonMark"].parse(escape.markdown(text, below=BELOW), environment)
    assert not environment.get("references")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Cause\n\nThe *disk* is **full**.\n", "### Cause\n\nThe *disk* is **full**.\n\n"),
        ("See `kubectl logs <pod> | grep x` and <b>.", "See &#96;kubectl logs &lt;pod> | grep x&#96; and &lt;b>.\n\n"),
        ("See `kubectl logs <pod>`.", "See `kubectl logs <pod>`.\n\n"),
        ("`a | b` [c](http://d/e) ![f](http://g)", "`a | b` [c](http://d/e) &#33;[f](http://g)\n\n"),
        ("| a | b |\n|---|:-:|\n| 1 | `2` |", "| a | b |\n|---|:-:|\n| 1 | `2` |\n\n"),
        ("[a]: http://b\n[tool 0.0] x: y", "&#91;a]: http://b\n[tool 0.0] x: y\n\n"),
        ("~~~yaml\n# x\n```\n~~~\n", "````yaml\n# x\n```\n````\n\n"),
        ("```sh\n\tx <y>\n# z", "```sh\n\tx <y>\n# z\n```\n\n"),
        (
            "1. one\n   ```sh\n   ls\n     -l\n   ```\n\n   more\n2. two",
            "1. one\n```sh\nls\n  -l\n```\n\nmore\n2. two\n\n",
        ),
    ],
)
def test_harmless_markdown_is_kept(text: str, expected: str) -> None:
    assert escape.markdown(text, below=BELOW) == expected


@pytest.mark.parametrize("text", hostile_texts.MARKDOWN_TEXTS.values(), ids=hostile_texts.MARKDOWN_TEXTS)
def test_lines_grow_with_the_length_of_a_hostile_text(text: Callable[[int], str]) -> None:
    assert steps.grow_linearly(lambda size: escape.markdown(text(size), below=BELOW), 10_000, 20_000)
