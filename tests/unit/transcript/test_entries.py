"""How entries are stored: what is written comes back, for ever; and what cannot be read is said and never raised.

`recorded/shapes.json` holds a digest of each stored shape by its version, `recorded/entries-v1.json` and the like rows
as they were written since some kinds came into that version. All are only ever added to.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest
from support.entry_samples import ASKS, RESULTS, SAMPLES, STATE, TOOLS
from tarsy.resources import chains
from tarsy.transcript import entries, entry_versions, messages, record, timeline

RECORDED = Path(__file__).parents[1] / "recorded"


def columns(entry: entries.Entry) -> dict[str, Any]:
    """Return the values of the log's columns that say where an entry belongs."""
    return {
        "run": getattr(entry, "run", 3),
        "stage": getattr(entry, "stage", "look"),
        "execution": getattr(entry, "execution", ""),
    }


def decoded(stored: entry_versions.Stored, entry: entries.Entry) -> entries.Entry | entries.Unreadable:
    return entry_versions.decode(stored, **columns(entry))


def test_every_entry_kind_has_a_sample() -> None:
    assert {type(entry).__name__ for entry in SAMPLES.values()} == entry_versions.VERSIONS.keys()


@pytest.mark.parametrize("entry", SAMPLES.values(), ids=SAMPLES)
def test_stored_entry_comes_back_as_it_was(entry: entries.Entry) -> None:
    stored = entry_versions.encode(entry)
    assert (stored.kind, stored.version) == (type(entry).__name__, entry_versions.VERSIONS[type(entry).__name__])
    assert decoded(stored, entry) == entry


@pytest.mark.parametrize("name", ["ExecutionStarted", "Answered"])
def test_key_that_is_no_unicode_comes_back_as_it_was(name: str) -> None:
    odd = {"\ud83d": 1}
    entry = SAMPLES[name]
    if isinstance(entry, entries.Answered):
        entry = replace(entry, messages=(replace(ASKS, provider_state=replace(STATE, data=odd)),))
    elif isinstance(entry, entries.ExecutionStarted):
        entry = replace(entry, tools=(replace(TOOLS[0], parameters=odd),))
    assert decoded(entry_versions.encode(entry), entry) == entry


@pytest.mark.parametrize("entry", SAMPLES.values(), ids=SAMPLES)
def test_a_body_is_json_that_postgres_can_take_apart(entry: entries.Entry) -> None:
    stored = entry_versions.encode(entry)
    stored.body.encode()
    assert all(messages.storable(text) == text for text in strings(json.loads(stored.body)))
    assert not {"run", "stage", "execution", "final_analysis"} & json.loads(stored.body).keys(), "they are columns"
    if stored.opaque is not None:
        assert stored.opaque.isascii(), "what Postgres' UTF-8 cannot hold stays escaped"
        assert "\x00" not in stored.opaque


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                yield key
                yield from strings(inner)
        case list():
            for inner in value:
                yield from strings(inner)


@pytest.mark.parametrize(
    ("name", "opaque"),
    [
        ("ExecutionStarted", {"parameters"}),
        ("Answered", {"provider_states"}),
        ("Answered, a conclusion", None),
        ("ToolsAnswered", None),
        ("StageEnded", None),
    ],
)
def test_opaque_parts_are_those_alone_that_providers_and_servers_wrote(name: str, opaque: set[str] | None) -> None:
    stored = entry_versions.encode(SAMPLES[name])
    assert (None if stored.opaque is None else set(json.loads(stored.opaque))) == opaque


def test_the_final_analysis_is_stored_once_and_outside_the_body() -> None:
    entry = entries.RunEnded(ending="Completed", reason="StagesCompleted", final_analysis="It is out of memory.")
    stored = entry_versions.encode(entry)
    assert stored.final_analysis == "It is out of memory."
    assert "out of memory" not in stored.body + (stored.opaque or "")
    assert decoded(replace(stored, final_analysis=""), entry) == replace(entry, final_analysis="")


@pytest.mark.parametrize(
    ("kind", "version", "problem"),
    [
        ("Dreamt", 1, "its kind is unknown here"),
        ("Answered", 4, "version 3 is the newest that is known here"),
        ("RunEnded", 5, "version 4 is the newest that is known here"),
        ("StageStarted", 0, "version 1 is the newest that is known here"),
    ],
)
def test_entry_of_unknown_kind_or_newer_version_is_unreadable_and_reported_as_such(
    kind: str, version: int, problem: str
) -> None:
    stored = entry_versions.Stored(kind=kind, version=version, body="not even JSON")
    decoded_entry = entry_versions.decode(stored, run=0, stage="look", execution="e0")
    assert decoded_entry == entries.Unreadable(kind=kind, version=version, problem=problem)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("StageStarted", {"body": "{"}, "JSONDecodeError: "),
        ("StageStarted", {"body": "{}"}, "clock: Field required"),
        ("StageStarted", {"body": "[]"}, "TypeError: "),
        ("StageStarted", {"body": '{"clock": "soon"}'}, "clock: Input should be a valid number"),
        ("StageStarted", {"body": '{"clock": 1, "colour": 2}'}, "colour: Unexpected keyword argument"),
        ("StageStarted", {"body": '{"clock": ' + "[" * 100_000}, "RecursionError: "),
        ("StageStarted", {"body": '{"clock": ' + "9" * 5_000 + "}"}, "ValueError: "),
        ("ExecutionEnded", {"body": '{"outcome": "Dreamt", "error": ""}'}, "outcome: Input should be 'Completed', "),
        ("Answered", {"opaque": "{"}, "JSONDecodeError: "),
        ("Answered", {"opaque": "5"}, "TypeError: "),
        ("Answered", {"opaque": '{"provider_states": 5}'}, "TypeError: "),
        ("Answered", {"opaque": '{"provider_states": [5]}'}, "messages.0.provider_state: "),
        ("Answered", {"body": '{"messages": "x"}'}, "TypeError: "),
        ("Answered", {"body": '{"turn": 0}'}, "KeyError: "),
        ("Unanswered", {"body": '{"turn": 0}'}, "failure: Field required"),
        ("ExecutionStarted", {"opaque": '{"parameters": [{}]}'}, "ValueError: "),
        ("ExecutionStarted", {"opaque": '{"parameters": [{}, 5]}'}, "tools.1.parameters: "),
    ],
)
def test_malformed_row_is_unreadable_and_its_problem_names_the_location(
    name: str, change: dict[str, Any], problem: str
) -> None:
    stored = replace(entry_versions.encode(SAMPLES[name]), **change)
    decoded_entry = decoded(stored, SAMPLES[name])
    assert isinstance(decoded_entry, entries.Unreadable)
    assert (decoded_entry.kind, decoded_entry.version) == (stored.kind, stored.version)
    assert decoded_entry.problem.startswith(f"it does not have its shape: {problem}")


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all objects in some JSON."""
    if isinstance(value, dict):
        yield at
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*at, index))


@pytest.mark.parametrize("name", ["ExecutionStarted", "Answered", "Unanswered", "ToolsAnswered"])
def test_entry_with_unknown_field_at_any_depth_is_unreadable(name: str) -> None:
    """A shape that has grown has another version; a row that says otherwise was not written by us."""
    stored = entry_versions.encode(SAMPLES[name])
    tried = 0
    for path in places(json.loads(stored.body)):
        body = json.loads(stored.body)
        inner = body
        for step in path:
            inner = inner[step]
        inner["colour"] = "blue"
        decoded_entry = decoded(replace(stored, body=json.dumps(body)), SAMPLES[name])
        assert isinstance(decoded_entry, entries.Unreadable), path
        tried += 1
    assert tried >= 3


JUNK: list[Any] = [None, True, -1, 10**400, 1e308, float("nan"), "", "\x00", "\ud83d", [], [[]], {}, {"": None}]


def spoilt(document: Any, source: random.Random) -> Any:
    """The document with junk somewhere, or with a member that is missing or unknown."""
    if not isinstance(document, dict | list) or not document or source.random() < 0.15:
        return source.choice(JUNK)
    changed = copy.copy(document)
    key = source.choice(list(document) if isinstance(document, dict) else range(len(document)))
    match source.randrange(4):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, dict):
            changed[source.choice(["colour", "run", "final_analysis"])] = source.choice(JUNK)
        case _:
            changed[key] = spoilt(document[key], source)
    return changed


@pytest.mark.parametrize("name", SAMPLES)
def test_row_with_any_content_is_decoded_or_unreadable_and_never_raises(name: str) -> None:
    source = random.Random(name)  # noqa: S311 - it mixes, it guards nothing
    entry = SAMPLES[name]
    stored = entry_versions.encode(entry)
    body, opaque = json.loads(stored.body), json.loads(stored.opaque or "null")
    unreadable = 0
    for _ in range(400):
        text = json.dumps(spoilt(body, source))
        cut = text[: source.randrange(40)]
        change: dict[str, Any] = source.choice(
            [{"body": text}, {"body": cut}, {"opaque": json.dumps(spoilt(opaque, source))}]
        )
        decoded_entry = decoded(replace(stored, **change), entry)
        logged = entries.Logged(seq=1, at=datetime.now(UTC), claim=1, entry=decoded_entry, **columns(entry))
        assert all(event.seq == 1 for event in timeline.fold([logged])), "its timeline can be told"
        if isinstance(decoded_entry, entries.Unreadable):
            unreadable += 1
            assert decoded_entry.problem
        else:
            assert type(decoded_entry) is type(entry)
    assert unreadable > 50


def test_full_results_stored_beside_the_log_are_not_in_it() -> None:
    entry = SAMPLES["ToolsAnswered, of which more is kept"]
    assert isinstance(entry, entries.ToolsAnswered)
    sent = replace(entry, runs=(replace(entry.runs[0], whole="all of it"),))
    assert entry_versions.encode(sent) == entry_versions.encode(entry)
    decoded_entry = decoded(entry_versions.encode(sent), entry)
    assert isinstance(decoded_entry, entries.ToolsAnswered)
    assert (decoded_entry, decoded_entry.runs[0].whole) == (sent, None)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("line\n[cut: 4 of 5000 characters are shown; ask for less]", 5000),
        ("a log that says [cut: 4 of 5000 characters are shown; ask for less]", None),
        ("line", None),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_result_cut_before_its_length_was_stored_has_the_length_of_its_last_line(
    text: str, length: int | None, version: int
) -> None:
    entry = SAMPLES["ToolsAnswered"]
    assert isinstance(entry, entries.ToolsAnswered)
    stored = entry_versions.encode(
        replace(entry, runs=(replace(entry.runs[0], result=replace(RESULTS[0], text=text)),))
    )
    body = json.loads(stored.body)
    for run in body["runs"]:
        del run["length"], run["excerpt"], run["summary"]
    old = replace(stored, version=version, body=json.dumps(body))
    decoded_entry = decoded(old, entry)
    assert isinstance(decoded_entry, entries.ToolsAnswered)
    assert decoded_entry.runs[0].length == length


def test_an_answer_that_holds_no_message_is_unreadable() -> None:
    stored = entry_versions.encode(SAMPLES["Answered"])
    body = {**json.loads(stored.body), "messages": []}
    decoded_entry = decoded(replace(stored, body=json.dumps(body), opaque=None), SAMPLES["Answered"])
    assert isinstance(decoded_entry, entries.Unreadable)
    assert decoded_entry.problem.startswith("it does not have its shape: messages: ")


@pytest.mark.parametrize("body", ['{"clock": 1, "a\\u0000b": 2}'])
def test_problem_of_unreadable_entry_is_storable_text(body: str) -> None:
    """It is: the work row says what it waits for."""
    decoded_entry = entry_versions.decode(
        entry_versions.Stored(kind="StageStarted", version=1, body=body), run=0, stage="look", execution=""
    )
    assert isinstance(decoded_entry, entries.Unreadable)
    assert decoded_entry.problem == messages.storable(decoded_entry.problem)


def test_build_id_depends_on_the_entry_and_chain_versions_it_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    build = record.build()
    assert (build, len(build)) == (record.build(), 16)
    monkeypatch.setitem(record.CHAIN_DECODERS, record.CHAIN_VERSION + 1, chains.Spec.model_validate)
    with_chains = record.build()
    grown = {**entry_versions.DECODERS, ("Answered", 99): entry_versions.DECODERS["Answered", 1]}
    monkeypatch.setattr(entry_versions, "DECODERS", grown)
    assert len({build, with_chains, record.build()}) == 3


# What follows is for ever.


def rows(version: int) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = json.loads((RECORDED / f"entries-v{version}.json").read_text(encoding="utf-8"))
    return samples


def stored_of(row: Mapping[str, Any]) -> entry_versions.Stored:
    return entry_versions.Stored(
        kind=row["kind"],
        version=row["version"],
        body=row["body"],
        opaque=row["opaque"],
        final_analysis=row["final_analysis"],
    )


def row_of(entry: entries.Entry) -> dict[str, Any]:
    stored = entry_versions.encode(entry)
    names = ("kind", "version", "body", "opaque", "final_analysis")
    return {**{name: getattr(stored, name) for name in names}, **columns(entry)}


RECORDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
WRITTEN = [(name, record) for record in RECORDS for name in rows(record)]


@pytest.mark.parametrize(("name", "record"), WRITTEN, ids=[f"{name}, {record}" for name, record in WRITTEN])
def test_rows_mean_for_ever_what_they_meant_when_they_were_written(name: str, record: int) -> None:
    row = rows(record)[name]
    entry = entry_versions.decode(stored_of(row), run=row["run"], stage=row["stage"], execution=row["execution"])
    assert entry == SAMPLES[name], "this is what is in the databases: keep a decoder of its version that reads it"


def test_recorded_rows_exist_for_each_kind_and_version() -> None:
    recorded = {(row["kind"], row["version"]) for record in RECORDS for row in rows(record).values()}
    assert recorded == set(entry_versions.DECODERS)
    assert {name for name, _ in WRITTEN} == SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_entries_are_written_as_they_were_recorded(name: str) -> None:
    entry = SAMPLES[name]
    kind = type(entry).__name__
    newest = [rows(record)[name] for record in RECORDS if name in rows(record)][-1]
    assert row_of(entry) == newest, f"what is written of {kind} has changed: it needs a new version"


def bare(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema without what is for people, and with its definitions where they are used."""
    if isinstance(node, list):
        return [bare(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**definitions[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    named = node.get("type") == "object" and "properties" in node
    relevant = {key: part for key, part in node.items() if key not in ("$defs", "title", "description")}
    return {
        key: {name: bare(inner, definitions) for name, inner in part.items()}
        if named and key == "properties"
        else bare(part, definitions)
        for key, part in relevant.items()
        if not key.startswith("x-kubernetes-")
    }


def digest(kind: Any) -> str:
    """16 hex digits of a stored shape, all that is nested in it included."""
    schema = pydantic.TypeAdapter(kind).json_schema()
    shape = bare(schema, schema.get("$defs", {}))
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


SHAPES: dict[str, dict[str, str]] = json.loads((RECORDED / "shapes.json").read_text(encoding="utf-8"))
CURRENT: dict[str, tuple[int, Any]] = {
    **{kind: (version, getattr(entries, kind)) for kind, version in entry_versions.VERSIONS.items()},
    "snapshot": (record.CHAIN_VERSION, chains.Spec),
}


def what_to_do(kind: str, version: int, hashed: str) -> str:
    """Return the advice to a developer who has changed a stored shape."""
    if str(version) not in SHAPES.get(kind, {}):
        return f"version {version} of {kind} is new: add its digest {hashed!r} to recorded/shapes.json, and rows of it"
    where = "record.CHAIN_VERSION" if kind == "snapshot" else f"entry_versions.VERSIONS[{kind!r}]"
    return (
        f"the stored shape of {kind} is another one than that of its version {version}, which is in databases. Raise "
        f"{where}, keep a decoder for version {version} (entry_versions.DECODERS, or record.CHAIN_DECODERS), record "
        f"rows of the new version beside entries-v1.json, and add the digest {hashed!r} under the new version to "
        "recorded/shapes.json. Never change what is there already."
    )


@pytest.mark.parametrize("kind", CURRENT)
def test_no_stored_shape_changes_without_a_new_version(kind: str) -> None:
    version, shape = CURRENT[kind]
    hashed = digest(shape)
    assert SHAPES.get(kind, {}).get(str(version)) == hashed, what_to_do(kind, version, hashed)


def test_every_version_that_was_ever_recorded_has_its_decoder() -> None:
    recorded = {(kind, int(version)) for kind, versions in SHAPES.items() for version in versions}
    lost = sorted(
        recorded - entry_versions.DECODERS.keys() - {("snapshot", version) for version in record.CHAIN_DECODERS}
    )
    assert lost == [], "rows of these versions are in databases"
    assert recorded.issuperset(entry_versions.DECODERS)
