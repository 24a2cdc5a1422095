"""The default script's words about others' work: results joined, an investigation summed up, questions answered.

Nothing is looked at for these, so nothing is said in them that does not stand in the prompt, and what is quoted keeps
the references of who looked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tarsy_dev import keys
from tarsy_dev.model import reading, report, script

_DATA = re.compile(r"<!-- DATA (\w+) START -->\n(.*?)\n<!-- DATA \1 END -->", re.DOTALL)
_AGENT = re.compile(
    r"^#### Agent \d+: (?P<name>[^\n]+)\n(?:\*\*(?:Provider|Strategy)\*\*: [^\n]*\n)*"
    r"\*\*Status\*\*: (?P<status>\w+)\n\n"
    r"<!-- Analysis Result START -->\n(?P<work>.*?)\n<!-- Analysis Result END -->",
    re.DOTALL | re.MULTILINE,
)
_RESULT = re.compile(r"<!-- Analysis Result START -->\n(.*?)\n<!-- Analysis Result END -->", re.DOTALL)
_ANALYSIS = "Final analysis:\n\n"
_GAPS = re.compile(
    r"^### What could not be inspected:\n\n<!-- Analysis Result START -->\n(.*?)\n<!-- Analysis Result END -->",
    re.DOTALL | re.MULTILINE,
)
_SECTION = r"^### {title}\n\n(.*?)(?=\n\n### |\Z)"
_REFERENCE = re.compile(r" ?\[tools? [\d., ]+\]")
_MARKUP = re.compile(r"[*`]+")
_ACCOUNT = re.compile(r"^- Total stages: (\d+)\n- Successful: \d+\n- Failed: ([1-9]\d*)$", re.MULTILINE)
_STILL_SO = re.compile(r"^Stage '[^'\n]*' finds it still so: ")
_WORD = re.compile(r"[a-z0-9][a-z0-9-]{3,}")
_LOOK = re.compile(r"\b(look|check|verify|now|again|still|current(ly)?|logs?)\b", re.IGNORECASE)
_LONGEST = 240  # characters of one line of a summary
_LINES = 3  # quotes of one answer
_SHORTENED = 3000  # characters of a tool's result that are left


@dataclass(frozen=True, kw_only=True)
class _Agent:
    """What one agent of a stage found."""

    name: str
    status: str
    analysis: str
    """"" where it has none."""

    error: str = ""

    @property
    def verdict(self) -> str:
        return _verdict(self.analysis)

    @property
    def has_found(self) -> bool:
        return bool(self.analysis) and not self.verdict.startswith("Not found")


def join(turn: script.Turn) -> str:
    """One analysis of several agents': what the best founded one says, and what each of them found."""
    agents = [_agent(found) for found in _AGENT.finditer(_prompt(turn))]
    found = [agent for agent in agents if agent.has_found]
    concluded = [agent for agent in agents if agent.analysis]
    analyses = [agent.analysis for agent in found or concluded]
    best = max(found or concluded, key=lambda agent: len(_REFERENCE.findall(agent.analysis)), default=None)
    sections = [
        f"## {turn.key.stage}: {len(agents)} agents together",
        f"**Root cause.** {best.verdict if best else 'Not found: none of the agents came to a conclusion.'}",
        f"### What each of them found\n\n{_agreement(found, agents)}\n\n{_lines(map(_told, agents))}",
        *_section("Evidence", analyses[:1] if best is None else [best.analysis]),
        *_section("Recommended actions", [best.analysis] if best else []),
        "### What could not be verified\n\nNothing was looked at anew for this.",
    ]
    return "\n\n".join(sections) + "\n"


def shorten(turn: script.Turn) -> str:
    """The first line of a tool's long result and those that tell of trouble, letter by letter, as many as fit."""
    _, result = _DATA.findall(_prompt(turn))[-1]
    head, *lines = result.splitlines() or [""]
    kept, room = [head[:_SHORTENED]], _SHORTENED - len(head)
    for line in filter(reading.is_trouble, lines):
        if len(line) >= room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join([*kept, f"({len(lines) + 1} lines in all; others tell of no trouble, or found no room here)"])


def analyse(turn: script.Turn) -> str:
    """All that the stages before have found, as who has no tools and concludes for all of them says it."""
    analyses = [text for text in _analyses(_prompt(turn)) if text]
    found = [text for text in analyses if not _verdict(text).startswith("Not found")] or analyses
    verdicts = list(dict.fromkeys(map(_verdict, found)))
    affected = report.what(reading.target(_alert(turn)))
    actions = _section("Recommended actions", found[-1:]) or ["### Recommended actions\n\nNone was recommended."]
    sections = [
        f"## {turn.key.stage}",
        f"**Root cause.** {verdicts[-1] if verdicts else 'Not found: the stages before handed nothing over.'}",
        *([f"### Found before that\n\n{_lines(verdicts[:-1])}"] if verdicts[:-1] else []),
        *_section("Evidence", found[-1:]),
        f"### Impact\n\nThe alert is about {affected}; what depends on it was not looked at.",
        *actions,
        "### Prevention\n\nNothing that was collected tells how to prevent it.",
    ]
    return "\n\n".join(sections) + "\n"


def sum_up(turn: script.Turn) -> str:
    """The analysis in one to four plain lines."""
    prompt = _prompt(turn)
    results = _RESULT.findall(_GAPS.sub("", prompt))
    analysis = results[-1] if results else ""
    verdict = _plain(_STILL_SO.sub("", _verdict(analysis)))
    lines = [f"{verdict[:1].upper()}{verdict[1:]}" or "The investigation came to no conclusion."]
    if account := _ACCOUNT.search(analysis):
        lines.append(f"{account[2]} of {account[1]} stages failed.")
    lines += [f"First: {_plain(action)}" for action in _actions(analysis)[:1]]
    if gaps := _GAPS.search(prompt):
        tools = dict.fromkeys(re.findall(r"^- ([^:\n]+):", gaps[1], re.MULTILINE))
        lines.append(_plain(f"Not inspected: {', '.join(tools)}"))
    return "\n".join(lines)


def wants_a_look(turn: script.Turn) -> bool:
    """Whether a question asks for more than what was found before."""
    return bool(_LOOK.search(_question(turn)))


def answer(turn: script.Turn, looked: str) -> str:
    """The answer to a question: what was found about it, and, where that was wanted, what is seen now."""
    analyses = [text for text in _analyses(_prompt(turn)) if text]
    analysis = analyses[-1] if analyses else ""
    quotes = _about(_question(turn), analysis) or [_verdict(analysis) or "It came to no conclusion."]
    told = f"The investigation found:\n\n{_lines(quotes)}"
    return f"{told}\n\n{looked or 'Nothing was looked at anew for this answer.'}"


def _prompt(turn: script.Turn) -> str:
    """What others wrote: the first message, which holds all of it."""
    return next((message.text for message in turn.messages if message.role == "user"), "")


def _alert(turn: script.Turn) -> str:
    """What stands between the first markers."""
    data = _DATA.search(_prompt(turn))
    return data[2] if data else keys.INVESTIGATION_LINE.sub("", _prompt(turn), count=1)


def _question(turn: script.Turn) -> str:
    return keys.question(_prompt(turn))


def _agent(found: re.Match[str]) -> _Agent:
    work = found["work"]
    if found["status"] != "completed":
        error = re.search(r"^Error: (.*)$", work, re.MULTILINE)
        return _Agent(name=found["name"], status=found["status"], analysis="", error=error[1] if error else "")
    return _Agent(name=found["name"], status=found["status"], analysis=_analysis(work))


def _analysis(work: str) -> str:
    """What somebody concluded, without the steps before it."""
    return work.rpartition(_ANALYSIS)[2].strip()


def _analyses(prompt: str) -> list[str]:
    """What stands between the markers of results, as far as it is an analysis."""
    return [_analysis(work) for work in _RESULT.findall(_GAPS.sub("", prompt)) if not work.startswith("Error: ")]


def _verdict(analysis: str) -> str:
    """The line that says what it is: our own label's, else the first one that is no heading."""
    if found := report.VERDICT.search(analysis):
        return found[1].strip()
    lines = [line.strip() for line in analysis.splitlines()]
    return next((line for line in lines if line and not line.startswith(("#", "Chain Execution Summary"))), "")


def _told(agent: _Agent) -> str:
    if agent.analysis:
        return f"{agent.name}: {agent.verdict}"
    return f"{agent.name} has no result ({agent.status}){f': {agent.error}' if agent.error else ''}"


def _agreement(found: Sequence[_Agent], agents: Sequence[_Agent]) -> str:
    causes = {_REFERENCE.sub("", agent.verdict) for agent in found}
    if not causes:
        return "None of them found a cause."
    if len(found) == len(agents) and len(causes) == 1:
        return "They agree."
    if len(causes) == 1:
        return f"{len(found)} of {len(agents)} found a cause."
    return "They say it in different words; the one whose evidence is quoted comes first above."


def _section(title: str, analyses: Iterable[str]) -> list[str]:
    """A section of these analyses, each once, under its own heading; nothing where there is none."""
    form = re.compile(_SECTION.format(title=re.escape(title)), re.DOTALL | re.MULTILINE)
    parts = dict.fromkeys(found[1].strip() for text in analyses if (found := form.search(text)))
    return ["\n\n".join([f"### {title}", *parts])] if parts else []


def _actions(analysis: str) -> list[str]:
    section = "\n".join(_section("Recommended actions", [analysis]))
    return re.findall(r"^\d+\. (.+)$", section, re.MULTILINE)


def _about(question: str, analysis: str) -> list[str]:
    """The lines of an analysis that have the most words of a question, in the analysis's order."""
    words = set(_WORD.findall(question.lower()))
    lines = [line.strip() for line in analysis.splitlines() if not line.startswith(("#", "`", "~"))]
    scores = {line: len(words & set(_WORD.findall(line.lower()))) for line in lines if line}
    best = sorted((line for line, score in scores.items() if score), key=lambda line: -scores[line])[:_LINES]
    return [line for line in scores if line in best]


def _lines(told: Iterable[str]) -> str:
    return "\n".join(f"- {line.removeprefix('- ')}" for line in told)


def _plain(text: str) -> str:
    line = " ".join(_MARKUP.sub("", _REFERENCE.sub("", text)).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
