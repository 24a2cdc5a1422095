"""Markdown of models, alerts and runbooks as HTML that loads nothing and runs nothing.

HTML in the text is shown as text. Images become links, because loading one would tell its server who reads the page.
What the parser makes is sanitized as well, so that a fault of the parser is not a hole of the page.

Source: CommonMark 0.31 with GitHub's tables and strikethrough.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from tarsy.transcript import control_characters

LENGTH_MAX = 64 * 1024
"""Characters of a text that are parsed; a longer one is shown as plain text."""

References: TypeAlias = Callable[[str], Sequence[tuple[str, str]]]
"""Finds the tool calls that a reference such as 0.1 may mean: a name and an address for each."""
_REFERENCE = re.compile(r"\[tools?\b(?:[\s,;&.#\d]|tools?|calls?|results?|and){1,100}+\]", re.IGNORECASE)
"""References as prompts ask for them, `[tool 2.1]`, and as models write several."""
_CALL = re.compile(r"(?<![\d.])\d{1,6}\.\d{1,6}(?![\d.])")

_TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "code", "em", "strong", "s"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a"),
}
_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5"}
"""A text stands below the headings of its page; what is deeper becomes the deepest."""


class _Renderer(RendererHTML):
    """Renderer without images, and with headings below those of the page."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Return a link to the image."""
        token = tokens[idx]
        source = html.escape(str(token.attrGet("src") or ""))
        label = html.escape(self.renderInlineAsText(token.children, options, env)) or source
        return f'<a href="{source}">{label}</a>'

    def heading_open(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        """Return the start of a heading."""
        return f"<{_HEADINGS.get(tokens[idx].tag, 'h6')}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        """Return the end of a heading."""
        return f"</{_HEADINGS.get(tokens[idx].tag, 'h6')}>\n"


def _link_references(state: StateCore) -> None:
    """Make links of references to tool calls, outside of links and code."""
    references: References | None = state.env.get("calls")
    if references is None:
        return
    for block in state.tokens:
        if block.type != "inline":
            continue
        depth, children = 0, list[Token]()
        for token in block.children or ():
            depth += token.nesting if token.type in ("link_open", "link_close") else 0
            children += _linked(token.content, references) if token.type == "text" and not depth else [token]
        block.children = children


def _linked(text: str, references: References) -> Iterator[Token]:
    end = 0
    for match in _REFERENCE.finditer(text):
        for call in _CALL.finditer(text, *match.span()):
            candidates = references(call[0])
            if not candidates:
                continue
            if len(candidates) == 1:
                yield _text(text[end : call.start()])
                yield from _link(call[0], candidates[0][1])
            else:
                yield _text(f"{text[end : call.end()]} (")
                for index, (name, address) in enumerate(candidates):
                    yield _text(", " if index else "")
                    yield from _link(name, address)
                yield _text(")")
            end = call.end()
    yield _text(text[end:])


def _link(label: str, address: str) -> Iterator[Token]:
    yield Token("link_open", "a", 1, attrs={"href": address})
    yield _text(label)
    yield Token("link_close", "a", -1)


def _text(text: str) -> Token:
    return Token("text", "", 0, content=text)


_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False}, renderer_cls=_Renderer).enable(
    ["table", "strikethrough"]
)
_PARSER.core.ruler.push("references", _link_references)


def to_html(text: str, references: References | None = None) -> Markup:
    """Return `text`, which is Markdown, as safe HTML; references to tool calls become links to what they may mean."""
    text = control_characters.escape(text)
    if len(text) > LENGTH_MAX:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(  # noqa: S704 - it was sanitized
        nh3.clean(
            _PARSER.render(text, {"calls": references}),
            tags=_TAGS,
            attributes={"a": {"href"}, "ol": {"start"}, "code": {"class"}},
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        )
    )
