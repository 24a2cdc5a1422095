"""The script of the demo's one alert: a pod that crashes, its events, its log, and its conclusion.

It answers in the demo and in `make local` when there is no key for a real model, so it must be honest: it says only
what the tool results say, quotes them letter by letter, and says of any other alert that it knows no more. A call
without tools is answered with what stands in the prompt. ReAct is translated (`react`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tarsy_dev import keys
from tarsy_dev.model import react, script

_LOG = "pods_log"
_VALUE = r"\\?[\"']?\s*[:=]\s*\\?[\"'`]?([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?![\w/])"
_POD = re.compile(rf"(?<![\w-])pod{_VALUE}")
_NAMESPACE = re.compile(rf"(?<![\w-])namespace{_VALUE}|\bin namespace ([a-z0-9-]+)")
_TROUBLE = {
    "pods_list_in_namespace": r"^.*{pod}.*CrashLoopBackOff.*$",
    "pods_get": r"^ *(?:exitCode: [1-9].*|reason: (?:Error|CrashLoopBackOff))$",
    _LOG: r"^.*\b(?:fatal|panic|error)\b.*$",
}
"""The lines of a tool's result that are quoted."""
_VERDICT = re.compile(
    r"^\*\*(?:Root cause|Conclusion)\.\*\* (?:Stage '[^'\n]*' finds it still so: )?(.+)$", re.MULTILINE
)
_EVIDENCE = re.compile(r"^### Evidence\n\n.*?(?=\n\n### )", re.MULTILINE | re.DOTALL)
_ACTIONS = "### Recommended actions\n\n1. {action}"
_MEND = "Mend what its last log lines name; if it began with a rollout, roll back first."
_UNKNOWN = "Not found: this is the script of the demo, which knows the demo's alert alone. Set a key for a real model."
_DATA = re.compile(r"<!-- DATA (\w+) START -->\n(.*?)\n<!-- DATA \1 END -->", re.DOTALL)
_LINES = 3  # quotes of one result
_TAIL = 50  # lines of a log
_CHUNK = 80  # characters of one streamed piece


def investigate(model_call: script.Turn) -> script.Answer:
    """Answer a turn, whatever it is for."""
    prompt = "\n".join(message.text for message in model_call.messages if message.role == "user")
    verdicts = [verdict for verdict in dict.fromkeys(_VERDICT.findall(prompt)) if verdict != _UNKNOWN]
    if model_call.kind == "tool_summary":
        result = _DATA.findall(prompt)[-1][1]
        return _say("", "\n".join(_quotes(_LOG, result, "")) or "Nothing in it tells of an error.")
    if model_call.kind == "summary":
        summary = re.sub(r"[*`]| ?\[tools? [\d., ]+\]", "", verdicts[-1] if verdicts else _UNKNOWN)
        return _say("", f"{summary[:1].upper()}{summary[1:]}" + (f"\nFirst: {_MEND}" if verdicts else ""))
    if react.is_spoken(model_call):
        return react.spoken(_work(react.understood(model_call), verdicts))
    if model_call.tools and model_call.kind == "agent":
        return _work(model_call, verdicts)
    sections = [f"## {model_call.key.stage or 'Answer'}", f"**Root cause.** {verdicts[-1] if verdicts else _UNKNOWN}"]
    sections += _EVIDENCE.findall(prompt)[-1:] + ([_ACTIONS.format(action=_MEND)] if verdicts else [])
    return _say("**Reading what was found**", "\n\n".join(sections) + "\n")


def _work(model_call: script.Turn, handed_over: Sequence[str]) -> script.Answer:
    """Answer with calls as long as they can tell more, else with the analysis."""
    prompt = "\n".join(message.text for message in model_call.messages if message.role == "user")
    alert = keys.INVESTIGATION_LINE.sub("", prompt, count=1)
    seen = _seen(model_call)
    pod, namespace = _found(_POD, alert), _found(_NAMESPACE, alert)
    scope = {"namespace": namespace} if namespace else {}
    survey: dict[str, dict[str, Any]] = {
        "pods_list_in_namespace" if scope else "pods_list": scope,
        "events_list": scope,
    }
    steps = [survey]
    if pod and namespace:
        named: dict[str, Any] = {**scope, "name": pod}
        log = {_LOG: {**named, "tail": _TAIL}}
        again: dict[str, dict[str, Any]] = {"pods_get": named, **log, "events_list": scope}
        steps = [again] if handed_over else [{**survey, "pods_get": named}, log]
    made = [call.name for call, _ in seen]
    tools = {tool.short: tool.name for tool in model_call.tools}
    for step in steps:
        calls = [script.Call(name=tools[name], args=args) for name, args in step.items() if name in tools]
        if calls := [call for call in calls if call.name not in made]:
            words = f"I look at {f'pod `{pod}`' if pod else 'what the alert is about'}."
            return script.Answer(thoughts="**Following the symptoms**", text=words, calls=tuple(calls), chunk=_CHUNK)
    return _say(
        f"**Weighing the evidence**\n{len(seen)} tool results.",
        _analysis(model_call, pod, namespace, seen, handed_over),
    )


def _analysis(
    model_call: script.Turn,
    pod: str,
    namespace: str,
    seen: Sequence[tuple[script.Call, script.Result]],
    handed_over: Sequence[str],
) -> str:
    crash = log = ""
    evidence: list[str] = []
    for call, result in seen:
        tool = call.short
        if pod and not result.failed and tool in _TROUBLE and (quotes := _quotes(tool, result.text, pod)):
            text = "\n".join(quotes)
            evidence.append(f"`{tool}` {result.reference}:\n\n```text\n{text}\n```")
            if tool == _LOG:
                log = f"; its log says `{quotes[-1]}` {result.reference}".rstrip()
            else:
                crash = f"pod `{pod}` in namespace `{namespace}` starts, ends with an error, and is started again"
    verdict = f"{crash}{log}." if crash else _UNKNOWN
    label = f"**Conclusion.** Stage '{model_call.key.stage}' finds it still so: " if handed_over else "**Root cause.** "
    sections = [f"## {model_call.key.stage or 'analysis'}", f"{label}{verdict}"]
    if evidence:
        sections += ["### Evidence\n\n" + "\n\n".join(evidence), _ACTIONS.format(action=_MEND)]
    looked = []
    for call, result in seen:
        arguments = ", ".join(f"{name}={value}" for name, value in call.args.items())
        looked.append(f"- `{call.short}({arguments})` {result.reference}".rstrip())
    sections.append("### What was looked at\n\n" + ("\n".join(looked) or "- nothing"))
    return "\n\n".join(sections) + "\n"


def _found(form: re.Pattern[str], alert: str) -> str:
    """Return the name in an alert, as a label in any form of JSON or in prose; "" without it."""
    match = form.search(alert)
    return next(filter(None, match.groups())) if match else ""


def _quotes(tool: str, text: str, pod: str) -> list[str]:
    form = _TROUBLE[tool].format(pod=re.escape(pod)) if "{pod}" in _TROUBLE[tool] else _TROUBLE[tool]
    lines = re.findall(form, text, re.MULTILINE | re.IGNORECASE)
    return list(dict.fromkeys(line.strip() for line in lines))[-_LINES:]


def _seen(model_call: script.Turn) -> list[tuple[script.Call, script.Result]]:
    """Every call with its result; both come in the same order, and with ids in any."""
    pairs = []
    for asked, answered in zip(model_call.messages, model_call.messages[1:], strict=False):
        for index, result in enumerate(answered.results):
            same = [call for call in asked.calls if call.id and call.id == result.id]
            pairs.append((same[0] if same else asked.calls[index], result))
    return pairs


def _say(thoughts: str, text: str) -> script.Answer:
    return script.Answer(thoughts=thoughts, text=text, chunk=_CHUNK)
