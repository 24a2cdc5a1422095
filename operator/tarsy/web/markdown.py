"""Markdown of models, alerts and runbooks as HTML that loads nothing and runs nothing.

HTML in the text is shown as text. Images become links, because loading one would tell its server who reads the page.
What the parser makes is sanitized as well, so that a fault of the parser is not a hole of the page.

Source: CommonMark 0.31 with GitHub's tables and strikethrough.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from tarsy.transcript import control_characters

LENGTH_MAX = 64 * 1024
"""Characters of a text that are parsed; a longer one is shown as plain text."""

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


_PARSER = MarkdownIt("commonmark", {"html": False, "linkify": False}, renderer_cls=_Renderer).enable(
    ["table", "strikethrough"]
)


def to_html(text: str) -> Markup:
    """Return `text`, which is Markdown, as safe HTML."""
    text = control_characters.escape(text)
    if len(text) > LENGTH_MAX:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(  # noqa: S704 - it was sanitized
        nh3.clean(
            _PARSER.render(text),
            tags=_TAGS,
            attributes={"a": {"href"}, "ol": {"start"}, "code": {"class"}},
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        )
    )
