"""Lists: the investigations of some namespaces that match a query, page by page and counted by phase.

A page is one statement, so that it shows one moment. The statement finds the investigations by narrow columns and
indexes only; their other columns are read for the page only. A page begins after the last investigation of the page
before, by sort key and id, so that new, ended or deleted investigations do not move others between pages.

By time of admission, the first investigations of each namespace are found by its index, then the first of these. One
index over all namespaces would have to be read to the end for a namespace with few investigations. The other sort keys
have no index: all rows of the namespaces are read at once, because those of one are on as many pages as those of all.

A search uses the index of words, which has no order. Reading the words of each investigation in order would take a
hundred times as long. But a frequent word occurs in one of the next investigations, so their words are read first.

The index does not have the order of words in a text. For a phrase it finds the investigations that have all its words,
and the text of each has to be read. A page reads a limited number of them, and the next page continues after these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy.resources import base, investigations
from tarsy.store.base import databases, visibility
from tarsy.store.reads import group_alerts, phase_rules, related, summaries, verdicts
from tarsy.transcript import entries

SUMMARY_MAX = 1024
"""Characters of a summary in a list."""
SEARCH_SECONDS = 5.0
"""The time limit of the search for one page."""

Key = Literal["admitted_at", "ended_at", "alert_type", "chain", "author", "name"]
"""The sort keys of a list; equal rows are sorted by their id."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The words that must occur in alert, analysis or summary."""

    text: str
    """All words of the search, in any order."""
    phrases: tuple[str, ...] = ()
    """The phrases of several consecutive words; `text` contains them too."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """The filters and the order of a list of investigations."""

    namespaces: Mapping[str, str]
    """The namespaces, each with its uid; investigations of an earlier namespace of that name are excluded."""
    phases: tuple[investigations.Phase, ...] = ()
    """The allowed phases; empty for all. They do not affect the counts by phase."""
    alert_type: str | None = None
    chain: str | None = None
    """The chain's name."""
    author: str | None = None
    fingerprint: str | None = None
    severity: str | None = None
    name: str | None = None
    """The name of the object."""
    grounded: bool | None = None
    """Whether the result is based on what agents inspected; one without a result matches neither."""
    feedback: verdicts.Verdict | Literal["none"] | None = None
    """The verdict of at least one person; "none" if nobody has given feedback."""
    since: datetime | None = None
    """Admitted at this time or later."""
    until: datetime | None = None
    """Admitted before this time."""
    search: Search | None = None
    deleted: bool = False
    """The deleted ones that are not purged; without it, none of them."""
    key: Key = "admitted_at"
    descending: bool = True


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of an investigation in a sorted list."""

    value: datetime | str | None
    """Its sort key: a time or a text; None if it has not ended and the key is `ended_at`."""
    id: UUID


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An investigation in a list."""

    id: UUID
    namespace: str
    name: str
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    severity: str | None
    fingerprint: str | None
    author: str
    chain_name: str | None
    phase: investigations.Phase
    progress: str
    """Ended stages of all stages."""
    current_stage: str | None
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    total_tokens: int
    cost: float | None
    """None if no model call had a price."""
    summary: str
    message: str
    grounded: bool | None
    """Whether its result is based on what agents inspected; None if there is no result."""
    duplicates: int
    alert_count: int | None
    """The number of its alerts; None if none has joined the first one."""
    previous: related.Previous | None
    retry_of: related.RetryOf | None
    retried_by: related.RetriedBy | None
    split_from: related.Split | None
    split_into: tuple[related.Split, ...]
    labels: Mapping[str, str]
    """The labels that identify the alert."""
    alert_summary: str
    """The first line of the alert's annotation `summary`."""
    grounds: entries.Grounds | None
    stage_list: tuple[summaries.ListedStage, ...]
    """All stages of the chain."""
    feedback: verdicts.Counts
    deleted_at: datetime | None
    hold: str | None
    """The reason that keeps it from deletion and purge."""

    def position(self, key: Key) -> Position:
        """Return its position in a list that is sorted by `key`."""
        match key:
            case "chain":
                return Position(value=self.chain_name or "", id=self.id)
            case "admitted_at" | "ended_at" | "alert_type" | "author" | "name":
                return Position(value=getattr(self, key), id=self.id)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a list."""

    items: Sequence[Listed]
    counts: Mapping[investigations.Phase, int]
    """The number of investigations of the whole list in each phase; the filter on phases does not apply."""
    exact: bool
    """Whether `counts` are complete. If not, only the first LOOKED_INTO with the words of the phrases are counted."""
    next: Position | None
    """The position after which the next page begins; None for the last page. Other pages may have few items."""


_UNDERSTOOD = text("""
  SELECT numnode(plainto_tsquery('simple', tarsy_plain(:text))) AS words, ARRAY(
    SELECT phrase FROM unnest(CAST(:quoted AS text[])) AS phrase WHERE numnode(tarsy_query(ARRAY[phrase])) > 1
  ) AS phrases
""")


async def understood(database: databases.Database, search: str) -> Search | None:
    """Parse a search into words, and phrases in quotes; return None if it has no word.

    The database decides what a word is, because it has split the texts. A quote that is not closed extends to the end.
    """
    (row,) = await database.run(_UNDERSTOOD, text=search, quoted=search.split('"')[1::2])
    return Search(text=search, phrases=tuple(row.phrases)) if row.words else None


async def page(
    database: databases.Database, query: Query, *, after: Position | None = None, skip: int = 0, limit: int
) -> Page:
    """Return up to `limit` investigations after `after`, or from the beginning, without the first `skip`.

    The skipped ones are read too, so callers limit `skip`. Raises StoreDownError, and TooLongError if a search takes
    longer than SEARCH_SECONDS.
    """
    values = {name: value for name, value in _values(query).items() if value is not None}
    if after:
        values |= {"after": after.value, "after_id": after.id}
    filters = frozenset(values.keys() & _FILTERS)
    statement = _statement(
        filters,
        query.key,
        query.descending,
        begins=after is None,
        skips=skip > 0,
        is_of_one=len(query.namespaces) == 1,
        deleted=query.deleted,
    )
    values |= {
        "namespaces": list(query.namespaces),
        "uids": list(query.namespaces.values()),
        "rows": skip + limit + 1,
        "skip": skip,
        "most": LOOKED_INTO,
        "each": max(NEXT // len(query.namespaces), NEXT_OF_EACH),
    }
    if query.search:
        rows = await database.run_within(SEARCH_SECONDS, statement, **values)
    else:
        rows = await database.run(statement, **values)
    counted = json.loads(rows[0].count_of_ended or "{}") | json.loads(rows[0].count_of_open or "{}")
    listed = [_listed(row) for row in rows if row.id is not None]
    counts = {phase: counted.get(phase, 0) for phase in (*phase_rules.OPEN, *phase_rules.ENDED)}
    exact, further = True, None
    if query.search and query.search.phrases:
        exact = rows[0].exact
        further = Position(value=rows[0].last_key, id=rows[0].last_id) if rows[0].last_id else None
    if len(listed) > limit:
        further = listed[limit - 1].position(query.key)
    return Page(items=listed[:limit], counts=counts, exact=exact, next=further)


def _values(query: Query) -> dict[str, Any]:
    ended = [phase for phase in query.phases if phase in phase_rules.ENDED]
    return {
        "alert_type": query.alert_type,
        "chain": query.chain,
        "author": query.author,
        "fingerprint": query.fingerprint,
        "severity": query.severity,
        "name": query.name,
        "grounded": query.grounded,
        "feedback": None if query.feedback == "none" else query.feedback,
        "no_feedback": True if query.feedback == "none" else None,
        "since": query.since,
        "until": query.until,
        "words": query.search and query.search.text,
        "phrases": (query.search and list(query.search.phrases)) or None,
        "ended": ended if query.phases else None,
        "open": [phase for phase in query.phases if phase not in ended] if query.phases else None,
    }


_FILTERS = {
    "alert_type": "alert_type = :alert_type",
    "chain": "chain_name = :chain",
    "author": "author = :author",
    "fingerprint": """(fingerprint = :fingerprint OR id IN (
        SELECT investigation FROM identities AS its
        WHERE its.fingerprint = :fingerprint AND its.namespace = ANY(CAST(:namespaces AS text[]))
          AND joined_at IS NOT NULL))""",
    "severity": "severity = :severity",
    "name": "name = :name",
    "grounded": f"""EXISTS (SELECT 1 FROM runs WHERE runs.investigation = id AND runs.number = 0
        AND (runs.grounds IN ({", ".join(f"'{name}'" for name in phase_rules.GROUNDED)}))
          = CAST(:grounded AS boolean))""",  # noqa: S608 - our own text
    "feedback": "EXISTS (SELECT FROM feedback WHERE feedback.investigation = id AND verdict = :feedback)",
    "no_feedback": "NOT EXISTS (SELECT FROM feedback WHERE feedback.investigation = id)",
    "since": "admitted_at >= :since",
    "until": "admitted_at < :until",
    "words": "words @@ (SELECT plainto_tsquery('simple', tarsy_plain(:words)))",
    "phrases": "",
    "ended": "",
    "open": "",
}
_OPEN_PHASE = f"(SELECT {phase_rules.OPEN_PHASE} FROM work WHERE work.investigation = matched.id)"  # noqa: S608 - our own
_PHASES = f"""(ending = ANY(CAST(:ended AS text[]))
      OR (ending IS NULL AND {_OPEN_PHASE} = ANY(CAST(:open AS text[]))))"""

# Texts are compared byte by byte: that takes half the time, and is the same in every database.
_KEYS: dict[Key, tuple[str, str]] = {
    "admitted_at": ("admitted_at", "CAST(:after AS timestamptz)"),
    "ended_at": ("coalesce(ended_at, 'infinity')", "coalesce(CAST(:after AS timestamptz), 'infinity')"),
    "alert_type": ('alert_type COLLATE "C"', "CAST(:after AS text)"),
    "chain": ("coalesce(chain_name, '') COLLATE \"C\"", "CAST(:after AS text)"),
    "author": ('author COLLATE "C"', "CAST(:after AS text)"),
    "name": ('name COLLATE "C"', "CAST(:after AS text)"),
}
"""The expression of each sort key, and that of the value after which the page begins."""

_SELECT_LISTED = f"""
  SELECT known.id, known.namespace, known.name, known.alert_type, known.alert_status, known.severity,
    known.fingerprint, known.author, known.chain_name, known.stage_names, known.admitted_at, known.duplicates,
{related.SELECT_RELATED},
{group_alerts.SELECT_ALERT_COUNT},
{verdicts.SELECT_COUNTS},
    CAST(known.labels AS text) AS labels, known.alert_summary, CAST(known.agent_names AS text) AS agent_names,
    known.deleted_at, known.hold, known.ending,
    work.state, work.cancel, work.suspend, work.unreadable, work.passed_over_since,
    work.wait_message, work.wake_at,
    CASE WHEN known.ending IS NULL THEN (
      SELECT {summaries.SELECT_RETRYING} FROM executions
      WHERE executions.investigation = known.id AND executions.run = 0
    ) END AS retrying,
    runs.started_at, known.ended_at, runs.reason, left(coalesce(runs.message, ''), {base.MESSAGE_MAX}) AS message,
    left(coalesce(runs.summary, ''), {SUMMARY_MAX}) AS summary, runs.grounds,
    (SELECT CAST(coalesce(sum(total_tokens), 0) AS bigint) FROM executions
     WHERE executions.investigation = known.id AND executions.run = 0) AS total_tokens,
    (SELECT sum(cost) FROM executions
     WHERE executions.investigation = known.id AND executions.run = 0) AS cost,
    ARRAY(
      SELECT CAST(json_build_object('name', stages.name, 'outcome', outcome, 'started_at', stages.started_at,
        'ended_at', stages.ended_at, 'message', left(stages.message, {summaries.STAGE_MESSAGE_MAX}),
        'cut_off', {phase_rules.CUT_OFF}) AS text)
      FROM stages WHERE stages.investigation = known.id AND stages.run = 0
    ) AS stages,
    page.key
  FROM page
  JOIN investigations AS known ON known.id = page.id
  JOIN work ON work.investigation = known.id
  JOIN runs ON runs.investigation = known.id AND runs.number = 0"""  # noqa: S608 - our own text


_COUNTS = f"""
    CAST((SELECT json_object_agg(ending, number)
          FROM (SELECT ending, count(*) AS number FROM matched WHERE ending IS NOT NULL GROUP BY 1) AS ended) AS text)
      AS count_of_ended,
    CAST((SELECT json_object_agg(phase, number)
          FROM (SELECT {_OPEN_PHASE} AS phase, count(*) AS number FROM matched WHERE ending IS NULL GROUP BY 1) AS open)
      AS text) AS count_of_open"""  # noqa: S608 - our own text
"""The counts by the index of endings, and by the index of open investigations."""
_COUNTS_OF_SEARCH = f"""
    CAST((SELECT json_object_agg(phase, number)
          FROM (SELECT coalesce(ending, {_OPEN_PHASE}) AS phase, count(*) AS number FROM first AS matched WHERE fits
                GROUP BY 1) AS found)
      AS text) AS count_of_ended,
    NULL AS count_of_open"""  # noqa: S608 - our own text
"""The counts in one pass over the result of a search."""

NEXT = 500
"""The number of next investigations whose words are read before the index of words is used; this takes 5 ms."""
NEXT_OF_EACH = 50
"""The number of next investigations of each of many namespaces among which the next of all are looked for."""
LOOKED_INTO = 1000
"""The number of candidates for a phrase whose text is read for a page; as many are read for the counts (5 ms each)."""
_OF_ONE = "namespace = (CAST(:namespaces AS text[]))[1]"
_OF_ALL = "namespace = ANY(CAST(:namespaces AS text[]))"
_OF_EACH = "unnest(CAST(:namespaces AS text[])) AS each (namespace_name) CROSS JOIN LATERAL"
_OF_THIS = "namespace = namespace_name"
_OF_UIDS = "(namespace_uid IS NULL OR namespace_uid = ANY(CAST(:uids AS text[])))"
_SCOPE = f"{_OF_UIDS} AND {visibility.VISIBLE}"
"""The condition beside the namespace: uids are unique in a cluster, so none is another namespace's."""
_NEXT_OF_ONE = f"""
      SELECT * FROM (SELECT *, admitted_at AS key FROM investigations WHERE {_OF_ONE} AND {{admitted}}) AS sorted
      WHERE {{begin}} ORDER BY key {{way}}, id {{way}} LIMIT {NEXT}"""  # noqa: S608 - our own texts
# Of each namespace some are read, and those in order before the last one of any namespace that has more are the next.
# Without OFFSET, the planner would look for all that have the words first.
_NEXT_OF_EACH = f"""
      SELECT known.*, key FROM (
        WITH first_of_each AS MATERIALIZED (
          SELECT namespace_name, id AS next_id, key FROM {_OF_EACH} (
            SELECT id, key FROM (
              SELECT id, admitted_at AS key FROM investigations WHERE {_OF_THIS} AND {{admitted}}
            ) AS sorted
            WHERE {{begin}} ORDER BY key {{way}}, id {{way}} LIMIT :each
          ) AS first_of_this
        ), last_of_each AS (
          SELECT {{last}}(key) AS key FROM first_of_each GROUP BY namespace_name HAVING count(*) = :each
        )
        SELECT next_id, key FROM first_of_each
        WHERE key {{before}} ALL (SELECT key FROM last_of_each)
        ORDER BY key {{way}}, next_id {{way}} LIMIT {NEXT}
      ) AS next JOIN investigations AS known ON known.id = next_id OFFSET 0"""  # noqa: S608 - our own texts
_IN_PHRASES = "words @@ (SELECT tarsy_query(CAST(:phrases AS text[])))"
_PAGE_OF_SEARCH = """
    SELECT id, key FROM near WHERE (SELECT count(*) FROM near) = :rows
    UNION ALL
    SELECT id, key FROM (SELECT id, key FROM looked WHERE fits ORDER BY {order} LIMIT :rows) AS found
    WHERE (SELECT count(*) FROM near) < :rows"""
_LAST = """(
    SELECT {key} AS last_key, id AS last_id FROM looked
    WHERE (SELECT count(*) FROM near) < :rows AND (SELECT count(*) FROM looked) = :most
    ORDER BY {back} LIMIT 1
  ) AS last ON true"""
"""The last candidate that a page has read, if it has read the maximal number; the next page begins after it."""


@functools.cache  # the number of combinations is limited
def _statement(
    filters: frozenset[str],
    key: Key,
    descending: bool,  # noqa: FBT001
    *,
    begins: bool,
    skips: bool,
    is_of_one: bool,
    deleted: bool = False,
) -> TextClause:
    """Return the statement of a page; `is_of_one` is for one namespace, of which nothing is merged.

    Deleted ones are found by an index over all namespaces, which has those alone.
    """
    scope = f"{_OF_UIDS} AND {visibility.DELETED}" if deleted else _SCOPE
    sorted_by, position = _KEYS[key]
    before, way, back = ("<", "DESC", "ASC") if descending else (">", "ASC", "DESC")
    order = f"key {way}, id {way}"
    phases = _PHASES if "ended" in filters else "true"
    begin = "true" if begins else f"(key, id) {before} ({position}, CAST(:after_id AS uuid))"

    def matched(namespaces: str) -> str:
        return f"""
    SELECT id, ending, {sorted_by} AS key FROM investigations
    WHERE {namespaces} AND {scope} AND {_conditions(filters)}"""  # noqa: S608 - our own texts

    page = f"SELECT id, key FROM matched WHERE {phases} AND {begin} ORDER BY {order} LIMIT :rows"  # noqa: S608
    if key == "admitted_at" and not is_of_one and not deleted:
        page = f"""
    SELECT id, key FROM {_OF_EACH} (
      SELECT id, key FROM ({matched(_OF_THIS)}) AS matched WHERE {phases} AND {begin} ORDER BY {order} LIMIT :rows
    ) AS first_of_each ORDER BY {order} LIMIT :rows"""  # noqa: S608 - our own texts
    search, counts, columns, last = "", _COUNTS, "", ""
    if "words" in filters:
        search = _search(filters, key, phases=phases, begin=begin, way=way, is_of_one=is_of_one, looks_near=not deleted)
        page, counts = _PAGE_OF_SEARCH.format(order=order), _COUNTS_OF_SEARCH
    if "phrases" in filters:
        columns = "(SELECT count(*) FROM first) < :most AS exact, last_key, last_id,"
        last_key = "nullif(key, 'infinity')" if key == "ended_at" else "key"
        last = f"LEFT JOIN {_LAST.format(key=last_key, back=f'key {back}, id {back}')}"
    if skips:
        page = f"SELECT id, key FROM ({page}) AS reached ORDER BY {order} OFFSET :skip"  # noqa: S608 - our own texts
    return text(f"""
  WITH matched AS NOT MATERIALIZED ({matched(_OF_ONE if is_of_one else _OF_ALL)}
  ), {search} page AS ({page}
  ), listed AS ({_SELECT_LISTED}
  )
  SELECT {counts}, {columns} listed.*
  FROM (VALUES (1)) AS one_row LEFT JOIN listed ON true {last}
  ORDER BY {order}
""")  # noqa: S608 - our own texts


def _conditions(filters: Iterable[str]) -> str:
    return " AND ".join(["true", *(_FILTERS[name] for name in sorted(filters) if _FILTERS[name])])


def _search(
    filters: frozenset[str], key: Key, *, phases: str, begin: str, way: str, is_of_one: bool, looks_near: bool
) -> str:
    """Return the CTEs of a search: `near` (in the NEXT ones), `first` (for the counts) and `looked` (for the page)."""
    fits, in_phrases, materialized, most, looks = _conditions(filters), "true", "NOT MATERIALIZED", "", "true"
    order = f"key {way}, id {way}"
    if "phrases" in filters:
        in_phrases, materialized, most = _IN_PHRASES, "MATERIALIZED", f"ORDER BY {order} LIMIT :most"
        # `words` is the last column: to read it before sorting takes half as long again.
        looks = f"(SELECT {_IN_PHRASES} FROM investigations AS its WHERE its.id = looked.id)"  # noqa: S608

    def looked(condition: str) -> str:
        return f"""
    SELECT id, ending, key, {looks} AS fits
    FROM (SELECT * FROM (SELECT * FROM matched OFFSET 0) AS matched WHERE {condition} {most}) AS looked"""  # noqa: S608

    near = "SELECT id, key FROM matched WHERE false"
    if key == "admitted_at" and looks_near:
        admitted = f"{_SCOPE} AND {_conditions(filters & {'since', 'until'})}"
        before, last = (">", "min") if way == "DESC" else ("<", "max")
        following = (_NEXT_OF_ONE if is_of_one else _NEXT_OF_EACH).format(
            admitted=admitted, begin=begin, way=way, before=before, last=last
        )
        near = f"""
    SELECT id, key FROM ({following}
    ) AS matched
    WHERE {fits} AND {phases} AND {in_phrases} ORDER BY {order} LIMIT :rows"""  # noqa: S608 - our own texts
    behind = looked(f"{phases} AND {begin}") if (phases, begin) != ("true", "true") else "SELECT * FROM first"
    return (
        f"near AS MATERIALIZED ({near}), first AS {materialized} ({looked('true')}), "
        f"looked AS {materialized} ({behind}),"
    )


def _listed(row: Any) -> Listed:
    phase = phase_rules.phase(
        ending=row.ending, state=row.state, cancel=row.cancel, suspend=row.suspend, unreadable=row.unreadable
    )
    stages = {stage.name: stage for stage in map(_Stage.parse, row.stages)}
    ends = ((stage.outcome, stage.cut_off) for stage in stages.values())
    running = [name for name in row.stage_names if name in stages and stages[name].ended_at is None]
    waits_for = phase_rules.waits_for(phase, row.unreadable, row.passed_over_since, row.wait_message, row.wake_at)
    return Listed(
        **{name: row[name] for name in _AS_STORED},
        phase=phase,
        progress=phase_rules.progress(ends, stages=len(row.stage_names)),
        current_stage=running[0] if running and not row.ended_at else None,
        **related.from_row(row),
        message=phase_rules.shown_message(waits_for, row.retrying or (), row.message)[: base.MESSAGE_MAX],
        grounded=phase_rules.is_grounded(row.grounds),
        labels=json.loads(row.labels or "{}"),
        feedback=verdicts.counts_from_row(row),
        stage_list=summaries.stage_list(
            row.stage_names,
            row.agent_names,
            stages,
            has_ended=row.ended_at is not None,
            retry_stage=row.retry_stage,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """A stage that has begun or was skipped."""

    name: str
    outcome: str | None
    started_at: datetime | None
    ended_at: datetime | None
    message: str
    cut_off: bool

    @classmethod
    def parse(cls, stored: str) -> _Stage:
        stage = json.loads(stored)
        times = {key: stage[key] and datetime.fromisoformat(stage[key]) for key in ("started_at", "ended_at")}
        return cls(**stage | times)


_AS_STORED = (
    *("id", "namespace", "name", "alert_type", "alert_status", "severity", "fingerprint", "author", "chain_name"),
    *("admitted_at", "started_at", "ended_at", "total_tokens", "cost", "summary", "duplicates"),
    *("alert_count", "alert_summary", "grounds", "deleted_at", "hold"),
)
