"""The headline of an investigation: the first sentence of a model's text, on one short line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.views import first_sentence

ACCOUNT = "Chain Execution Summary:\n- Total stages: 2\n- Failed: 1\n\nStage Results:\n❌ look: no model\n✅ tell: so"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is out of memory.", "It is out of memory."),
        ("web-0 is there. Restart it.", "web-0 is there."),
        (
            "It broke in v1.2.3 at 10.0.0.1, e.g. by a bad image. Roll back.",
            "It broke in v1.2.3 at 10.0.0.1, e.g. by a bad image.",
        ),
        ("# Root Cause\n\n## Summary\n\nThe pod `web-0` is **OOM killed**. More.", "The pod web-0 is OOM killed."),
        ("**Summary:**\n- The *pod* is [down](http://x/y). Restart.", "The pod is down."),
        ("1. Root cause: web-0 lacks memory", "Root cause: web-0 lacks memory"),
        ("| pod | state |\n|-----|-------|\n", "pod | state"),
        ("---\n\n***\nIt broke.", "It broke."),
        ("```\na line of a log\n```\nIt broke.", "It broke."),
        ("<!-- hidden\nwords --><b>It</b> broke.", "It broke."),
        ("my_pod_name is __down__ and 2*3*4 holds", "my_pod_name is down and 2*3*4 holds"),
        (f"{ACCOUNT}\n\nOf the last stage.", "Of the last stage."),
        ("\x1b[31mIt\x1b[0m broke\u200b.\r\n", "It broke ."),
        ("", ""),
        ("日本語の文。次の文。", "日本語の文。次の文。"),
    ],
)
def test_headline_is_the_first_sentence_with_content(text: str, expected: str) -> None:
    assert first_sentence.first_sentence(text) == expected


def test_long_sentence_is_cut_behind_a_word() -> None:
    headline = first_sentence.first_sentence("The pod is out of memory, " * 20)
    assert headline == f"{'The pod is out of memory, ' * 4}The pod is out…"
    assert first_sentence.first_sentence("x" * 500) == "x" * 119 + "…"


@pytest.mark.parametrize("text", ["the pod has <none> for limits", "<namespace>/<pod> is out of memory", "p<0.05, q>1"])
def test_text_in_angle_brackets_that_is_no_tag_stays(text: str) -> None:
    assert first_sentence.first_sentence(f"<b>{text}</b><br/>.") == f"{text}."


@given(
    st.text(alphabet=st.sampled_from("ab .#*_`[]()<>!-|\n\\\x1b\u200b é💥.:1"), max_size=400) | st.text(max_size=400)
)
def test_headline_is_one_line_of_at_most_120_printable_characters(text: str) -> None:
    headline = first_sentence.first_sentence(text)
    assert len(headline) <= first_sentence.LENGTH_MAX
    assert headline.isprintable()
    assert headline == headline.strip()


@pytest.mark.parametrize(
    "unit", ["[a", "*a", "<a", "`", "\\", "_a", "|", "> ", "- ", "1. ", "a.)", "<!--", "![a](b", "a_"]
)
def test_headline_of_a_hostile_text_takes_little_work(unit: str) -> None:
    """Each of these would keep a careless pattern at work for minutes."""
    assert len(first_sentence.first_sentence(unit * 200_000)) <= first_sentence.LENGTH_MAX
