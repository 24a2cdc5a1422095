"""Seeds: what a world is made of before it is recorded.

A seed is a YAML file. Its first document says how nodes, containers and ages are; the others are manifests, applied in
order. A manifest `{settle: true}` waits until controllers, scheduler and kubelets have nothing left to do. One whose
`ownerReferences` have no uid gets that of the live owner.

`ago:5m` in a manifest, a state or an event is the time five minutes before the recording, and `{ago:5m}` in a log.

A container's `flood` fills its log with lines among those of `log`, in order of time: `lines` of them, the first one
`from` ago and the last one `to` ago, each the next of `text`. In these `{at}` is the time of the line, `{n}` its number
and `{ms}` a number below 400 that hangs on it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"\{ago:([0-9smhd]+)\}")


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A seed that was read."""

    name: str
    manifests: list[dict[str, Any]]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    """For pods whose name begins with `pod` in `namespace`: the states and logs of their containers."""
    ages: dict[str, str] = field(default_factory=dict)
    """Ages by `Kind/name`, or the beginning of it; the longest one counts."""
    age: str = "41d"
    """The age of all others."""
    events: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    """Statuses of objects whose controllers do not run here."""
    drop_events: list[str] = field(default_factory=list)
    """Reasons of events that are over an hour old at the recording, and gone."""


def read(path: Path, *, base: Path) -> Seed:
    """Return the seed at `path`, with the nodes and manifests of `base`."""
    ours, *manifests = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    common, *common_manifests = yaml.safe_load_all(base.read_text(encoding="utf-8"))
    names = {node["name"] for node in ours.get("nodes", ())}
    return Seed(
        name=path.stem,
        manifests=[*common_manifests, {"settle": True}, *manifests],
        nodes=[*ours.get("nodes", ()), *(node for node in common["nodes"] if node["name"] not in names)],
        pods=[*ours.get("pods", ()), *common.get("pods", ())],
        ages=common.get("ages", {}) | ours.get("ages", {}),
        events=ours.get("events", []),
        statuses=ours.get("statuses", []),
        drop_events=[*common.get("drop_events", ()), *ours.get("drop_events", ())],
    )


def duration(text: str) -> timedelta:
    """Return the duration of a text such as `1d2h`."""
    parts = re.findall(r"(\d+)([smhd])", text)
    return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta())


def stamp(at: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def timed(value: Any, now: datetime) -> Any:
    """Return `value` with its times before `now` filled in."""
    match value:
        case str():
            if value.startswith("ago:"):
                return stamp(now - duration(value))
            return _AGO.sub(lambda ago: stamp(now - duration(ago[1])), value)
        case dict():
            return {key: timed(member, now) for key, member in value.items()}
        case list():
            return [timed(member, now) for member in value]
    return value


def log(container: dict[str, Any], now: datetime) -> str | None:
    """Return the log of a container of a seed, with its flood; None if it has neither.

    The times of its own lines are filled in already (`timed`).
    """
    flood = container.get("flood")
    if flood is None:
        text: str | None = container.get("log")
        return text
    first, last = (duration(flood[name]) for name in ("from", "to"))
    step = (first - last) / (flood["lines"] - 1)
    lines = [
        flood["text"][number % len(flood["text"])]
        .replace("{at}", stamp(now - first + number * step))
        .replace("{n}", str(number))
        .replace("{ms}", str(int(hashlib.sha256(str(number).encode()).hexdigest()[:6], 16) % 400))
        for number in range(flood["lines"])
    ]
    merged = sorted([*container.get("log", "").splitlines(), *lines], key=lambda line: line.partition(" ")[0])
    return "\n".join(merged) + "\n"
