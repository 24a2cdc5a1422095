"""Patterns of one's own: they mask, they end, masking twice changes nothing, and what cannot do so is refused."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.masking import custom_patterns, masker

from bench import hostile_texts


def own(pattern: str, replacement: str | None = None, *, name: str = "account") -> masker.Masker:
    return masker.Masker(
        groups=["security"], own=[custom_patterns.compile_pattern(name=name, pattern=pattern, replacement=replacement)]
    )


@pytest.mark.parametrize(
    ("pattern", "replacement", "text", "masked"),
    [
        (r"acct-\d+", None, "of acct-12 and acct-3.", "of [MASKED:account] and [MASKED:account]."),
        (r"acct-\d+", "[ACCT]", "of acct-12.", "of [ACCT]."),
        (r"(acct)-(\d)\d+", "$1-${2}xx costs $$5", "of acct-12.", "of acct-1xx costs $5."),
        (r"(?P<what>acct)=\S+", "${what}=***", "acct=12 x", "acct=*** x"),
        (r"(a)?cct-\d+", "${1}X", "cct-1 acct-2", "X aX"),
        (r"(?i)müller\d", None, "Herr MÜLLER7 é", "Herr [MASKED:account] é"),
        (r"acct-\d+", "", "a acct-1 b", "a  b"),
        (r"\S+=\S+", None, "password=hunter2x and more", "[MASKED:account] and more"),
        (r"[a-z]{5}", "*****", "token=[MASKED:token] words", "*****=[MASKED:token] *****"),
        (r"acct:\S+", None, "acct:1[MASKED:token]2 x", "[MASKED:account] x"),
        (r"\] \d+", None, "[MASKED:token] 12", "[MASKED:account]"),
        (r"[0-9a-f]{4}", None, "[MASKED:token:12ab] 12ab", "[MASKED:token:12ab] [MASKED:account]"),
    ],
)
def test_match_of_a_pattern_is_replaced(pattern: str, replacement: str | None, text: str, masked: str) -> None:
    mine = own(pattern, replacement)
    assert mine.text(text) == masked
    assert mine.text(masked) == masked


@pytest.mark.parametrize(
    ("pattern", "replacement", "why"),
    [
        ("(x", None, "pattern: RE2 refuses it: missing )"),
        ("x(?!y)", None, "pattern: RE2 refuses it: invalid perl operator: (?!"),
        (r"(x)\1", None, r"pattern: RE2 refuses it: invalid escape sequence: \1"),
        ("x{1001}", None, "pattern: RE2 refuses it: invalid repetition size: {1001}"),
        ("(?:[a-z]{500}){2}[é]{900}", None, "pattern: too large"),
        ("x" * 1025, None, "pattern: longer than 1024 characters"),
        ("\ud800", None, "pattern: not a text that UTF-8 can encode"),
        ("x*", None, "pattern: it matches the empty text"),
        (r"\b", None, "pattern: it matches the empty text"),
        ("(?m)^", None, "pattern: it matches the empty text"),
        ("a|", None, "pattern: it matches the empty text"),
        ("x", "y" * 257, "replacement: longer than 256 characters"),
        ("x", "$1", "replacement: an unknown group of the pattern. Available: none"),
        ("(x)(?P<y>z)", "$3", "replacement: an unknown group of the pattern. Available: ${1}, ${2}, ${y}"),
        ("(x)", "$1y", "replacement: an unknown group of the pattern. Available: ${1}"),
        ("(x)", "a$", "replacement: a dollar without a group after it"),
        ("x", "<$0>", "replacement: $0 is the whole match"),
        (r"\d+", "1 of 2", "replacement: the pattern matches and changes it again"),
        (r"(\d+)", "<$1>", "replacement: the pattern matches and changes it again"),
        ("x", "xx", "replacement: the pattern matches and changes it again"),
    ],
)
def test_unusable_pattern_is_refused_and_not_quoted(pattern: str, replacement: str | None, why: str) -> None:
    with pytest.raises(custom_patterns.CustomPatternError) as error:
        custom_patterns.compile_pattern(name="account", pattern=pattern, replacement=replacement)
    assert f"{error.value.field}: {error.value}".startswith(why)
    assert len(str(error.value)) < 120
    with pytest.raises(custom_patterns.CustomPatternError) as error:
        custom_patterns.compile_pattern(
            name="account", pattern=f"(hunter2-{pattern[:50].replace(chr(0xD800), '')}", replacement="$7"
        )
    assert "hunter2" not in str(error.value)


PIECES = [
    *(r"\d", r"\w+", "[a-z]{2,5}", "(x)", "(?:a|b)+", " ", r"\S", "acct", "=", r"\[", ":", r"\]", "MASKED", "[^a]"),
    ".",
]
TEXTS = ["acct", "12", "x", " ", "[MASKED:token]", "[MASKED:", "]", "a=b", "password=hunter2x", "é", "\n", ":7f3a"]


@hypothesis.settings(max_examples=400, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    pattern=strategies.lists(strategies.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
    replacement=strategies.sampled_from(
        [None, "", "***", "$1", "<$1>", "acct", "7", "password=hunter3y", "[MASKED:x]"]
    ),
    text=strategies.lists(strategies.sampled_from(TEXTS), max_size=12).map("".join),
)
def test_masking_twice_changes_nothing_for_any_pattern(pattern: str, replacement: str | None, text: str) -> None:
    try:
        mine = own(pattern, replacement)
    except custom_patterns.CustomPatternError:
        return
    masked = mine.text(text)
    assert mine.text(masked) == masked


@pytest.mark.parametrize("pattern", hostile_texts.CUSTOM_PATTERNS)
@pytest.mark.parametrize("piece", hostile_texts.CUSTOM_PIECES)
def test_executed_lines_grow_linearly_with_a_text_for_each_pattern(pattern: str, piece: str) -> None:
    mine = own(pattern)
    assert steps.grow_linearly(mine.text, piece * (8_000 // len(piece)), piece * (16_000 // len(piece)))
