"""The default script's words: what it says before its calls, and the analysis that it ends with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tarsy_dev.model import reading, script

_CAUSES: dict[reading.Kind, tuple[str, tuple[str, ...]]] = {
    "memory": (
        "is killed because it uses more memory than its limit allows",
        ("Raise the memory limit, or find what grows: compare its use before and after the last rollout.",),
    ),
    "image": (
        "does not start, because its image cannot be pulled",
        (
            "Check that the image's name and tag exist in the registry.",
            "Check the pull secret of its service account, then roll back to the last tag that was pulled.",
        ),
    ),
    "configuration": (
        "does not start, because something that its containers refer to is missing",
        ("Create the ConfigMap or Secret that the message names, or correct the reference.",),
    ),
    "mount": ("waits for a volume that cannot be mounted", ("Check the claim and the volume that the event names.",)),
    "scheduling": (
        "is not scheduled onto any node",
        ("Compare its requests, affinities and tolerations with what the nodes have left.",),
    ),
    "node": ("is hit by a problem of its node", ("Look at the node's conditions, and drain it if they persist.",)),
    "probe": ("runs and is not ready", ("Look at what its probe asks for, and why the container does not answer.",)),
    "crash": (
        "starts, ends with an error, and is started again",
        ("Mend what its last log lines name; if it began with a rollout, roll back first.",),
    ),
    "other": ("is in trouble", ("Look at the quoted message first.",)),
    "log": ("reports errors in its log", ("Mend what the quoted log lines name.",)),
}
_HINTS = (
    (
        re.compile(r"authentication failed|access denied|invalid (password|credentials)", re.IGNORECASE),
        "something that it depends on refuses its credentials",
    ),
    (re.compile(r"connection refused", re.IGNORECASE), "something that it depends on refuses connections"),
    (re.compile(r"permission denied|forbidden|unauthorized", re.IGNORECASE), "it lacks a permission"),
    (re.compile(r"no such host|name resolution|lookup .* on", re.IGNORECASE), "a host name does not resolve"),
    (re.compile(r"no such file|not found", re.IGNORECASE), "something that it needs is not there"),
    (
        re.compile(r"timed? ?out|deadline exceeded", re.IGNORECASE),
        "something that it depends on does not answer in time",
    ),
    (re.compile(r"out of memory|cannot allocate", re.IGNORECASE), "it runs out of memory"),
    (re.compile(r"panic|traceback|exception", re.IGNORECASE), "its own code fails"),
)
_RESULT = re.compile(r"<!-- Analysis Result START -->(.*?)<!-- Analysis Result END -->", re.DOTALL)
VERDICT = re.compile(r"^\*\*(?:Root cause|Conclusion)\.\*\* (.+)$", re.MULTILINE)
"""The line of an analysis that says what it is."""

_EVIDENCE = 8  # quotes in one analysis


def short(name: str) -> str:
    """A tool's name without its server."""
    return re.split(r"__|\.", name)[-1]


def earlier(turn: script.Turn) -> list[str]:
    """What the stages before have found: their verdicts, else the first lines of their analyses."""
    text = "\n".join(message.text for message in turn.messages if message.role == "user")
    verdicts = VERDICT.findall(text)
    blocks = [block.strip().splitlines() for block in _RESULT.findall(text)]
    return list(dict.fromkeys(verdicts or [block[0].lstrip("# ") for block in blocks if block]))


def before_survey(turn: script.Turn, target: reading.Target) -> tuple[str, str]:
    """Thoughts and text of the answer that asks for an overview."""
    about = what(target)
    if earlier(turn):
        thoughts = f"**Checking what was handed over**\nStage '{turn.key.stage}' starts from an earlier finding."
        return thoughts, f"I check the earlier finding about {about} against the cluster as it is now."
    thoughts = f"**Reading the alert**\nIt is about {about}. First an overview, before any guess at the cause."
    return thoughts, f"I begin with an overview of {about}."


def before_logs(turn: script.Turn, pods: Sequence[str]) -> tuple[str, str]:
    """Thoughts and text of the answer that asks for logs."""
    names = " and ".join(f"`{pod}`" for pod in pods)
    thoughts = f"**Following the symptoms**\nWhat I have seen points at {names}; why, only the containers can tell."
    return thoughts, f"For stage '{_title(turn)}' I read the logs of {names} next."


def conclude(
    turn: script.Turn,
    target: reading.Target,
    found: Sequence[reading.Finding],
    seen: Sequence[tuple[script.Call, script.Result]],
) -> tuple[str, str]:
    """Thoughts and text of the last answer."""
    handed_over = earlier(turn)
    if not seen and handed_over:
        text = _summary(turn, handed_over)
    else:
        text = _analysis(turn, target, _relevant(target, found), seen, handed_over)
    if turn.is_look and not seen:
        text += "\nI did not look: with what the alert tells, none of the tools can be called that only read.\n"
    return f"**Weighing the evidence**\n{len(seen)} tool results, {len(found)} signs of trouble.", text


def looked(
    target: reading.Target,
    found: Sequence[reading.Finding],
    seen: Sequence[tuple[script.Call, script.Result]],
) -> str:
    """What was seen for a question; "" where nothing was looked at."""
    if not seen:
        return ""
    relevant = _relevant(target, found)[:_EVIDENCE]
    shown = _evidence(relevant) if relevant else f"Nothing in it shows trouble with {what(target)}."
    return f"Looked at for this answer:\n\n{_looked_at(seen)}\n\n{shown}\n"


def _relevant(target: reading.Target, found: Sequence[reading.Finding]) -> list[reading.Finding]:
    """The findings about the target if there are any, else all; the most telling kinds first, logs last."""
    about = [finding for finding in found if target.names(finding.pod)]
    order = list(_CAUSES)
    return sorted(dict.fromkeys(about or found), key=lambda finding: order.index(finding.kind))


def _summary(turn: script.Turn, verdicts: Sequence[str]) -> str:
    """What no tools are there to check: a summary in one paragraph, or several analyses brought together."""
    if len(verdicts) == 1 or "summary" in turn.system.lower():
        return f"In short: {verdicts[-1]}"
    points = "\n".join(f"- {verdict}" for verdict in verdicts)
    return (
        f"## {_title(turn)}: {len(verdicts)} findings together\n\n{points}\n\n"
        f"**Conclusion.** {verdicts[0]} Nothing was looked at anew for this."
    )


def _analysis(
    turn: script.Turn,
    target: reading.Target,
    found: Sequence[reading.Finding],
    seen: Sequence[tuple[script.Call, script.Result]],
    handed_over: Sequence[str],
) -> str:
    sections = [f"## {_title(turn)}: {what(target)}", _verdict(turn, target, found, seen, handed_over)]
    if handed_over:
        sections.append("### Handed over\n\n" + "\n".join(f"- {verdict}" for verdict in handed_over))
    if found:
        sections.append("### Evidence\n\n" + _evidence(found[:_EVIDENCE]))
    sections.append("### Recommended actions\n\n" + _actions(target, found))
    sections.append("### What was looked at\n\n" + _looked_at(seen))
    return "\n\n".join(sections) + "\n"


def _verdict(
    turn: script.Turn,
    target: reading.Target,
    found: Sequence[reading.Finding],
    seen: Sequence[tuple[script.Call, script.Result]],
    handed_over: Sequence[str],
) -> str:
    label = "**Conclusion.**" if handed_over else "**Root cause.**"
    if found:
        confirms = f"Stage '{turn.key.stage}' finds it still so: " if handed_over else ""
        told = [
            f"{_subject(problem, target)} {_CAUSES[problem.kind][0]}{_behind(problem)}{_hint(problem, found)}"
            for problem in _problems(found)
        ]
        return f"{label} {confirms}{'. Besides, '.join(told)}."
    if not seen:
        return f"{label} Not found: no tool was there to look with, and the alert alone does not tell."
    failed = sum(result.failed for _, result in seen)
    if failed == len(seen):
        return f"{label} Not found: every tool call failed ({failed} of {failed}), so nothing could be seen."
    return f"{label} Not found: nothing that the tools returned shows trouble with {what(target)}."


def _problems(found: Sequence[reading.Finding]) -> list[reading.Finding]:
    """The most telling finding about each pod; logs explain the others, and stand for themselves only alone."""
    problems: dict[str, reading.Finding] = {}
    for finding in found:
        problems.setdefault(finding.pod, finding)
    return list(problems.values())


def _subject(finding: reading.Finding, target: reading.Target) -> str:
    pod = f"pod `{finding.pod}`" if finding.pod else what(target)
    place = f" in namespace `{finding.namespace}`" if finding.pod and finding.namespace else ""
    aside = "" if target.names(finding.pod) or not target.pod else f", which the alert does not name ({what(target)}),"
    return f"{pod}{place}{aside}"


def _hint(problem: reading.Finding, found: Sequence[reading.Finding]) -> str:
    for finding in found:
        if finding.kind == "log" and finding.pod == problem.pod:
            for pattern, hint in _HINTS:
                if pattern.search(finding.quote):
                    return f"; its log says that {hint}{_behind(finding)}"
    return ""


def _behind(finding: reading.Finding) -> str:
    """What stands behind what a finding shows."""
    return f" {finding.reference}" if finding.reference else ""


def _evidence(found: Sequence[reading.Finding]) -> str:
    """The quotes, those of one result about one pod together."""
    together: dict[tuple[str, str, str], list[reading.Finding]] = {}
    for finding in found:
        together.setdefault((finding.source, finding.reference, finding.pod), []).append(finding)
    return "\n\n".join(map(_quoted, together.values()))


def _quoted(found: Sequence[reading.Finding]) -> str:
    first = found[0]
    text = "\n".join(finding.quote for finding in found)
    fence = "```" if "```" not in text else "~~~~"
    about = f" about `{first.pod}`" if first.pod else ""
    return f"`{short(first.source)}`{about}{_behind(first)}:\n\n{fence}text\n{text}\n{fence}"


def _actions(target: reading.Target, found: Sequence[reading.Finding]) -> str:
    actions = [
        f"`{problem.pod}`: {action}" if problem.pod else action
        for problem in _problems(found)
        for action in _CAUSES[problem.kind][1]
    ]
    if not actions:
        actions = [
            f"Look at {what(target)} by hand; if the alert still fires, give the agent the tools that it lacked."
        ]
    return "\n".join(f"{number}. {action}" for number, action in enumerate(actions, start=1))


def _looked_at(seen: Sequence[tuple[script.Call, script.Result]]) -> str:
    lines = []
    for call, result in seen:
        arguments = ", ".join(f"{name}={value}" for name, value in call.args.items())
        outcome = f"failed: {result.text.strip()}" if result.failed else f"{len(result.text.splitlines())} lines"
        reference = f" {result.reference}" if result.reference else ""
        lines.append(f"- `{short(call.name)}({arguments})`{reference}: {outcome}")
    return "\n".join(lines) or "- nothing: no tools were declared"


def _title(turn: script.Turn) -> str:
    return turn.key.stage or "analysis"


def what(target: reading.Target) -> str:
    """What an alert is about, in words."""
    place = f" in namespace `{target.namespace}`" if target.namespace else ""
    if target.pod or target.workload:
        return f"`{target.pod or target.workload}`{place}"
    return f"namespace `{target.namespace}`" if target.namespace else "the cluster"
