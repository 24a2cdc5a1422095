"""Tables of kubernetes-mcp-server, which are kubectl's with more columns.

Columns begin where their headers do, in characters. A row that does not keep to that, because a marker in it is longer
than the secret was, is divided where three spaces are, if that gives as many cells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tarsy.engine.comparison import objects, pods

_HEADER = re.compile(r"\S+(?: \S+)*")
_GAP = re.compile(r" {3,}")
_SINCE = r"(?:(?:\d{1,9}[ydhms]){1,3}|<invalid>)"
"""An age; `<invalid>` stands for a time after now, by the clock of a node that is ahead.

Never `<none>` or `<unknown>`: a CronJob that was never scheduled differs from one that was.
"""
_AGE = re.compile(_SINCE)
_RESTARTS = re.compile(rf"[1-9]\d{{0,8}}(?: \({_SINCE} ago\))?")
"""Never 0: the first restart of a container is a change."""
_COUNT = re.compile(r"\d{1,9}")

ALIKE: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "": {"AGE": _AGE},
    "Pod": {"RESTARTS": _RESTARTS},
    "CronJob": {"LAST SCHEDULE": _AGE},
    "Event": {
        "LAST SEEN": _AGE,
        "FIRST SEEN": _AGE,
        "COUNT": _COUNT,
        "NAME": re.compile(r"[0-9a-z.-]{1,253}\.[0-9a-f]{8,20}"),
    },
}
"""The columns whose cells are alike if both have the form, by kind; those of "" in all kinds."""


def parse(text: str) -> list[dict[str, str]]:
    """Return the rows, each as its cells by column; raises ValueError if this is no such table."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return []
    columns = [(match[0], match.start()) for match in _HEADER.finditer(lines[0])]
    names = [name for name, _ in columns]
    if not {"APIVERSION", "KIND", "NAME"} <= set(names) or len(set(names)) != len(names):
        raise ValueError("it is no table")
    return [dict(zip(names, _cells(line, [start for _, start in columns]), strict=True)) for line in lines[1:]]


def _cells(line: str, starts: Sequence[int]) -> list[str]:
    if all(line[start - 1 : start] == " " for start in starts[1:]) and len(line) > starts[-1]:
        ends = [*starts[1:], len(line)]
        return [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    cells = _GAP.split(line.strip())
    if len(cells) != len(starts):
        raise ValueError("a row has other columns")
    return cells


def prepare(row: Mapping[str, str], names_of_pods: pods.Pods) -> objects.Node:
    """Return a row for the comparison; `names_of_pods` are the pods of its side."""
    alike = {**ALIKE[""], **ALIKE.get(row["KIND"], {})}
    prepared: dict[str, objects.Node] = {}
    for column, cell in row.items():
        form = alike.get(column)
        text = objects.without_duration(cell, row["KIND"], column)
        prepared[column] = ("<any>" if form and form.fullmatch(cell) else names_of_pods.replace(text), cell)
    return prepared
