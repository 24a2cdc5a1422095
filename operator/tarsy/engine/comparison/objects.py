"""Objects of Kubernetes as trees, and their differences by path.

Two objects are alike if they differ only at the paths below: there are ages, times, counts of restarts, the version of
the object, a pod's own name, uid and address, and the duration in two messages of the kubelet. A value there that has
another form counts like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from tarsy.engine.comparison import pods, trees

Leaf: TypeAlias = tuple[str, str]
"""A text as it is compared, and as it is."""
Node: TypeAlias = "Leaf | list[Node] | dict[str, Node]"

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d| \+0000 UTC)")
_COUNT = re.compile(r"\d{1,20}")
_RESTARTS = re.compile(r"[1-9]\d{0,19}")
"""Never 0: the first restart of a container is a change."""
_CONTAINER_ID = re.compile(r"[a-z-]{1,30}://[0-9a-f]{12,128}")
_TOKEN_VOLUME = re.compile(r"kube-api-access-[a-z0-9]{5}")
_BACK_OFF = re.compile(r"back-off (?:\d{1,4}[hms]){1,3} (?=restarting failed container)")
"""The kubelet's wait before the next restart, which grows with the number of restarts."""
_DURATION = r"(?:\d{1,6}(?:\.\d{1,9})?(?:h|m|s|ms|µs)){1,3}"
_PULLED = re.compile(
    rf'(Successfully pulled image "[^"\s]{{1,512}}") in {_DURATION}(?: \({_DURATION} including waiting\))?(\.|\Z)'
)
"""The duration of a pull, in the kubelet's message. Source: kubelet, `images.imageManager.pullImage`."""
_CONTAINERS = ("status/containerStatuses/*", "status/initContainerStatuses/*", "status/ephemeralContainerStatuses/*")
_VOLUMES = (
    "spec/volumes/*/name",
    "spec/containers/*/volumeMounts/*/name",
    "spec/initContainers/*/volumeMounts/*/name",
    *(f"{container}/volumeMounts/*/name" for container in _CONTAINERS),
)

ALIKE: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "": {
        "metadata/resourceVersion": _COUNT,
        "metadata/creationTimestamp": _TIME,
        "metadata/annotations/endpoints.kubernetes.io/last-change-trigger-time": _TIME,
        **{
            f"status/conditions/*/{name}": _TIME
            for name in ("lastTransitionTime", "lastUpdateTime", "lastProbeTime", "lastHeartbeatTime")
        },
        **{
            f"status/{name}": _TIME
            for name in ("startTime", "completionTime", "lastScheduleTime", "lastSuccessfulTime")
        },
    },
    "Pod": {
        **{f"{container}/restartCount": _RESTARTS for container in _CONTAINERS},
        **{
            f"{container}/{state}/{phase}/{name}": _TIME
            for container in _CONTAINERS
            for state in ("state", "lastState")
            for phase in ("running", "terminated")
            for name in ("startedAt", "finishedAt")
        },
        **{f"{container}/containerID": _CONTAINER_ID for container in _CONTAINERS},
        **{
            f"{container}/{state}/terminated/containerID": _CONTAINER_ID
            for container in _CONTAINERS
            for state in ("state", "lastState")
        },
        **dict.fromkeys(_VOLUMES, _TOKEN_VOLUME),
        "metadata/annotations/cni.projectcalico.org/containerID": re.compile("[0-9a-f]{64}"),
    },
    "Event": {
        "metadata/uid": re.compile(r"[0-9a-f-]{36}"),
        "metadata/name": re.compile(r"[0-9a-z.-]{1,253}\.[0-9a-f]{8,20}"),
        **dict.fromkeys(("count", "series/count", "deprecatedCount"), _COUNT),
        **dict.fromkeys(
            (
                *("Timestamp", "firstTimestamp", "lastTimestamp", "eventTime", "series/lastObservedTime"),
                *("deprecatedFirstTimestamp", "deprecatedLastTimestamp"),
            ),
            _TIME,
        ),
        **{f"{subject}/resourceVersion": _COUNT for subject in ("involvedObject", "regarding", "related")},
    },
}
"""The paths whose values are alike if both have the form, by kind; those of "" in all kinds. `*` is a list's index."""
_MESSAGES: Mapping[str, Mapping[str, tuple[re.Pattern[str], str]]] = {
    "Pod": {f"{container}/state/waiting/message": (_BACK_OFF, "back-off ") for container in _CONTAINERS},
    "Event": dict.fromkeys(("Message", "message", "note", "MESSAGE"), (_PULLED, r"\1 in <time>\2")),
}
"""The paths of the kubelet's messages with a duration in them, which is left out, by kind; also a table's column."""


def prepare(tree: trees.Tree, kind: str, names_of_pods: pods.Pods) -> Node:
    """Return an object of a kind for the comparison; `names_of_pods` are the pods of its side."""
    alike = {**ALIKE[""], **ALIKE.get(kind, {})}

    def leaf(text: str, path: str) -> str:
        if (form := alike.get(path)) and form.fullmatch(text):
            return "<any>"
        return names_of_pods.replace(without_duration(text, kind, path))

    def prepared(node: trees.Tree, path: str) -> Node:
        match node:
            case str():
                return leaf(node, path), node
            case list():
                return [prepared(member, f"{path}/*") for member in node]
            case dict():
                is_pod = trees.text_at(node, "kind") == "Pod" and trees.text_at(node, "uid") != ""
                return {
                    key: (pods.UID, str(member))
                    if is_pod and key == "uid"
                    else prepared(member, f"{path}/{key}".lstrip("/"))
                    for key, member in node.items()
                }

    return prepared(tree, "")


def without_duration(text: str, kind: str, path: str) -> str:
    """Return a text without the duration in it, if at this path the kubelet writes one."""
    message = _MESSAGES.get(kind, {}).get(path)
    return message[0].sub(message[1], text) if message else text


def canonical(node: Node) -> str:
    """Return a text that is the same for nodes that are alike."""
    match node:
        case tuple():
            return repr(node[0])
        case list():
            return f"[{','.join(map(canonical, node))}]"
        case dict():
            return "{" + ",".join(f"{key!r}:{canonical(node[key])}" for key in sorted(node)) + "}"


def differences(former: Node, now: Node, path: str = "") -> Iterator[str]:
    """Yield the differences of two nodes: a line each, with the path and both values."""
    match former, now:
        case tuple(), tuple():
            if former[0] != now[0]:
                yield f"{path or 'the result'}: {former[1]!r} -> {now[1]!r}"
        case dict(), dict():
            yield from _differences_of_members(former, now, lambda key: f"{path}.{key}".lstrip("."))
        case list(), list():
            yield from _differences_of_lists(former, now, path)
        case _:
            yield f"{path or 'the result'}: {_text(former)} -> {_text(now)}"


def _differences_of_members(
    former: Mapping[str, Node], now: Mapping[str, Node], below: Callable[[str], str]
) -> Iterator[str]:
    for key in former:
        if key not in now:
            yield f"{below(key)} is gone, it was {_text(former[key])}"
        else:
            yield from differences(former[key], now[key], below(key))
    for key in now:
        if key not in former:
            yield f"{below(key)} is new: {_text(now[key])}"


def _differences_of_lists(former: list[Node], now: list[Node], path: str) -> Iterator[str]:
    """Compare lists by the names or types of their members if all have one of their own; else by position."""
    former_names, now_names = _names(former), _names(now)
    if not former_names or not now_names:
        former_names, now_names = list(map(str, range(len(former)))), list(map(str, range(len(now))))
    before, after = dict(zip(former_names, former, strict=True)), dict(zip(now_names, now, strict=True))
    differences_of_members = list(_differences_of_members(before, after, lambda name: f"{path}[{name}]"))
    yield from differences_of_members
    if not differences_of_members and former_names != now_names:
        yield f"{path}: the order is another one"


def _names(members: list[Node]) -> list[str]:
    for key in ("name", "type"):
        names = [
            value[0] for member in members if isinstance(member, dict) and isinstance(value := member.get(key), tuple)
        ]
        if names and len(set(names)) == len(members):
            return names
    return []


def _text(node: Node) -> str:
    match node:
        case tuple():
            return repr(node[1])
        case list():
            return "[" + ", ".join(map(_text, node)) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {_text(member)}" for key, member in node.items()) + "}"
