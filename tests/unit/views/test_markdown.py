"""An export for people: what it says of an investigation, in which order, and that nothing said in one can change it.

`golden/export.md` is the document as it is sent: look at what has changed, then write it anew with
`TARSY_GOLDEN=write pytest tests/unit/views/test_markdown.py`.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis
import markdown_it
import pytest
from hypothesis import strategies
from support import stories, summary_rows
from support.masking import MASK
from tarsy.store.reads import summaries, transcript_pages
from tarsy.transcript import entries, messages
from tarsy.views import markdown

GOLDEN = Path(__file__).parents[1] / "golden" / "export.md"
BEGAN = datetime(2026, 11, 21, 3, 17, 40, tzinfo=UTC)
RULES = "\n".join(f"{number}. Look before you conclude, and say what you saw." for number in range(1, 9))
RESULT = ("FATAL: connection refused; " * 30 + "\n") * 11
TASK = messages.Message(role="user", text="Do the work of stage 'analysis'.")
ANALYSIS = """\
# Root cause

`web-0` cannot reach **shop-db** [tool 0.0]:

```sh
# as seen
kubectl logs web-0 --previous
```

Result
===

| pod | state |
|-----|-------|
| web-0 | `CrashLoopBackOff` |

<details>not ours</details> ![x](http://evil.test/x.png)
"""


def summary(**fields: Any) -> summaries.Summary:
    """An investigation that has ended."""
    stage = summary_rows.stage(
        name="analysis",
        outcome="CompletedWithErrors",
        message="synthesis failed",
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(seconds=184),
        completed=2,
        iterations=4,
        tool_calls=2,
        total_tokens=492,
    )
    ended_summary = summary_rows.summary(
        id=uuid.UUID(int=7),
        state="ended",
        attempts=1,
        namespace="shop",
        name="web-crash",
        author="ann@example.com",
        alert_type="KubePodCrashLooping",
        chain_name="pod-crash",
        chain_namespace="tarsy",
        chain_generation=3,
        chain_hash="abc",
        stage_names=("analysis", "never"),
        stage_agents=(2, 1),
        stages=(stage, dataclasses.replace(stage, name="never", outcome="Skipped", started_at=None)),
        admitted_at=BEGAN - timedelta(seconds=2),
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(seconds=184),
        ending="CompletedWithErrors",
        reason="StagesFailed",
        message="stage 'analysis': synthesis failed",
        final_analysis=ANALYSIS,
        summary="The database of web-0 is away.",
        gaps=[{"tool": "k8s.nodes", "reason": "forbidden | by RBAC"}],
        grounds="InspectedWithGaps",
        input_tokens=2100,
        output_tokens=120,
        thinking_tokens=18,
        total_tokens=2238,
        llm_calls=4,
        tool_calls=2,
        cost=0.0042,
        duplicates=3,
        alert_status="firing",
    )
    return dataclasses.replace(ended_summary, **fields)


def found(**fields: Any) -> summaries.Details:
    question = summaries.Run(
        number=1,
        kind="chat",
        question="Since when?",
        attempts=1,
        started_at=BEGAN,
        ended_at=BEGAN,
        ending="Completed",
        reason="Answered",
        message="",
        final_analysis="Since 3:10.",
        cost=None,
    )
    return summaries.Details(
        summary=summary(**fields),
        alert_data=fields.get("final_analysis", "Pod shop/web-0 restarts every minute."),
        severity="critical",
        fingerprint=None,
        runbook_url="https://example.com/runbooks/crash.md",
        chain=None,
        runs=[dataclasses.replace(question, number=0, kind="investigation", question=""), question],
        log_seq=15,
    )


def outline(
    execution: str, *, name: str, kind: str = "agent", run: int = 0, stage: str = "analysis"
) -> transcript_pages.ExecutionOutline:
    return transcript_pages.ExecutionOutline(
        id=execution,
        run=run,
        stage=stage,
        kind=kind,
        index=0,
        name=name,
        provider="google-default",
        strategy="native-thinking",
        seq=1,
        started_at=BEGAN,
        ended_at=BEGAN + timedelta(seconds=61.2),
        outcome="Completed",
        error="",
        ungrounded=False,
        iterations=2,
        tool_calls=1,
        input_tokens=200,
        output_tokens=40,
        thinking_tokens=6,
        total_tokens=1246,
        cost=None,
    )


def began(execution: str) -> entries.ExecutionStarted:
    prompt = messages.Message(role="system", text=f"You are the agent of {execution}.\n\n{RULES}\n\nBe brief.")
    return dataclasses.replace(stories.started(execution), messages=(prompt, TASK))


def text_of(document: markdown.Document, row: transcript_pages.ExecutionOutline, log: Iterable[entries.Entry]) -> str:
    """Return the document's text about an execution with that log."""
    parts = [document.execution(row)]
    for seq, entry in enumerate(log, 1):
        logged = entries.Logged(seq=seq, at=BEGAN, claim=1, run=row.run, stage=row.stage, execution=row.id, entry=entry)
        placed = transcript_pages.NumberedEntry(logged=logged, messages=0, model_calls=seq, tool_calls=seq)
        parts.append(document.page([placed]))
    return "".join(parts)


def written(text: str = ANALYSIS, result: str = RESULT) -> str:
    """A document about agents that say `text`, of tools that say `result`."""
    document = markdown.Document(found(final_analysis=text), mask=MASK)
    asked = stories.asks("k8s.pods_log", text="I look.", thinking="Why does it end?")
    first, second = outline("one", name="KubernetesAgent-1"), outline("two", name="KubernetesAgent-2")
    asking = outline("three", name="ChatAgent", kind="chat", run=1, stage="")
    parts = [
        document.head(),
        document.scope([first, second]),
        text_of(
            document,
            first,
            [
                began("one"),
                asked,
                stories.ran(asked, text=result),
                stories.fell_back(call_number=1),
                stories.answers(text),
            ],
        ),
        text_of(
            document,
            second,
            [began("two"), stories.unanswered(), stories.answers(text), stories.ended("two", "Failed", "no answer")],
        ),
        document.scope([asking]),
        text_of(document, asking, [began("three"), stories.answers(text, execution="three")]),
        document.left_out(10_000),
        markdown.END,
    ]
    return "".join(parts)


def test_markdown_document_matches_the_golden_file() -> None:
    document = written()
    if os.environ.get("TARSY_GOLDEN") == "write":
        GOLDEN.write_text(document)
    assert document == GOLDEN.read_text()


def test_a_long_prompt_is_cut_with_a_note_and_remembered_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "REMEMBERED_MAX", 100)
    text = "".join(f"line {number}\n" for number in range(3_000))
    document = markdown.Document(found(), mask=MASK)
    prompt = messages.Message(role="user", text=text)
    started = dataclasses.replace(stories.started("one"), messages=(prompt, prompt))
    section = text_of(document, outline("one", name="KubernetesAgent-1"), [started])
    path = f"/api/v1/investigations/{uuid.UUID(int=7)}/messages?execution=one"
    assert f"Cut: 8,000 of {len(text):,} characters are shown; `GET {path}` has all." in section
    assert section.count("\nline 0\n") == 1, "what is remembered is left out the second time"
    assert section.count("\nline 200\n") == 2


PIECES = (
    *(
        "```",
        "~~~",
        "`",
        "# x",
        "\n",
        "\n\n",
        "</details>",
        "<details>",
        "<!--",
        "]: x",
        "![a](b)",
        "---",
        "===",
        "| a |",
    ),
    *("> ", "- ", "    ", "\r", "The end of the transcript.", "## Final analysis", "<script>alert(1)</script>"),
)


def frame(document: str) -> list[tuple[str, int, str]]:
    """The document's own structure: headings down to its agents, HTML, and where they stand."""
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(document)
    parts = []
    for token, text in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == "heading_open" and token.tag in ("h1", "h2"):
            parts.append((token.tag, token.level, text.content))
        elif token.type == "html_block":
            parts.append(("html", token.level, "".join(char for char in token.content if not char.isdigit())))
        for child in token.children or ():
            assert child.type not in ("html_inline", "image")
    return parts


@hypothesis.settings(max_examples=50)
@hypothesis.given(strategies.lists(strategies.sampled_from(PIECES), max_size=14).map("".join))
def test_outside_text_does_not_change_the_document_around_it(text: str) -> None:
    def plain(document: str) -> list[tuple[str, int, str]]:
        return [part for part in frame(document) if part[0] != "html"]

    document = written(text or "x", result=text)
    assert plain(document) == plain(written("nothing", result=""))
    html = [part for part in frame(document) if part[0] == "html"]
    assert html[0::2] == [part for part in html if part[2].startswith("<details><summary>")]
    assert html[1::2] == [("html", 0, "</details>\n")] * (len(html) // 2)
    assert document.endswith(markdown.END)
