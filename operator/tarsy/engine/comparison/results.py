"""The comparison of what tools said with what they say now: one pure function over all results of a recheck.

Alike is only what the lists of `objects`, `tables` and `log_lines` name. A result that cannot be read in its form is
alike only if it is the same text. Events and lines of logs may vanish, because clusters forget them; none may appear.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tarsy.engine.comparison import log_lines, objects, pods, tables, trees
from tarsy.masking import markers
from tarsy.transcript import excerpts

Form: TypeAlias = Literal["object", "list", "events", "log"]
"""The form of a tool's results: YAML of one object; a table, or YAML of several objects; YAML of events; lines."""

DIFFERENCES_MAX = 20
"""The differences of one result that are named."""
DIFFERENCE_MAX = 400
"""The limit of a difference, in characters."""
_EVENTS = "# The following events (YAML format) were found:\n"
_NO_EVENTS = "# No events found"


@dataclass(frozen=True, kw_only=True)
class Reread:
    """A result of an earlier call, and that of the same call now; both masked and whole."""

    form: Form
    former: str
    now: str
    has_fingerprints: bool
    """Whether the markers of its server have fingerprints, in both with the same key."""


def differences(rereads: Sequence[Reread]) -> list[list[str]]:
    """Return the differences of each result, a line each; [] if it is alike."""
    former, now = (
        _Side([_parse(text, reread.form) for text, reread in zip(texts, rereads, strict=True)])
        for texts in ([reread.former for reread in rereads], [reread.now for reread in rereads])
    )
    compared = (
        list(itertools.islice(_differences(reread, former, now, index), DIFFERENCES_MAX))
        for index, reread in enumerate(rereads)
    )
    return [[excerpts.one_line(line, DIFFERENCE_MAX) for line in lines] for lines in compared]


_Rows: TypeAlias = "list[dict[str, str]]"
_Parsed: TypeAlias = "_Table | trees.Tree | None"


@dataclass(frozen=True)
class _Table:
    rows: _Rows


@dataclass
class _Side:
    """The results of one time, and the pods that they name."""

    results: Sequence[_Parsed]
    pods: pods.Pods = field(init=False, default_factory=pods.Pods)

    def __post_init__(self) -> None:
        for result in self.results:
            for row in result.rows if isinstance(result, _Table) else ():
                if row["KIND"] == "Pod":
                    self.pods.add_row(row["NAME"], address=row.get("IP", ""), labels=row.get("LABELS", ""))
                elif row["KIND"] == "Node":
                    self.pods.add_node(row.get(column, "") for column in ("INTERNAL-IP", "EXTERNAL-IP"))
            for tree in _trees(result):
                if trees.text_at(tree, "kind") == "Pod":
                    self.pods.add_object(tree)
                elif trees.text_at(tree, "kind") == "Node":
                    self.pods.add_node(_addresses_of_node(tree))
        for result in self.results:  # the pods of events are known better from their objects and rows
            for name, message in _events_of(result):
                self.pods.add_names([name])
                self.pods.add_message(message)


def _trees(result: _Parsed) -> Sequence[trees.Tree]:
    match result:
        case dict():
            return [result]
        case list():
            return result
    return []


def _addresses_of_node(node: trees.Tree) -> Iterator[str]:
    status = node.get("status") if isinstance(node, dict) else None
    addresses = status.get("addresses") if isinstance(status, dict) else None
    for address in addresses if isinstance(addresses, list) else ():
        yield trees.text_at(address, "address")


def _events_of(result: _Parsed) -> Iterator[tuple[str, str]]:
    """Yield the pod of each event, "" if it is on another object, and its message."""
    for row in result.rows if isinstance(result, _Table) else ():
        kind, _, name = row.get("OBJECT", "").partition("/")
        yield name if kind == "pod" else "", row.get("MESSAGE", "")
    for event in _trees(result):
        for keys in (("InvolvedObject", "Kind", "Name", "Message"), ("involvedObject", "kind", "name", "message")):
            is_on_pod = trees.text_at(event, *keys[:2]) == "Pod"
            yield trees.text_at(event, keys[0], keys[2]) if is_on_pod else "", trees.text_at(event, keys[3])


def _parse(text: str, form: Form) -> _Parsed:
    """Return a result by its form; None if it has another one."""
    try:
        match form:
            case "log":
                return None
            case "events":
                if text.strip() == _NO_EVENTS:
                    return []
                events = trees.parse(text.removeprefix(_EVENTS)) if text.startswith(_EVENTS) else None
                return events if isinstance(events, list) else None
            case "object":
                tree = trees.parse(text)
                return tree if isinstance(tree, dict) else None
            case "list":
                if text.lstrip().startswith(("- ", "[")):
                    tree = trees.parse(text)
                    return tree if isinstance(tree, list) else None
                return _Table(tables.parse(text))
    except ValueError:
        return None


def _differences(reread: Reread, former: _Side, now: _Side, index: int) -> Iterator[str]:
    if any(_hides(text, has_fingerprints=reread.has_fingerprints) for text in (reread.former, reread.now)):
        yield "it has values that are masked, so it cannot be compared"
        return
    before, after = former.results[index], now.results[index]
    if reread.form == "log":
        lines = log_lines.templates(reread.former, former.pods), log_lines.templates(reread.now, now.pods)
        yield from _new_lines(*lines)
    elif before is None or after is None:
        if former.pods.replace(reread.former) != now.pods.replace(reread.now):
            yield f"the result: {reread.former!r} -> {reread.now!r}"
    elif reread.form == "events":
        events = (_events(_trees(result), side.pods) for result, side in ((before, former), (after, now)))
        yield from _new_events(*events)
    elif reread.form == "object":
        ((tree_before,), (tree_after,)) = _trees(before), _trees(after)
        yield from objects.differences(
            objects.prepare(tree_before, trees.text_at(tree_before, "kind"), former.pods),
            objects.prepare(tree_after, trees.text_at(tree_after, "kind"), now.pods),
        )
    else:
        yield from _differences_of_collections(list(_members(before, former.pods)), list(_members(after, now.pods)))


def _hides(text: str, *, has_fingerprints: bool) -> bool:
    """Return whether a text has masked values that cannot be compared."""
    if "[withheld: " in text:
        return True
    if "[MASKED:" not in text:
        return False
    matches = list(markers.MARKER.finditer(text.encode("utf-8", "surrogatepass")))
    return not has_fingerprints or not all(match[1] for match in matches) or len(matches) != text.count("[MASKED:")


@dataclass(frozen=True)
class _Event:
    """An event, and the whole name of its object."""

    canonical: str
    subject: str
    text: str


def _new_lines(former: Iterable[tuple[str, str]], now: Iterable[tuple[str, str]]) -> Iterator[str]:
    templates = {template for template, _ in former}
    for template, line in now:
        if template not in templates:
            templates.add(template)
            yield f"a new line: {line}"


def _new_events(former: Iterable[_Event], now: Iterable[_Event]) -> Iterator[str]:
    """Yield the events that are new, or stand at more objects than then, such as one more pod of a Deployment."""
    counts = Counter(canonical for canonical, _ in {(event.canonical, event.subject) for event in former})
    subjects: dict[str, set[str]] = defaultdict(set)
    for event in now:
        names = subjects[event.canonical]
        if event.subject not in names:
            names.add(event.subject)
            if len(names) > counts[event.canonical]:
                yield f"a new event: {event.text}"


def _events(events: Sequence[trees.Tree], names_of_pods: pods.Pods) -> Iterator[_Event]:
    for event in events:
        prepared = objects.prepare(event, "Event", names_of_pods)
        subject = " ".join(trees.text_at(event, "InvolvedObject", key) for key in ("Kind", "Name"))
        words = [trees.text_at(event, "Type"), trees.text_at(event, "Reason"), subject, trees.text_at(event, "Message")]
        yield _Event(objects.canonical(prepared), subject, " ".join(filter(None, words)))


@dataclass(frozen=True)
class _Member:
    """An object of a list, or a row of a table."""

    kind: str
    name: str
    """Its kind, namespace and name, with `*` for the random end of a pod's name."""
    node: objects.Node
    canonical: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "canonical", objects.canonical(self.node))


def _members(result: _Table | trees.Tree, names_of_pods: pods.Pods) -> Iterator[_Member]:
    if isinstance(result, _Table):
        for row in result.rows:
            identity = [row["KIND"], row.get("NAMESPACE", ""), names_of_pods.replace(row["NAME"])]
            yield _Member(row["KIND"], " ".join(filter(None, identity)), tables.prepare(row, names_of_pods))
        return
    for tree in _trees(result):
        kind = trees.text_at(tree, "kind")
        identity = [
            kind,
            trees.text_at(tree, "metadata", "namespace"),
            names_of_pods.replace(trees.text_at(tree, "metadata", "name")),
        ]
        yield _Member(kind, " ".join(filter(None, identity)), objects.prepare(tree, kind, names_of_pods))


def _differences_of_collections(former: list[_Member], now: list[_Member]) -> Iterator[str]:
    """Compare lists as collections: each member needs one that is alike. Events may vanish, as in their own list."""
    events = [[member for member in members if member.kind == "Event"] for members in (former, now)]
    yield from _new_events(*([_event_of(member) for member in members] for members in events))
    groups = [_grouped(member for member in members if member.kind != "Event") for members in (former, now)]
    for name in dict.fromkeys(itertools.chain(*groups)):
        before, after = (group.get(name, []) for group in groups)
        if len(before) != len(after):
            yield f"{name}: {len(after) or 'none'} instead of {len(before) or 'none'}"
        for member, successor in zip(_without_alike(before, after), _without_alike(after, before), strict=False):
            for difference in objects.differences(member.node, successor.node):
                yield f"{name}: {difference}"


def _grouped(members: Iterable[_Member]) -> dict[str, list[_Member]]:
    groups: dict[str, list[_Member]] = {}
    for member in members:
        groups.setdefault(member.name, []).append(member)
    return groups


def _without_alike(members: Sequence[_Member], others: Sequence[_Member]) -> Iterator[_Member]:
    """Yield the members that have none alike, one for each, among the others."""
    left = Counter(other.canonical for other in others)
    for member in members:
        if left[member.canonical]:
            left[member.canonical] -= 1
        else:
            yield member


def _event_of(member: _Member) -> _Event:
    node = member.node
    assert isinstance(node, dict)  # noqa: S101 - it is an object or a row
    keys = ("TYPE", "REASON", "OBJECT", "MESSAGE", "type", "reason", "message")
    text = " ".join(leaf[1] for key in keys if isinstance(leaf := node.get(key), tuple))
    involved = node.get("involvedObject", node.get("regarding", {}))
    name = node.get("OBJECT") or (involved.get("name") if isinstance(involved, dict) else None)
    return _Event(member.canonical, name[1] if isinstance(name, tuple) else "", text)
