"""Markdown from outside becomes HTML that loads nothing and runs nothing."""

from __future__ import annotations

from html import parser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.web import markdown

HARMLESS_TAGS = markdown._TAGS
HARMLESS_ATTRIBUTES = {"a": {"href", "rel", "title"}, "ol": {"start"}, "code": {"class"}}

HOSTILE = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[click](javascript:alert(1))"),
    *("[click](data:text/html;base64,PHNjcmlwdD4=)", "![](https://example.com/pixel.png)"),
    *("![x](javascript:alert(1))", "<a href='javascript:alert(1)'>x</a>"),
    *('<https://example.com/"onmouseover=alert(1)>', '[x](https://example.com "a\' onmouseover=alert(1)")'),
    *('```"><script>alert(1)</script>\ncode\n```', "| a |\n|---|\n| <svg onload=alert(1)> |", "&lt;script&gt;"),
    *("[x]: javascript:alert(1)\n[x]", "<style>*{display:none}</style>", "\x1b]0;title\x07"),
]


class _Audit(parser.HTMLParser):
    """Collects what a browser would make of a text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in HARMLESS_TAGS:
            self.faults.append(tag)
        for name, value in attributes:
            if name not in HARMLESS_ATTRIBUTES.get(tag, set()):
                self.faults.append(f"{tag} {name}")
            if name == "href" and not (value or "").startswith(("http://", "https://", "mailto:", "#", "/")):
                is_relative = ":" not in (value or "").partition("/")[0]
                if not is_relative:
                    self.faults.append(f"href {value}")


def faults(text: str) -> list[str]:
    audit = _Audit()
    audit.feed(str(markdown.to_html(text)))
    audit.close()
    return audit.faults


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_has_no_effect(text: str) -> None:
    assert faults(text) == []


@given(
    st.lists(st.sampled_from([*HOSTILE, "\n", " ", "`", "*", "_", "[", "](", ")", "<", ">", '"', "- ", "| "])).map(
        "".join
    )
)
def test_no_combination_of_hostile_parts_has_an_effect(text: str) -> None:
    assert faults(text) == []


def test_an_image_becomes_a_link() -> None:
    html = str(markdown.to_html("![graph](https://example.com/graph.png)"))

    assert "<img" not in html
    assert '<a href="https://example.com/graph.png" rel="noopener noreferrer nofollow">graph</a>' in html


def test_headings_stand_below_those_of_the_page() -> None:
    html = str(markdown.to_html("# One\n\n## Two\n\n#### Four"))

    assert html.split() == ["<h3>One</h3>", "<h4>Two</h4>", "<h6>Four</h6>"]


def test_tables_lists_and_code_are_kept() -> None:
    html = str(markdown.to_html("| a | b |\n|---|---|\n| 1 | 2 |\n\n3. x\n\n```yaml\nkind: Pod\n```"))

    assert "<td>1</td>" in html
    assert '<ol start="3">' in html
    assert '<pre><code class="language-yaml">kind: Pod\n</code></pre>' in html


def test_html_is_shown_as_text() -> None:
    assert "&lt;b&gt;bold&lt;/b&gt;" in str(markdown.to_html("<b>bold</b>"))


def test_too_long_markdown_is_shown_without_parsing() -> None:
    html = str(markdown.to_html("*" * (markdown.LENGTH_MAX + 1)))

    assert html.startswith("<pre>***")
