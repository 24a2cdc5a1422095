"""Alerts whose investigation came to nothing: when another one begins, after which one, and that only one does."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import queue
from tarsy.resources import investigations, naming
from tarsy.store.base import databases
from tarsy.store.intake import episodes, queueing, receipts
from tarsy.store.operations import purge
from tarsy.store.queue import work
from tarsy.store.reads import related
from tarsy.transcript import admission

START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
COOLDOWN = queue.RULE.cooldown // MINUTE
WINDOW = queue.RULE.window // MINUTE
DAY = 24 * 60
REFUSAL = admission.Refusal(reason="ChainNotReady", message="Chain 'x' is not ready")

Ending = Literal["Failed", "TimedOut", "ServersAway", "Completed", "CompletedWithErrors", "Cancelled"]
NOTHING: tuple[Ending, ...] = ("Failed", "TimedOut", "ServersAway")


@dataclass
class Alert:
    """An alert of a test, and what happens to its investigations; time passes because its rows grow older."""

    database: databases.Database
    fingerprint: str = field(default_factory=lambda: secrets.token_hex(8))
    rule: episodes.Rule = queue.RULE

    def subject(self, episode: int = 0) -> investigations.AlertInvestigation:
        starts_at = START + timedelta(hours=episode)
        name = naming.for_alert(alertname="web", fingerprint=self.fingerprint, starts_at=starts_at)
        source = {"type": "alertmanager"}
        return queue.subject(name, fingerprint=self.fingerprint, startsAt=starts_at, source=source)

    async def look_up(self, episode: int = 0) -> episodes.Repeat | episodes.Begin:
        starts_at = START + timedelta(hours=episode)
        alert = self.fingerprint, starts_at
        (verdict,) = await episodes.look_up(self.database, alert, namespace="tarsy", rule=self.rule)
        return verdict

    async def issue(self, begin: episodes.Begin, episode: int = 0) -> receipts.Receipt | episodes.Repeat:
        wanted = self.subject(episode)
        return await receipts.issue_for_alert(
            self.database,
            namespace="tarsy",
            fingerprint=self.fingerprint,
            starts_ms=naming.milliseconds(START + timedelta(hours=episode)),
            name=wanted.metadata.name,
            digest=wanted.digest(),
            rule=self.rule,
            previous=begin.previous.id if begin.previous else None,
        )

    def made(self, receipt: receipts.Receipt, episode: int = 0) -> investigations.AlertInvestigation:
        """The object that intake makes with the receipt."""
        wanted = self.subject(episode)
        assert wanted.spec.source
        source = wanted.spec.source.model_copy(update={"receipt": receipt.word})
        metadata = wanted.metadata.model_copy(update={"name": receipt.name})
        return wanted.model_copy(
            update={"metadata": metadata, "spec": wanted.spec.model_copy(update={"source": source})}
        )

    async def notify(self, episode: int = 0, *, refusal: admission.Refusal | None = None) -> tuple[str, UUID]:
        """Take a firing notification as intake does; its outcome and the investigation."""
        verdict = await self.look_up(episode)
        if isinstance(verdict, episodes.Begin):
            issued = await self.issue(verdict, episode)
            if isinstance(issued, receipts.Receipt):
                new = self.made(issued, episode)
                await queueing.admit(self.database, queue.admission(new, refusal or queue.CHAIN), just_created=True)
                return "created", UUID(new.metadata.uid)
            verdict = issued
        await episodes.count_repeats(self.database, (verdict.investigation.id, self.fingerprint))
        return "repeated", verdict.investigation.id

    async def end(self, identity: UUID, ending: Ending = "Failed") -> None:
        stored = "CompletedWithErrors" if ending == "ServersAway" else ending
        grounds = ending if ending == "ServersAway" else None
        ended: list[tuple[str, dict[str, Any]]] = [
            ("UPDATE work SET state = 'ended' WHERE investigation = :id", {}),
            (
                "UPDATE investigations SET ended_at = clock_timestamp(), ending = :ending WHERE id = :id",
                {"ending": stored},
            ),
            (
                "UPDATE runs SET ended_at = now(), ending = :ending, grounds = :grounds WHERE investigation = :id",
                {"ending": stored, "grounds": grounds},
            ),
        ]
        for statement, values in ended:
            await queue.execute(self.database, statement, id=identity, **values)

    async def wait(self, minutes: float) -> None:
        """Let time pass."""
        mine = "(SELECT id FROM investigations WHERE fingerprint = :fingerprint)"
        for table, columns, which in (
            ("investigations", ("admitted_at", "ended_at", "purged_at", "gone_at"), "fingerprint = :fingerprint"),
            ("runs", ("ended_at",), f"investigation IN {mine}"),
            ("identities", ("first_seen",), "fingerprint = :fingerprint"),
            ("receipts", ("created_at",), "fingerprint = :fingerprint"),
        ):
            moved = ", ".join(f"{column} = {column} - CAST(:passed AS interval)" for column in columns)
            statement = f"UPDATE {table} SET {moved} WHERE {which}"  # noqa: S608 - a test's own words
            await queue.execute(self.database, statement, fingerprint=self.fingerprint, passed=minutes * MINUTE)

    async def expire(self, identity: UUID) -> None:
        """Have its object deleted because its time has come."""
        await queue.execute(self.database, "UPDATE investigations SET ttl_seconds = 0 WHERE id = :id", id=identity)
        await work.gone(self.database, identity)

    async def purge(self, identity: UUID) -> None:
        assert await purge.purge(self.database, identity, by=queue.CALLER) is None
        await work.gone(self.database, identity)

    async def previous(self, identity: UUID) -> UUID | None:
        summary = await queue.summary(self.database, identity)
        return summary.previous.id if summary.previous else None


@pytest.fixture
def alert(database: databases.Database) -> Alert:
    return Alert(database)


@pytest.mark.parametrize("ending", [*NOTHING, "refused"])
async def test_failed_alert_is_investigated_again_after_one_cool_down_then_after_four(
    alert: Alert, ending: Any
) -> None:
    refusal = REFUSAL if ending == "refused" else None
    outcome, latest = await alert.notify(refusal=refusal)
    assert (outcome, await alert.previous(latest)) == ("created", None)
    names = [(await queue.summary(alert.database, latest)).name]
    for cooldowns in (1, 4):
        if refusal is None:
            await alert.end(latest, ending)
        await alert.wait(cooldowns * COOLDOWN - 1)
        assert await alert.notify() == ("repeated", latest)
        await alert.wait(1)
        outcome, following = await alert.notify(refusal=refusal)
        assert (outcome, await alert.previous(following)) == ("created", latest)
        names.append((await queue.summary(alert.database, following)).name)
        latest = following
    assert names == [names[0], f"{names[0]}-2", f"{names[0]}-3"]


@pytest.mark.parametrize("how", ["wait", "delete", "expire", "purge"])
async def test_alert_gets_three_investigations_a_day_even_if_investigations_are_deleted(alert: Alert, how: str) -> None:
    for _ in range(3):
        outcome, latest = await alert.notify()
        assert outcome == "created"
        await alert.end(latest)
        if how == "delete":
            await work.gone(alert.database, latest)
        elif how == "expire":
            await alert.expire(latest)
        elif how == "purge":
            await alert.purge(latest)
        await alert.wait(4 * COOLDOWN)
    assert await alert.notify() == ("repeated", latest)
    verdict = await alert.look_up(5)
    assert isinstance(verdict, episodes.Repeat), "another episode of the alert is no way around it"
    assert verdict.investigation.id == latest
    assert not verdict.deletable
    await alert.wait(DAY - 12 * COOLDOWN - 1)
    assert await alert.notify() == ("repeated", latest)
    await alert.wait(1)
    outcome, _ = await alert.notify()
    assert outcome == "created"


async def test_resolution_is_recorded_on_the_newest_investigation_of_its_episode(alert: Alert) -> None:
    _, first = await alert.notify()
    await alert.end(first)
    await alert.wait(COOLDOWN)
    _, second = await alert.notify()
    resolved = await episodes.resolve(alert.database, namespace="tarsy", fingerprint=alert.fingerprint, starts_at=START)
    assert resolved is not None
    assert resolved.id == second
    summary = await queue.summary(alert.database, second)
    assert (summary.alert_status, summary.previous) == (
        "resolved",
        related.Previous(id=first, name=alert.subject().metadata.name),
    )


async def test_concurrent_processes_begin_one_investigation_per_notification(alert: Alert) -> None:
    latest: UUID | None = None
    for _ in range(12):
        verdicts = await asyncio.gather(*(alert.look_up() for _ in range(4)))
        begins = [verdict for verdict in verdicts if isinstance(verdict, episodes.Begin)]
        assert len(begins) == 4
        issued = await asyncio.gather(*(alert.issue(begin) for begin in begins))
        first = issued[0]
        assert isinstance(first, receipts.Receipt)
        assert {receipt.word for receipt in issued if isinstance(receipt, receipts.Receipt)} == {first.word}
        assert {receipt.name for receipt in issued if isinstance(receipt, receipts.Receipt)} == {first.name}
        outcomes = [await alert.notify(), await alert.notify()]
        assert [outcome for outcome, _ in outcomes] == ["created", "repeated"]
        assert await alert.previous(outcomes[0][1]) == latest
        latest = outcomes[0][1]
        await alert.end(latest)
        await alert.wait(DAY)


async def test_process_that_requests_its_receipt_late_begins_no_second_investigation(alert: Alert) -> None:
    _, first = await alert.notify()
    await alert.end(first)
    await alert.wait(COOLDOWN)
    slow = await alert.look_up()
    assert isinstance(slow, episodes.Begin)
    _, second = await alert.notify()
    for _ in range(2):  # while the other one's runs, and once it has failed
        issued = await alert.issue(slow)
        assert isinstance(issued, episodes.Repeat)
        assert issued.investigation.id == second
        await alert.end(second)


@pytest.mark.parametrize("died", ["before it made the object", "before it made the row"])
async def test_interrupted_intake_is_continued_with_the_same_object_and_link(alert: Alert, died: str) -> None:
    _, first = await alert.notify()
    await alert.end(first)
    await alert.wait(COOLDOWN)
    begin = await alert.look_up()
    assert isinstance(begin, episodes.Begin)
    issued = await alert.issue(begin)
    assert isinstance(issued, receipts.Receipt)
    made = alert.made(issued)
    if died == "before it made the row":
        await queue.admit(alert.database, made)  # by the watch
        second = UUID(made.metadata.uid)
        assert await alert.notify() == ("repeated", second)
    else:
        again = await alert.issue(begin)
        assert again == issued
        outcome, second = await alert.notify()
        assert outcome == "created"
    assert await alert.previous(second) == first
    assert (await queue.summary(alert.database, second)).name == f"{alert.subject().metadata.name}-2"


@dataclass
class Begun:
    """An investigation in the model; times are minutes."""

    id: UUID
    episode: int
    begun: int
    previous: Begun | None
    ended: int | None = None
    ending: str = ""
    purged: int | None = None
    is_removed: bool = False
    """A person deleted its object."""
    is_expired: bool = False

    @property
    def came_to_nothing(self) -> bool:
        return self.ending in NOTHING or self.purged is not None

    def stands_until(self) -> int:
        row = 0 if self.previous is None else 1 if self.previous.previous is None else 2
        if self.purged is not None and self.ending not in ("Failed", "TimedOut"):  # the grounds are purged, too
            return self.purged + COOLDOWN * (1, 4, 16)[row]
        assert self.ended is not None
        return self.ended if self.is_removed else self.ended + COOLDOWN * (1, 4, 16)[row]


@dataclass
class Model:
    """The rule, for one alert."""

    now: int = 0
    all: list[Begun] = field(default_factory=list)

    def own(self, episode: int) -> Begun | None:
        """The investigation of the episode that is remembered."""
        mine = [begun for begun in self.all if begun.episode == episode]
        return mine[-1] if mine and self.now - mine[-1].begun < WINDOW else None

    def verdict(self, episode: int) -> tuple[str, Begun | None]:
        own = self.own(episode)
        standing = [begun for begun in self.all if begun.ending != "removed"]
        last = next((begun for begun in standing if begun.ended is None), standing[-1] if standing else own)
        if own and not own.came_to_nothing:
            return "repeated", own
        if last is None:
            return "created", None
        if last.ended is None:
            return "repeated", last
        if not last.came_to_nothing:
            if self.now - last.ended < COOLDOWN:
                return "repeated", last
            if own is None:
                return "created", None
            last = own
        today = [begun for begun in self.all if begun.came_to_nothing and self.now - begun.begun < DAY]
        if len(today) >= 3 or self.now < last.stands_until():
            return "repeated", last
        return "created", last if own or self.now - last.begun < WINDOW else None


EPISODES = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("notify"), EPISODES),
    st.tuples(st.just("notify"), EPISODES),
    st.tuples(st.just("end"), st.sampled_from([*NOTHING, *NOTHING, "Completed", "CompletedWithErrors", "Cancelled"])),
    st.tuples(st.just("end"), st.sampled_from(NOTHING)),
    st.tuples(st.just("wait"), st.sampled_from([2, 5, 19, 25, 80, 13 * 60, DAY, 3 * DAY, 8 * DAY])),
    st.tuples(st.sampled_from(["delete", "expire", "purge"]), st.integers(0, 3)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=4, max_size=18))
async def test_alerts_repeat_or_are_investigated_again_by_the_rule_in_any_event_order(
    database: databases.Database, steps: list[tuple[str, Any]]
) -> None:
    alert, model = Alert(database), Model()
    for step, what in steps:
        await take(step, what, alert=alert, model=model)
    for episode in (0, 1):
        await take("notify", episode, alert=alert, model=model)


async def take(step: str, what: Any, *, alert: Alert, model: Model) -> None:
    """Take one step, in the store and in the model."""
    is_open = next((begun for begun in model.all if begun.ended is None), None)
    match step:
        case "notify":
            outcome, expected = model.verdict(what)
            answer = await alert.notify(what)
            if outcome == "created":
                assert answer[0] == "created"
                is_shown = expected is not None and expected.purged is None
                assert await alert.previous(answer[1]) == (expected.id if expected and is_shown else None)
                model.all.append(Begun(id=answer[1], episode=what, begun=model.now, previous=expected))
            else:
                assert answer == ("repeated", expected and expected.id)
        case "end" if is_open:
            await alert.end(is_open.id, what)
            is_open.ended, is_open.ending = model.now, what
        case "wait":
            await alert.wait(what)
            model.now += what
        case "delete" | "expire" | "purge" if model.all:
            investigation = model.all[-1 - what % len(model.all)]
            await remove(step, investigation, alert=alert, model=model)
        case _:
            pass


async def remove(step: str, investigation: Begun, *, alert: Alert, model: Model) -> None:
    """Delete its object, if it is there; what is open is cancelled by that."""
    is_there = not (investigation.is_removed or investigation.is_expired or investigation.purged is not None)
    if step == "delete" and is_there:
        await work.gone(alert.database, investigation.id)
        investigation.is_removed = True
        if investigation.ended is None:
            investigation.ended, investigation.ending = model.now, "removed"
    elif step == "expire" and is_there and investigation.ended is not None:
        await alert.expire(investigation.id)
        investigation.is_expired = True
    elif step == "purge" and investigation.ended is not None and investigation.purged is None:
        await alert.purge(investigation.id)
        investigation.purged = model.now
