"""Lists of investigations: what fits, what a search finds, how many are in which phase, and pages that miss nothing."""

from __future__ import annotations

import collections
import itertools
import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import exports, queue, stories
from tarsy.api.compat import history, statuses
from tarsy.api.investigations import reads
from tarsy.live import events_from_log, live_events
from tarsy.resources import investigations as kind
from tarsy.store.base import databases
from tarsy.store.reads import listing, phase_rules
from tarsy.transcript import admission
from tarsy.views import rows

ALL = listing.Query(namespaces={"tarsy": "uid of tarsy"})
PHASES: tuple[kind.Phase, ...] = get_args(kind.Phase)
KEYS: tuple[listing.Key, ...] = get_args(listing.Key)
BOUND = kind.ALERT_DATA_MAX
"""Characters of each text that are searched."""
LATER = timedelta(microseconds=1)


async def found(database: databases.Database, query: listing.Query) -> set[str]:
    """The names of all that fit."""
    page = await listing.page(database, query, limit=100)
    assert page.next is None
    assert page.exact
    return {row.name for row in page.items}


async def narrowed(database: databases.Database, search: str, query: listing.Query = ALL) -> listing.Query:
    """The query with that search."""
    understood = await listing.understood(database, search)
    assert understood
    return replace(query, search=understood)


async def searched(database: databases.Database, search: str) -> set[str]:
    return await found(database, await narrowed(database, search))


async def walk(database: databases.Database, query: listing.Query, *, limit: int = 2) -> list[listing.Listed]:
    """All that fit, page by page."""
    items: list[listing.Listed] = []
    after, first = None, True
    while after or first:
        page = await listing.page(database, query, after=after, limit=limit)
        items += page.items
        after, first = page.next, False
    return items


async def end(database: databases.Database, analysis: str = "", summary: str = "") -> None:
    """End the investigation that comes first."""
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(replace(stories.run_ended(final_analysis=analysis), summary=summary))


async def test_row_has_all_stages_of_its_chain_with_their_agents(database: databases.Database) -> None:
    replicas = {"name": "look", "agent": "KubernetesAgent", "replicas": 2}
    chain = queue.chain(stages=[{"name": "analysis", "agent": "KubernetesAgent"}, replicas])
    await queue.admit(database, chain=chain)
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started(), stories.started("one"))
    await journal.commit(stories.ended("one", outcome="Failed", error="x" * 900))
    await journal.commit(replace(stories.stage_ended(outcome="Failed"), message="x" * 900))

    (row,) = map(rows.row, (await listing.page(database, ALL, limit=25)).items)

    assert [(stage.name, stage.agents, stage.phase) for stage in row.stage_progress] == [
        ("analysis", ["KubernetesAgent"], "Failed"),
        ("look", ["KubernetesAgent"] * 2, "Pending"),
    ]
    failed, pending = row.stage_progress
    assert (failed.message, pending.message) == ("x" * 300, "")
    assert failed.seconds is not None
    assert (pending.started_at, pending.seconds) == (None, None)


async def test_row_identifies_its_alert(database: databases.Database) -> None:
    labels = {"alertname": "PodCrash", "namespace": "shop", "pod": "web-0", "container": "app", "x": "y" * 1000}
    source = {"type": "alertmanager", "generatorURL": "http://p.example/g", "externalURL": "http://a.example"}
    alert = json.dumps({"annotations": {"summary": "\n Pod \x1b[31mweb-0\x1b[0m dies\nsecond line", "other": "no"}})
    identity = await queue.admit(database, queue.subject(alertData=alert, labels=labels, source=source))

    (row,) = map(rows.row, (await listing.page(database, ALL, limit=25)).items)
    investigation = await reads.read(database, identity)

    assert row.labels == {"alertname": "PodCrash", "namespace": "shop", "pod": "web-0"}
    assert row.alert_summary == "Pod [31mweb-0 [0m dies"
    assert (investigation.labels, investigation.alert_summary) == (row.labels, row.alert_summary)
    assert (investigation.generator_url, investigation.external_url) == ("http://p.example/g", "http://a.example")


@pytest.mark.parametrize("refused", [False, True], ids=["that ran", "that was refused"])
async def test_row_has_the_same_facts_as_the_single_answer(database: databases.Database, refused: bool) -> None:
    subject = queue.subject("web-crash", severity="critical", author="me")
    if refused:
        chain = admission.Refusal(reason="ChainNotFound", message="No chain found")
        identity = await queue.admit(database, subject, chain=chain)
    else:
        identity = await queue.admit(database, subject)
        journal = await queue.opened(database, await queue.claimed(database))
        costly = replace(stories.CALL, cost=0.1 + 0.2)
        await journal.commit(stories.stage_started(), stories.started())
        await journal.commit(replace(stories.answers("it is the disk"), call=costly))
        await journal.commit(stories.ended(), stories.stage_ended())
        ended = stories.run_ended(final_analysis="it is the disk, because ...", summary="it is the disk")
        await journal.commit(replace(ended, grounds="Inspected"))
    (listed,) = (await listing.page(database, ALL, limit=25)).items
    row = rows.row(listed).model_dump(mode="json")
    answer = (await reads.read(database, identity)).model_dump(mode="json")
    exported = (await exports.whole(database, identity)).model_dump(mode="json")
    assert row == {name: answer[name] for name in row} == {name: exported[name] for name in row}
    assert (row["cost"], row["grounded"], row["summary"]) == (
        (None, None, "") if refused else ("0.3", True, "it is the disk")
    )
    assert row["ended_at"]
    assert answer["runs"][0]["ended_at"] == row["ended_at"]
    assert events_from_log.end_body(await queue.summary(database, identity))["ended_at"] == row["ended_at"]
    (*_, last) = await queue.log(database, identity)
    assert live_events.timestamp(last.at) == row["ended_at"], "the log's last entry is of the same time"
    assert (await history.read(database, identity)).completed_at_us == statuses.to_us(last.at)


STANDINGS = list(
    itertools.product(
        (None, *phase_rules.ENDED),
        ("queued", "running", "ended"),
        (None, "user"),
        (False, True),
        (None, "", "an entry of a newer kind"),
    )
)
"""Ending, state, cancel, suspend and unreadable: all that there can be, and what cannot."""
_STANDING = """
  WITH given AS (
    SELECT gen_random_uuid() AS id, given.*
    FROM unnest(CAST(:names AS text[]), CAST(:endings AS text[]), CAST(:states AS text[]), CAST(:cancels AS text[]),
      CAST(:suspends AS boolean[]), CAST(:unreadables AS text[]))
      AS given (name, ending, state, cancel, suspend, unreadable)
  ), known AS (
    INSERT INTO investigations (id, namespace, name, generation, alert_type, alert_data, ending, ended_at)
    SELECT id, 'tarsy', name, 1, 'kubernetes', 'x', ending, CASE WHEN ending IS NOT NULL THEN now() END FROM given
  ), worked AS (
    INSERT INTO work (investigation, state, cancel, suspend, unreadable)
    SELECT id, state, cancel, suspend, unreadable FROM given
  )
  INSERT INTO runs (investigation, number, kind, ending, ended_at)
  SELECT id, 0, 'investigation', ending, CASE WHEN ending IS NOT NULL THEN now() END FROM given
"""


async def test_a_phase_is_the_same_in_filters_in_numbers_and_in_the_status(database: databases.Database) -> None:
    endings, states, cancels, suspends, unreadables = (list(column) for column in zip(*STANDINGS, strict=True))
    names = [str(number) for number in range(len(STANDINGS))]
    await queue.execute(
        database,
        _STANDING,
        names=names,
        endings=endings,
        states=states,
        cancels=cancels,
        suspends=suspends,
        unreadables=unreadables,
    )
    listed = {row.name: (row.id, row.phase) for row in await walk(database, ALL, limit=100)}
    for name, (ending, state, cancel, suspend, unreadable) in zip(names, STANDINGS, strict=True):
        identity, phase = listed[name]
        assert phase == phase_rules.phase(
            ending=ending, state=state, cancel=cancel, suspend=suspend, unreadable=unreadable
        )
        if ending or state != "ended":
            assert phase == (await queue.summary(database, identity)).phase
    alone: list[tuple[kind.Phase, ...]] = [(phase,) for phase in PHASES]
    for phases in (*alone, ("Running", "Failed"), ("Queued", "Cancelling")):
        asked = {row.name for row in await walk(database, replace(ALL, phases=phases), limit=100)}
        assert asked == {name for name, (_, phase) in listed.items() if phase in phases}
        counts = (await listing.page(database, replace(ALL, phases=phases), limit=1)).counts
        assert counts == {phase: sum(listed_phase == phase for _, listed_phase in listed.values()) for phase in PHASES}


async def test_each_filter_leaves_those_that_fit_and_all_of_them_those_that_fit_all(
    database: databases.Database,
) -> None:
    subjects = [
        queue.subject("a", alertType="kubernetes", author="ann"),
        queue.subject("b", alertType="Disk", author="ann", severity="critical", chainRef={"name": "pod-crash"}),
        queue.subject("c", alertType="Disk", author="bob", chainRef={"name": "pod-crash"}),
    ]
    for subject in subjects:
        await queue.admit(database, subject)
    await queue.admit(
        database, queue.subject("d"), chain=admission.Refusal(reason="ChainNotFound", message="No chain found")
    )
    await queue.execute(database, "UPDATE investigations SET fingerprint = 'f-' || name")
    for name, grounds in (("a", "NothingInspected"), ("b", "Inspected"), ("c", "InspectedWithGaps")):
        change = "UPDATE runs SET grounds = :grounds FROM investigations WHERE id = investigation AND name = :name"
        await queue.execute(database, change, name=name, grounds=grounds)
    items = {row.name: row for row in await walk(database, replace(ALL, key="name", descending=False))}
    assert list(items) == ["a", "b", "c", "d"]
    assert (items["d"].phase, items["d"].chain_name, items["d"].progress) == ("Failed", None, "0/0")
    assert items["d"].message == "No chain found"
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"alert_type": "Disk"}, {"b", "c"}),
        ({"author": "ann"}, {"a", "b"}),
        ({"chain": "pod-crash"}, {"a", "b", "c"}),
        ({"fingerprint": "f-b"}, {"b"}),
        ({"severity": "critical"}, {"b"}),
        ({"name": "c"}, {"c"}),
        ({"name": "c", "severity": "critical"}, set()),
        ({"phases": ("Failed",)}, {"d"}),
        ({"grounded": True}, {"b", "c"}),
        ({"grounded": False}, {"a"}),
        ({"grounded": True, "search": listing.Search(text="web 0"), "author": "ann"}, {"b"}),
        ({"grounded": True, "search": listing.Search(text="web 0", phrases=("web 0",)), "key": "name"}, {"b", "c"}),
        ({"since": items["b"].admitted_at}, {"b", "c", "d"}),
        ({"since": items["b"].admitted_at + LATER}, {"c", "d"}),
        ({"until": items["b"].admitted_at}, {"a"}),
        ({"search": listing.Search(text="restarts")}, {"a", "b", "c", "d"}),
        ({"alert_type": "Disk", "author": "ann"}, {"b"}),
        ({"alert_type": "Disk", "author": "ann", "phases": ("Queued",), "chain": "pod-crash", "fingerprint": "f-b",
          "since": items["a"].admitted_at, "until": items["d"].admitted_at,
          "search": listing.Search(text="web 0")}, {"b"}),
        ({"author": "nobody"}, set()),
    ]  # fmt: skip
    for fields, names in cases:
        assert await found(database, replace(ALL, **fields)) == names, fields


async def test_list_hides_purged_investigations_and_those_of_a_former_namespace(database: databases.Database) -> None:
    for name in ("before-uids", "ours", "old", "purged", "other"):
        await queue.admit(database, queue.subject(name))
    for change in (
        "UPDATE investigations SET namespace_uid = 'uid of tarsy' WHERE name = 'ours'",
        "UPDATE investigations SET namespace_uid = 'another' WHERE name = 'old'",
        "UPDATE investigations SET purged_at = now() WHERE name = 'purged'",
        "UPDATE investigations SET namespace = 'other' WHERE name = 'other'",
    ):
        await queue.execute(database, change)
    assert await found(database, ALL) == {"before-uids", "ours"}
    assert await searched(database, "restarts") == {"before-uids", "ours"}
    assert sum((await listing.page(database, ALL, limit=1)).counts.values()) == 2


TEXT = """shop/web-0 was OOMKilled (exit code 137); see https://runbooks.example.com/oom?pod=web-0#top, mail a.b@c.io
{"pod":"cart-7d4b9c6f5-x2x9z","host":"db_1.shop.svc","rate":-1.5e3} Größe 東京 back-off"""
FOUND = (
    *("web", "WEB", "shop", "web-0", "shop/web-0", "oomkilled", "OOMKilled", "137", "code exit", '"exit code"'),
    *('"exit code 137"', "runbooks.example.com", "oom", "top", "a.b@c.io", "cart", "7d4b9c6f5"),
    *('"cart-7d4b9c6f5-x2x9z"', "db_1", '"db_1.shop.svc"', "svc", "1", "5e3", "größe", "GRÖßE", "東京"),
    *('"shop web 0"', 'web "exit code" oom', '"web', 'OOMKilled or', "-web", "!web & (oom | shop)", "web:*"),
)  # fmt: skip
NOT_FOUND = ('"code exit"', "nowhere", "web nowhere", '"web 137"', "web or nowhere", "we", "webs", '"web-0" "0 web"')


async def test_search_finds_parts_of_names_and_quoted_words_only_in_sequence(database: databases.Database) -> None:
    await queue.admit(database, queue.subject("it", alertData=TEXT + " or"))
    await queue.admit(database, queue.subject("another", alertData="nothing of this"))
    assert [search for search in FOUND if await searched(database, search) != {"it"}] == []
    assert [search for search in NOT_FOUND if await searched(database, search)] == []


PIECES = (
    *('"', " ", "-", "+", ".", "/", "~", "&", "<", ">", "_", "@", ":", ";", "'", "\\", "|", "!", "(", ")", "*", "#"),
    *("\n", "or", "OR", "not", "1", "1e5", "-1", "a", "web", "shop/web-0", "a@b.io", "http://a.b/c?d", "&amp;", "<b x"),
    *("²", "é", "İ", "\N{ZERO WIDTH JOINER}", "นี้", "東京", "💥", "\u00a0"),
)
"""Pieces that the parsers of texts, of searches and of this product may take for something else."""
SEARCHES = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
)
_HAS_WORDS = "SELECT tarsy_words(:said) <> ''"
_SAYS = "UPDATE investigations SET words = tarsy_words(:said)"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(text=SEARCHES)
async def test_any_text_with_a_word_finds_its_alert_with_and_without_quotes(
    database: databases.Database, text: str
) -> None:
    if not (await listing.page(database, ALL, limit=1)).items:
        await queue.admit(database, queue.subject("it"))
    async with database.begin() as connection:
        has_words = await connection.scalar(sqlalchemy.text(_HAS_WORDS), {"said": text})
        await connection.execute(sqlalchemy.text(_SAYS), {"said": f"before {text} after"})
    for search in (text, f'"{text}"', f'"{text}'):
        assert ((await listing.understood(database, search)) is not None) == has_words
        if has_words:
            assert await searched(database, search) == {"it"}
            assert await searched(database, f"{search} nowhere") == set()


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("key", KEYS)
async def test_search_finds_a_phrase_on_a_later_page_although_each_page_reads_few_texts(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch, key: listing.Key, descending: bool
) -> None:
    monkeypatch.setattr(listing, "LOOKED_INTO", 3)
    turned = {"a3", "b1", "b4", "b8"}
    names = {f"{letter}{number}" for letter in "ab" for number in range(10)}
    await seed(database, names)
    await queue.execute(database, _TURN_ROUND, names=sorted(turned))
    phases: tuple[tuple[kind.Phase, ...], ...] = ((), ("Queued",), ("Completed",), ("Queued", "Completed"))
    for asked_for in phases:
        query = replace(ALL, key=key, descending=descending, phases=asked_for)
        order = [row.name for row in (await listing.page(database, query, limit=100)).items]
        for phrase, those in (("it restarts", names - turned), ("restarts it", turned), ("it it", set[str]())):
            search = await narrowed(database, f'"{phrase}"', query)
            assert [row.name for row in await walk(database, search)] == [name for name in order if name in those]
            page = await listing.page(database, search, limit=100)
            assert (page.exact, sum(page.counts.values()) <= 3, len(page.items) <= 3) == (False, True, True)
    monkeypatch.setattr(listing, "LOOKED_INTO", len(names) + 1)
    page = await listing.page(database, search, limit=100)
    assert (page.exact, page.next, sum(page.counts.values())) == (True, None, 0)


_TURN_ROUND = "UPDATE investigations SET words = tarsy_words('restarts it') WHERE name = ANY(:names)"


async def test_alert_analysis_and_summary_are_searched_each_as_far_as_its_bound(database: databases.Database) -> None:
    far = "x " * (BOUND // 2)
    await queue.admit(database, queue.subject("it", alertData=f"alert {far}"[:BOUND]))
    await end(database, analysis=f"analysis {far} beyond", summary=f"summary {far} beyond")
    for word in ("alert", "analysis", "summary"):
        assert await searched(database, word) == {"it"}
    assert await searched(database, "beyond") == set()


def hostile() -> Sequence[str]:
    """Texts of 64 Ki characters that are the worst for an index of words."""
    dice = random.Random(1)  # noqa: S311 - any words
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    wide = "".join(chr(code) for code in range(0x20000, 0x20000 + 3000))

    def words(alphabet: str, length: int) -> str:
        return " ".join("".join(dice.choices(alphabet, k=length)) for _ in range(BOUND // (length + 1)))

    texts = (
        words(letters, 3),
        words(wide, 2),
        " ".join(f"http://{n:x}.example.com/a/b-{n}?c=d_{n}&e" for n in range(BOUND // 20)),
        " ".join(f"{n:x}.a-b+c@d-{n}.example.com" for n in range(BOUND // 20)),
        "a" * BOUND,
        "\U00020000" * BOUND,
        "\\:&|!<->()*'\"" * (BOUND // 16),
        "-1e" * (BOUND // 3),
    )
    return [text[:BOUND] for text in texts]


async def test_no_text_keeps_an_investigation_from_being_admitted_or_ended(database: databases.Database) -> None:
    texts = hostile()
    for number, text in enumerate(texts):
        await queue.admit(database, queue.subject(f"hostile-{number}", alertData=text))
        await end(database, analysis=text, summary=text)
    assert len(await found(database, replace(ALL, phases=("Completed",)))) == len(texts)


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("key", KEYS)
async def test_pages_miss_nothing_and_tell_nothing_twice_while_others_come_end_and_go(
    database: databases.Database, key: listing.Key, descending: bool
) -> None:
    still = {f"still-{number}" for number in range(9)}
    await seed(database, still)
    search = listing.Search(text="restarts", phrases=("it restarts",) if key == "name" else ())
    query = replace(ALL, key=key, descending=descending, search=search if key in ("author", "name") else None)
    order = [row.name for row in (await listing.page(database, query, limit=100)).items]
    listed_names: list[str] = []
    after, first, dice = None, True, random.Random(2)  # noqa: S311 - any order
    while (after or first) and len(listed_names) < 100:
        page = await listing.page(database, query, after=after, limit=2)
        listed_names += [row.name for row in page.items]
        after, first = page.next, False
        if dice.random() < 0.7:
            new = f"new-{uuid.uuid4()}"
            await seed(database, {f"{new}-{fate}" for fate in ("ends", "goes", "stays")}, moving=True)
            await queue.execute(database, _END, name=f"{new}-ends")
            await queue.execute(database, _PURGE, name=f"{new}-goes")
    assert [name for name in listed_names if name in still] == order


_END = "UPDATE investigations SET ended_at = clock_timestamp(), ending = 'Failed' WHERE name = :name"
_PURGE = "UPDATE investigations SET purged_at = clock_timestamp(), words = NULL WHERE name = :name"
_SEED = """
  WITH given AS (SELECT gen_random_uuid() AS id, name FROM unnest(CAST(:names AS text[])) AS name), known AS (
    INSERT INTO investigations (id, namespace, name, generation, author, alert_type, chain_name, alert_data, words,
      admitted_at, ended_at, ending)
    SELECT id, 'tarsy', name, 1, 'a' || ascii(right(name, 1)) % 3, 't' || ascii(right(name, 1)) % 2,
      CASE WHEN ascii(right(name, 1)) % 4 > 0 THEN 'c' END, 'it restarts', tarsy_words('it restarts'),
      clock_timestamp(), CASE WHEN NOT :moving AND ascii(right(name, 1)) % 3 > 0 THEN clock_timestamp() END,
      CASE WHEN NOT :moving AND ascii(right(name, 1)) % 3 > 0 THEN 'Completed' END
    FROM given
  ), worked AS (
    INSERT INTO work (investigation, state) SELECT id, 'queued' FROM given
  )
  INSERT INTO runs (investigation, number, kind) SELECT id, 0, 'investigation' FROM given
"""


async def seed(database: databases.Database, names: set[str], *, moving: bool = False) -> None:
    """Investigations with sort keys that are often the same; those that are not `moving` may have ended."""
    await queue.execute(database, _SEED, names=sorted(names), moving=moving)


TEAMS = {f"team-{number}": f"uid of team-{number}" for number in range(5)}


async def scattered(database: databases.Database) -> None:
    """Forty investigations of namespaces with none to many, with sort keys that are often the same."""
    await seed(database, {f"{number:02}-{number % 7}" for number in range(40)})
    await queue.execute(
        database,
        """
        UPDATE investigations SET
          namespace = 'team-' || width_bucket(CAST(left(name, 2) AS integer), ARRAY[1, 3, 13]),
          admitted_at = date_trunc('hour', admitted_at) - CAST(left(name, 2) AS integer) % 6 * interval '1 s',
          severity = CASE WHEN CAST(left(name, 2) AS integer) % 3 = 0 THEN 'critical' END
        """,
    )
    await queue.execute(
        database,
        "UPDATE investigations SET namespace_uid = CASE WHEN right(name, 1) <> '3' THEN 'uid of ' || namespace END",
    )


@pytest.mark.parametrize("search", [None, "restarts", '"it restarts"', "nowhere"])
async def test_a_list_of_several_namespaces_is_their_lists_merged(
    database: databases.Database, search: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "NEXT", 5)  # so that a namespace has more than are read before the index of words
    monkeypatch.setattr(listing, "NEXT_OF_EACH", 4)
    await scattered(database)
    of_all = replace(ALL, namespaces=TEAMS)
    if search:
        of_all = await narrowed(database, search, of_all)
    some: dict[str, Any] = {"severity": "critical", "phases": ("Queued", "Completed")}
    for key, filters in [*((key, {}) for key in KEYS), ("admitted_at", some), ("name", some)]:
        query = replace(of_all, key=key, descending=key != "author" and "severity" not in filters, **filters)
        merged: list[listing.Listed] = []
        counts = collections.Counter[kind.Phase]()
        for team, uid in TEAMS.items():
            page = await listing.page(database, replace(query, namespaces={team: uid}), limit=100)
            merged += page.items
            counts.update(page.counts)
        walked = await walk(database, query, limit=3)
        assert collections.Counter(row.id for row in walked) == {row.id: 1 for row in merged}
        keys = [(position(row, key), row.id) for row in walked]
        assert keys == sorted(keys, reverse=query.descending)
        skipped = await listing.page(database, query, skip=5, limit=9)
        assert list(skipped.items) == walked[5:14]
        assert skipped.counts == counts


def position(row: listing.Listed, key: listing.Key) -> Any:
    value = row.position(key).value
    return (value is None, value or 0) if key == "ended_at" else value


async def test_a_list_has_nothing_of_an_earlier_namespace_of_any_of_its_names(database: databases.Database) -> None:
    await scattered(database)
    of_all = replace(ALL, namespaces=TEAMS)
    assert len(await found(database, of_all)) == 40
    await queue.execute(database, "UPDATE investigations SET namespace_uid = 'uid of ' || namespace")
    left = {row.name for row in await walk(database, of_all) if row.namespace != "team-2"}
    assert await found(database, replace(of_all, namespaces=TEAMS | {"team-2": "uid of a later one"})) == left
    assert 0 < len(left) < 40
