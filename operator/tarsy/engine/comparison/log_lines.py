"""Lines of logs without the times at which they were written.

Only a time that says when the line was written is left out: at the beginning of the line, after its level, or under a
key for it in lines of JSON or `key=value`. Any other time, and every number, counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tarsy.engine.comparison import pods

_DATE = r"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ZONE = r"(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_DAY = r"\d\d/[A-Z][a-z]{2}/\d{4}:"
_STAMP = rf"(?:{_DATE}[T ]{_CLOCK}{_ZONE}|{_CLOCK}|[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}|{_DAY}{_CLOCK}{_ZONE})"
_EPOCH = r"\d{10}(?:\.\d{1,9}|\d{3})?"
_LEVEL = (
    "(?i:trace|trc|debug|dbug|dbg|verbose|fine|info|inf|information|notice|log|warn|warning|wrn|error|eror|err|severe|fatal|ftl"
    "|critical|crit|alert|emerg|panic|[tdiwef])"
)
_LEADING = re.compile(rf"((?:[\[(<]?{_LEVEL}[\])>]?:? {{1,8}})?[\[(<]?){_STAMP}(?![\d:])")
_KLOG = re.compile(rf"([IWEF])\d{{4}} {_CLOCK}(?= )")
_ACCESS = re.compile(rf"(^\S{{1,64}} \S{{1,64}} \S{{1,64}} \[){_DAY}{_CLOCK}{_ZONE}(?=\])")
"""A line of an access log. Source: Apache HTTP Server documentation, Common Log Format."""
_KEY = "(?:@timestamp|timestamp|time|ts)"
_TEXT = r'"(?:[^"\\]|\\.)*+"'
_JSON = re.compile(
    rf'(\{{ ?(?:{_TEXT}: ?+(?:{_TEXT}|[^"{{}}\[\],]*+), ?+)*?"{_KEY}": ?+"?+)(?:{_STAMP}|{_EPOCH})(?=[", }}])'
)
"""The beginning of a JSON object, up to its own time: one that is deeper, or behind an object or a list, counts."""
_LOGFMT = re.compile(rf'((?:[\w.@/-]{{1,64}}=(?:"[^"]*"|[^\s"]*) ){{0,8}}{_KEY}="?)(?:{_STAMP}|{_EPOCH})(?=[" ]|$)')
"""The beginning of a line of `key=value`. Source: the format of Go's `log/slog.TextHandler`."""
_SILENT = re.compile(r"The pod \S+ in namespace \S+ has not logged any message yet")


def templates(text: str, names_of_pods: pods.Pods) -> Iterator[tuple[str, str]]:
    """Yield each line as it is compared, and as it is; `names_of_pods` are the pods of its side."""
    for line in text.splitlines():
        if line.strip() and not _SILENT.fullmatch(line.strip()):
            yield names_of_pods.replace(_without_time(line)), line


def _without_time(line: str) -> str:
    if klog := _KLOG.match(line):
        return f"{klog[1]}<time>{line[klog.end() :]}"
    if leading := _LEADING.match(line):
        return f"{leading[1]}<time>{line[leading.end() :]}"
    if json := _JSON.match(line):
        return f"{json[1]}<time>{line[json.end() :]}"
    if logfmt := _LOGFMT.match(line):
        return f"{logfmt[1]}<time>{line[logfmt.end() :]}"
    return _ACCESS.sub(r"\1<time>", line, count=1)
