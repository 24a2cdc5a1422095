"""Rechecks of all recorded worlds: what changes by itself is alike, and every other change is seen."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support import later_worlds
from tarsy.engine.comparison import tables
from tarsy.evaluation import worlds

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
FOLDERS = sorted(SCENARIOS.glob("*/world"))
IDS = [folder.parent.name for folder in FOLDERS]


def dice(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - it mixes, it guards nothing


@cache
def then(folder: Path) -> worlds.World:
    return worlds.load(folder, now=later_worlds.THEN)


@cache
def texts(folder: Path) -> later_worlds.Texts:
    return later_worlds.lists(then(folder)) | later_worlds.objects(then(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=IDS)
def test_natural_changes_and_pods_that_their_controllers_replaced_are_alike(folder: Path) -> None:
    chance = dice(folder.parent.name)
    now = later_worlds.later(folder, minutes=chance.randrange(2, 600), chance=chance)
    assert later_worlds.differences(texts(folder), later_worlds.lists(now) | later_worlds.objects(now)) == {}
    lists = later_worlds.lists(then(folder))
    assert later_worlds.differences(lists, later_worlds.lists(later_worlds.replaced(now, chance))) == {}


World: TypeAlias = worlds.World
Document: TypeAlias = dict[str, Any]
PODS, DEPLOYMENTS, SETS = ("", "v1", "pods"), ("apps", "v1", "deployments"), ("apps", "v1", "replicasets")
EVENTS, SECRETS, CRON_JOBS = ("", "v1", "events"), ("", "v1", "secrets"), ("batch", "v1", "cronjobs")


def rows_changed(
    world: World, key: tuple[str, str, str], change: Callable[[worlds.Row], worlds.Row | None]
) -> Iterator[World]:
    """The worlds with one row of a kind changed, of the namespaces that agents look into."""
    members = world.rows.get(key, ())
    for index, row in enumerate(members):
        if row.metadata["namespace"] not in later_worlds.SYSTEM and (changed := change(row)) is not None:
            yield replace(world, rows={**world.rows, key: [*members[:index], changed, *members[index + 1 :]]})


def in_object(change: Callable[[Document], object]) -> Callable[[worlds.Row], worlds.Row | None]:
    """A change of an object; None if it has nothing that could be changed."""

    def changed(row: worlds.Row) -> worlds.Row | None:
        document = copy.deepcopy(row.object)
        try:
            change(document)
        except (KeyError, IndexError, StopIteration):
            return None
        return row.model_copy(update={"object": document})

    return changed


def in_cell(number: int, value: object) -> Callable[[worlds.Row], worlds.Row]:
    return lambda row: row.model_copy(update={"cells": [*row.cells[:number], value, *row.cells[number + 1 :]]})


def container(document: Document) -> Document:
    first: Document = document["spec"]["containers"][0]
    return first


def state(document: Document, name: str) -> Document:
    statuses = document["status"]["containerStatuses"]
    states = (each for status in statuses for each in (status["state"], status["lastState"]))
    return next(each[name] for each in states if name in each)


SEEDS: Mapping[str, Callable[[World], Iterator[World]]] = {
    "environment": lambda world: rows_changed(
        world, PODS, in_object(lambda pod: container(pod).setdefault("env", []).append({"name": "MORE", "value": "1"}))
    ),
    "first restart": lambda world: (
        changed
        for changed in rows_changed(
            world, PODS, lambda row: in_cell(3, "3 (20s ago)")(row) if row.cells[3] == "0" else None
        )
    ),
    "new ReplicaSet": lambda world: (
        edited
        for row in world.rows.get(SETS, ())
        if row.metadata["namespace"] not in later_worlds.SYSTEM
        for edited in [with_row(world, SETS, renamed(row, row.metadata["name"], f"{row.metadata['name'][:-5]}bcdfg"))]
    ),
    "pod of a new ReplicaSet": lambda world: (
        edited
        for row in world.rows[PODS]
        if row.metadata["namespace"] not in later_worlds.SYSTEM and "pod-template-hash" in row.metadata["labels"]
        for former in [row.metadata["labels"]["pod-template-hash"]]
        for edited in [with_row(without(world, PODS, row), PODS, renamed(row, former, "bcdfghjkl"))]
    ),
    "one more pod": lambda world: (
        with_row(world, PODS, renamed(row, row.metadata["name"], f"{row.metadata['name'][:-5]}bcdfg"))
        for row in world.rows[PODS]
        if row.metadata["namespace"] not in later_worlds.SYSTEM
    ),
    "vanished pod": lambda world: (
        without(world, PODS, row)
        for row in world.rows[PODS]
        if row.metadata["namespace"] not in later_worlds.SYSTEM
    ),
    "new event": lambda world: (
        with_row(world, EVENTS, event)
        for row in world.rows.get(EVENTS, ())
        for event in [in_object(lambda event: event.update(reason="Evicted"))(in_cell(2, "Evicted")(row))]
        if event and row.metadata["namespace"] not in later_worlds.SYSTEM
    ),
    "new log line": lambda world: (
        replace(world, logs={**world.logs, key: replace(log, text=f"{log.text}2026-11-26T18:00:00Z panic: other\n")})
        for key, log in world.logs.items()
        if log.error is None and (log.text.endswith("\n") or not log.text)
    ),
    "last run of a CronJob, which had none, or has none": lambda world: rows_changed(
        world, CRON_JOBS, lambda row: in_cell(5, "<none>" if row.cells[5] != "<none>" else "3m")(row)
    ),
}  # fmt: skip


def renamed(row: worlds.Row, former: str, name: str) -> worlds.Row:
    return worlds.Row.model_validate_json(row.model_dump_json().replace(former, name))


WORLDS_PER_SEED = 2


def with_row(world: World, key: tuple[str, str, str], row: worlds.Row) -> World:
    return replace(world, rows={**world.rows, key: [*world.rows[key], row]})


def without(world: World, key: tuple[str, str, str], row: worlds.Row) -> World:
    return replace(world, rows={**world.rows, key: [each for each in world.rows[key] if each is not row]})


@pytest.mark.parametrize("seed", SEEDS)
def test_each_seeded_change_is_seen_in_the_results_that_show_it_beside_what_changes_by_itself(seed: str) -> None:
    chance = dice(seed)
    seen = 0
    for folder in chance.sample(FOLDERS, len(FOLDERS)):
        now = later_worlds.later(folder, minutes=chance.randrange(2, 600), chance=chance)
        if not (seeded := list(SEEDS[seed](now))):
            continue
        after, unchanged = (
            later_worlds.lists(world) | later_worlds.objects(world) for world in (chance.choice(seeded), now)
        )
        changed_reads = {read: text for read, text in texts(folder).items() if after.get(read) != unchanged.get(read)}
        assert changed_reads
        assert (
            changed_reads.keys()
            <= later_worlds.differences(changed_reads | later_worlds.lists(then(folder)), after).keys()
        )
        for read, text in changed_reads.items():
            assert later_worlds.differences({read: text}, after), read
        seen += 1
        if seen == WORLDS_PER_SEED:
            break
    assert seen


LEAVES = 12
"""Leaves of one object that are changed."""


def leaves(tree: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, member in members:
        yield from leaves(member, (*path, key))
    if not isinstance(tree, dict | list):
        yield path


MAY_CHANGE = re.compile(
    r"metadata/(resourceVersion|creationTimestamp)|status/conditions/\d+/last\w+Time"
    r"|status/(startTime|completionTime|lastScheduleTime|lastSuccessfulTime)"
    r"|status/(initC|c)ontainerStatuses/\d+/(restartCount|containerID|(state|lastState)/\w+/(\w+At|containerID))"
    r"|metadata/annotations/endpoints.kubernetes.io/last-change-trigger-time"
    r"|(spec/volumes/\d+|spec/(initC|c)ontainers/\d+/volumeMounts/\d+)/name|metadata/(uid|name)|status/podIPs?(/0/ip)?"
    r"|endpoints/\d+/targetRef/uid"
)
"""The paths at which an object may differ and be alike, if the value has the form."""


MAY_DIFFER = {("Event", "NAME"), ("Pod", "IP")}
"""The kinds and columns of tables in which cells may have any other value of the form."""


def other_value(value: object) -> object:
    """Another value of the form that the API server gives it."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str() if later := re.fullmatch(r"(\d{4}-\d\d-\d\dT)(\d\d)(:.*)", value):
            return f"{later[1]}{(int(later[2]) + 1) % 24:02}{later[3]}"
        case str():
            return f"{value[:-1]}{'1' if value[-1:] != '1' else '2'}"
    return "other"


@pytest.mark.parametrize("folder", FOLDERS[::6], ids=IDS[::6])
def test_every_other_value_of_every_object_counts(folder: Path) -> None:
    """Each leaf that no list names, of one object of each kind."""
    chance = dice(folder.parent.name)
    for rows in then(folder).rows.values():
        document = chance.choice(list(rows)).object
        if document["kind"] == "Event":
            continue
        paths = [path for path in leaves(document) if not MAY_CHANGE.fullmatch("/".join(map(str, path)))]
        for path in chance.sample(paths, min(LEAVES, len(paths))):
            changed = copy.deepcopy(document)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]  # type: ignore[index]
            parent[path[-1]] = other_value(parent[path[-1]])  # type: ignore[index]
            assert later_worlds.compared("object", later_worlds.dumped(document), later_worlds.dumped(changed)), path
            del parent[path[-1]]  # type: ignore[arg-type]
            assert later_worlds.compared("object", later_worlds.dumped(document), later_worlds.dumped(changed)), path


@pytest.mark.parametrize("folder", FOLDERS[1::6], ids=IDS[1::6])
def test_every_other_cell_of_every_table_counts(folder: Path) -> None:
    for read, text in later_worlds.lists(then(folder)).items():
        if read.form != "list" or read.tool == "pods_list":
            continue
        rows = tables.parse(text)
        row = dice(text).choice(rows)
        for column, cell in row.items():
            if column in ("AGE", "LAST SEEN", "FIRST SEEN", "COUNT") or (row["KIND"], column) in MAY_DIFFER:
                continue
            value = {"0": "7 (3m ago)"}.get(cell, "0") if column == "RESTARTS" else f"x{cell}"
            if column == "LAST SCHEDULE":
                value = "<none>" if cell != "<none>" else "3m"
            changed = later_worlds.rows_as_text([{**each, column: value} if each is row else each for each in rows])
            assert later_worlds.compared("list", text, changed), (read, column)


@pytest.mark.parametrize("folder", FOLDERS[2::6], ids=IDS[2::6])
def test_every_other_line_of_every_log_counts(folder: Path) -> None:
    for log in then(folder).logs.values():
        lines = log.text.splitlines() if log.error is None else []
        for index, line in enumerate(lines[-20:]):
            for changed in (f"{line}x", f"{line[:20]}0{line[20:]}", line[:-1]):
                now = "\n".join([*lines[:index], changed, *lines[index:]])
                assert changed in lines or later_worlds.compared("log", log.text, now) or not changed.strip(), changed
