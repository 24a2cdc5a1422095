"""What the default script reads out of an alert and out of tool results.

The formats are those of kubernetes-mcp-server 0.0.67: kubectl's wide tables, events and objects as YAML, plain logs;
what has none of these shapes is read as a log. The lines are read as text and not parsed as YAML, because every
finding quotes what it rests on, and a quote must occur in the result letter by letter.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tarsy_dev.model import script

Kind = Literal["memory", "image", "configuration", "mount", "scheduling", "node", "probe", "crash", "other", "log"]

_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("memory", re.compile(r"OOMKill|out of memory", re.IGNORECASE)),
    ("image", re.compile(r"ImagePull|ErrImage|InvalidImageName|pull(ing)? image", re.IGNORECASE)),
    ("configuration", re.compile(r"CreateContainer(Config)?Error|(configmap|secret) .*not found", re.IGNORECASE)),
    ("mount", re.compile(r"FailedMount|FailedAttachVolume")),
    ("scheduling", re.compile(r"FailedScheduling|Unschedulable|Insufficient (cpu|memory)|\bPending\b")),
    ("node", re.compile(r"NodeNotReady|Evicted|DiskPressure|MemoryPressure")),
    ("probe", re.compile(r"Unhealthy|probe failed|not ready", re.IGNORECASE)),
    ("crash", re.compile(r"CrashLoopBackOff|BackOff|back-off restarting|Error|restart|exitCode", re.IGNORECASE)),
)
_NAME = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_NAMESPACE_PROSE = (
    rf"\bin (?:the )?namespace [\"'`]?({_NAME})",
    rf"\bin (?:the )?[\"'`]?({_NAME})[\"'`]? namespace\b",
)
_POD_PROSE = (r"\b[Pp]od [\"'`]?([a-z0-9][a-z0-9.]*-[a-z0-9.-]*[a-z0-9])",)  # with a dash: "pod restarts" names none
_PROSE = frozenset(
    {"of", "the", "is", "and", "for", "in", "with", "has", "was", "that", "this", "which", "or", "to", "a", "an"}
)
_HEALTHY = frozenset({"Running", "Completed", "Succeeded"})
_MANY_RESTARTS = 3
_LOG_TROUBLE = re.compile(
    r"fatal|panic|error|exception|traceback|refused|denied|killed|no such|not found|failed|cannot|timed? ?out",
    re.IGNORECASE,
)
_LOG_LINES = 3
_QUOTE = 400  # characters


@dataclass(frozen=True, kw_only=True)
class Target:
    """What an alert is about; what it does not tell is empty."""

    namespace: str = ""
    pod: str = ""
    workload: str = ""

    def names(self, pod: str) -> bool:
        """Tell whether a pod is the target's, or one of its workload's."""
        return bool(pod) and (pod == self.pod or (bool(self.workload) and pod.startswith(self.workload)))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong that a tool result shows."""

    kind: Kind
    source: str
    """The tool, as it was declared."""

    quote: str
    """Verbatim from the result."""

    pod: str = ""
    namespace: str = ""
    reference: str = ""
    """By what the result is named (`script.Result`)."""


def target(alert: str) -> Target:
    """Find namespace, pod and workload in an alert, be it JSON, labels or prose."""
    slashed = re.search(rf"\bpods? [\"'`]?({_NAME})/({_NAME})", alert, re.IGNORECASE)
    place, pod = slashed.groups() if slashed else ("", "")
    return Target(
        namespace=_label(alert, "namespace") or place or _prose(alert, _NAMESPACE_PROSE),
        pod=_label(alert, "pod", "pod_name") or pod or _prose(alert, _POD_PROSE),
        workload=_label(alert, "deployment", "statefulset", "daemonset", "workload", "app"),
    )


def _label(alert: str, *labels: str) -> str:
    """The value of a label: `pod="x"`, `"pod": "x"`, `pod: x`; also escaped, as JSON within JSON is."""
    form = rf"(?<![\w-])(?:{'|'.join(labels)})\\?[\"']?\s*[:=]\s*\\?[\"'`]?({_NAME})(?![\w/])"
    return next((match[1] for match in re.finditer(form, alert)), "")


def _prose(alert: str, forms: tuple[str, ...]) -> str:
    names = (match[1] for form in forms for match in re.finditer(form, alert))
    return next((name for name in names if name not in _PROSE), "")


def is_trouble(line: str) -> bool:
    """Whether a line of a result tells of something wrong."""
    return bool(_LOG_TROUBLE.search(line)) or any(pattern.search(line) for _, pattern in _KINDS)


def findings(call: script.Call, result: script.Result) -> list[Finding]:
    """What a tool result shows that is wrong; nothing for a result that is an error itself."""
    if result.failed:
        return []
    return [dataclasses.replace(finding, reference=result.reference) for finding in _findings(call, result)]


def _findings(call: script.Call, result: script.Result) -> list[Finding]:
    lines = result.text.splitlines()
    if lines and {"NAME", "STATUS"} <= set(lines[0].split()):
        return list(_table(call, lines))
    if re.search(r"^- InvolvedObject:", result.text, re.MULTILINE):
        return list(_events(call, result.text))
    if re.search(r"^kind: Pod$", result.text, re.MULTILINE):
        return list(_object(call, lines))
    return list(_log(call, lines))


def _table(call: script.Call, lines: list[str]) -> Iterator[Finding]:
    header = _cells(lines[0])
    for line in lines[1:]:
        row = dict(zip(header, _cells(line), strict=False))
        status = row.get("STATUS", "")
        ready, _, wanted = row.get("READY", "").partition("/")
        restarts = re.match(r"\d+", row.get("RESTARTS", ""))
        trouble = [] if status in _HEALTHY or not status else [status]
        if status == "Running" and ready != wanted:
            trouble.append("not ready")
        if restarts and int(restarts[0]) >= _MANY_RESTARTS:
            trouble.append("restart")
        if trouble:
            yield _finding(
                call, " ".join(trouble), line.strip(), pod=row.get("NAME", ""), namespace=row.get("NAMESPACE", "")
            )


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _events(call: script.Call, text: str) -> Iterator[Finding]:
    for block in re.split(r"^- ", text, flags=re.MULTILINE)[1:]:
        if not re.search(r"^ +Type: Warning", block, re.MULTILINE):
            continue
        reason = _field(block, "Reason")
        message = re.search(r"^ +(Message: .*(?:\n {3,}.*)*)", block, re.MULTILINE)
        quote = message[1] if message else f"Reason: {reason}"
        kind = _field(block, "Kind")
        pod = _field(block, "Name") if kind == "Pod" else ""
        yield _finding(call, f"{reason} {quote}", quote, pod=pod, namespace=_field(block, "Namespace"))


def _field(block: str, name: str) -> str:
    found = re.search(rf"^ *{name}: (.*)$", block, re.MULTILINE)
    return found[1].strip() if found else ""


def _object(call: script.Call, lines: list[str]) -> Iterator[Finding]:
    """A pod's own words: why a container waits, and how the last one ended."""
    for line in lines:
        if re.search(
            r"^\s+(reason: (?!Completed|ContainersNotReady)\w*(BackOff|Err|Error|Kill|Evict)|exitCode: [1-9])", line
        ):
            yield _finding(call, line, line.strip(), pod=_text(call, "name"), namespace=_text(call, "namespace"))


def _log(call: script.Call, lines: list[str]) -> Iterator[Finding]:
    troubled = [line.strip() for line in lines if _LOG_TROUBLE.search(line)]
    for line in troubled[-_LOG_LINES:]:
        yield Finding(
            kind="log",
            source=call.name,
            quote=line[:_QUOTE],
            pod=_text(call, "name"),
            namespace=_text(call, "namespace"),
        )


def _finding(call: script.Call, reason: str, quote: str, *, pod: str, namespace: str) -> Finding:
    kind: Kind = next((kind for kind, pattern in _KINDS if pattern.search(reason)), "other")
    return Finding(kind=kind, source=call.name, quote=quote[:_QUOTE], pod=pod, namespace=namespace)


def _text(call: script.Call, argument: str) -> str:
    return str(call.args.get(argument, ""))
