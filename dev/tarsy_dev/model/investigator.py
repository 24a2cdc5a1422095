"""The default script: an investigator that works on any alert with whatever tools it is given.

It is what answers in the demo and in `make local` when there is no key for a real model, so it must be honest: it says
only what the tool results say, quotes them letter by letter, and tells what it did not find and which tools failed.
Survey, then the logs of what crashes, then the analysis: each step is chosen from the conversation alone. It joins what
several of its kind found, sums up and answers questions from what stands in the prompt (`joining`), and speaks both
dialects (`react`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tarsy_dev import keys
from tarsy_dev.model import joining, react, reading, report, script

_READS = re.compile(r"list|get|describe|lookup|search|query|find|show|status|top|events|logs?")
_WRITES = re.compile(
    r"delete|create|update|apply|patch|scale|restart|run|exec|install|uninstall|label|set|write|kill|drain|cordon"
)
_MANY = 3  # calls of one step
_LOGS = 2  # pods whose logs are read
_TAIL = 50  # lines of a log
_CHUNK = 80  # characters of one streamed piece


def investigate(turn: script.Turn) -> script.Answer:
    """Answer a turn, whatever it is for."""
    match turn.kind:
        case "synthesis":
            return _say("**Weighing what they found**", joining.join(turn))
        case "summary":
            return _say("", joining.sum_up(turn))
        case "tool_summary":
            return _say("", joining.shorten(turn))
    if react.is_spoken(turn):
        return react.spoken(_work(react.understood(turn)))
    return _work(turn)


def _work(turn: script.Turn) -> script.Answer:
    """Answer with calls as long as they can tell more, else with the analysis, or with the answer to a question."""
    seen = _seen(turn)
    target = reading.target(_alert(turn))
    found = [finding for call, result in seen for finding in reading.findings(call, result)]
    if turn.tools and (turn.kind == "agent" or joining.wants_a_look(turn)):
        if calls := _not_made(_survey(turn, target), seen):
            return _ask(calls, report.before_survey(turn, target))
        if calls := _not_made(_logs(turn, target, seen), seen):
            return _ask(calls, report.before_logs(turn, [str(call.args["name"]) for call in calls]))
    if turn.kind == "chat":
        return _say("**Answering from what was found**", joining.answer(turn, report.looked(target, found, seen)))
    if not turn.tools and not seen and "The stages before you have collected all the data" in turn.system:
        return _say("**Reading what the stages collected**", joining.analyse(turn))
    thoughts, text = report.conclude(turn, target, found, seen)
    return _say(thoughts, text)


def _say(thoughts: str, text: str) -> script.Answer:
    return script.Answer(thoughts=thoughts, text=text, chunk=_CHUNK)


def _not_made(calls: Iterable[script.Call], seen: Sequence[tuple[script.Call, script.Result]]) -> list[script.Call]:
    """Those that have no result yet: in ReAct one is made at a time."""
    made = [(call.name, dict(call.args)) for call, _ in seen]
    return [call for call in calls if (call.name, dict(call.args)) not in made]


def _ask(calls: Sequence[script.Call], words: tuple[str, str]) -> script.Answer:
    thoughts, text = words
    return script.Answer(thoughts=thoughts, text=text, calls=tuple(calls), chunk=_CHUNK)


def _alert(turn: script.Turn) -> str:
    """What the people wrote, without the line that names our own object."""
    text = "\n".join(message.text for message in turn.messages if message.role == "user")
    return keys.INVESTIGATION_LINE.sub("", text, count=1)


def _seen(turn: script.Turn) -> list[tuple[script.Call, script.Result]]:
    """Every call with its result; both come in the same order, and with ids in any."""
    pairs = []
    for asked, answered in zip(turn.messages, turn.messages[1:], strict=False):
        for index, result in enumerate(answered.results):
            same = [call for call in asked.calls if call.id and call.id == result.id]
            call = same[0] if same else asked.calls[index]
            pairs.append((call, result))
    return pairs


def _survey(turn: script.Turn, target: reading.Target) -> list[script.Call]:
    scope = {"namespace": target.namespace} if target.namespace else {}
    pod = scope | {"name": target.pod}
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("pods_list_in_namespace" if scope else "pods_list", scope),
        ("events_list", scope),
        *([("pods_get", pod)] if target.pod else []),
    ]
    if report.earlier(turn) and target.pod:
        wanted = [("pods_get", pod), ("pods_log", pod | {"tail": _TAIL}), ("events_list", scope)]
    calls = [script.Call(name=tool.name, args=args) for name, args in wanted for tool in _declared(turn, name)]
    return calls or _any_reads(turn.tools, target)


def _declared(turn: script.Turn, name: str) -> list[script.Tool]:
    """The declared tools of this name, on whichever server."""
    return [tool for tool in turn.tools if report.short(tool.name) == name]


def _any_reads(tools: Iterable[script.Tool], target: reading.Target) -> list[script.Call]:
    """Calls of tools that look as if they only read, as far as their required arguments are known."""
    known = {
        "namespace": target.namespace,
        "name": target.pod or target.workload,
        "pod": target.pod,
        "pod_name": target.pod,
        "query": target.pod or target.workload or target.namespace,
    }
    calls = []
    for tool in tools:
        name = report.short(tool.name)
        args = _filled(tool.schema, known)
        words = re.split(r"[_-]", name.lower())
        reads = any(map(_READS.fullmatch, words)) and not any(map(_WRITES.fullmatch, words))
        if reads and args is not None:
            calls.append(script.Call(name=tool.name, args=args))
    return calls[:_MANY]


def _filled(schema: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any] | None:
    required = schema.get("required", [])
    args = {name: known.get(name, "") for name in required}
    return args if all(args.values()) else None


def _logs(
    turn: script.Turn,
    target: reading.Target,
    seen: Sequence[tuple[script.Call, script.Result]],
) -> list[script.Call]:
    """Ask for the logs of pods that crash or that the alert names, once, where a container has run at all.

    Which these are is told by everything but logs, so that it stays the same while they are read.
    """
    others = [(call, result) for call, result in seen if report.short(call.name) != "pods_log"]
    found = [finding for call, result in others for finding in reading.findings(call, result)]
    about = [finding for finding in found if target.names(finding.pod)] or found
    crashed = [finding for finding in about if finding.pod and finding.kind in ("crash", "memory", "probe", "other")]
    pods = {finding.pod: finding.namespace or target.namespace for finding in crashed}
    if target.pod and any(not result.failed and target.pod in result.text for _, result in others):
        pods = {target.pod: target.namespace} | pods
    never_ran = {finding.pod for finding in found if finding.kind in ("image", "configuration", "scheduling", "mount")}
    wanted = [pod for pod in pods if pod not in never_ran][:_LOGS]
    return [
        script.Call(name=tool.name, args=_scoped(pods[pod]) | {"name": pod, "tail": _TAIL})
        for pod in wanted
        for tool in _declared(turn, "pods_log")
    ]


def _scoped(namespace: str) -> dict[str, Any]:
    return {"namespace": namespace} if namespace else {}
