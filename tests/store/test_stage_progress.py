"""The course of investigations: stages, agents and conclusions as rows, beside what cannot be read."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.queue import questions
from tarsy.store.reads import stage_rows
from tarsy.transcript import admission, entries


async def test_stage_progress_of_many_investigations_has_the_chain_of_each(database: databases.Database) -> None:
    other = queue.chain(stages=[{"name": "look", "agent": "KubernetesAgent", "replicas": 2}])
    first, second, third = [await queue.admit(database, chain=chain) for chain in (queue.CHAIN, other, queue.CHAIN)]
    refused = await queue.admit(database, chain=admission.Refusal(reason="ChainNotFound", message="none"))
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.stage_started(), stories.started())
    progress = await stage_rows.stage_progress(database, [first, second, third, refused, UUID(int=7)])
    assert progress.keys() == {first, second, third, refused}
    assert progress[first].chain == progress[third].chain == queue.CHAIN.spec
    assert progress[second].chain == other.spec
    assert (progress[refused].chain, progress[refused].stage_names) == (None, ())
    assert (progress[first].outcomes, progress[third].outcomes) == ({"analysis": None}, {})
    assert (progress[first].owner, progress[third].owner) == (queue.OWNER, None)
    assert progress[first].last_call_at is None
    await writing.commit(stories.answers(), stories.ended(), stories.stage_ended(outcome="Failed"), stories.run_ended())
    ended = (await stage_rows.stage_progress(database, [first], calls=True))[first]
    assert (ended.outcomes, ended.owner) == ({"analysis": "Failed"}, None)
    log = await queue.log(database, first)
    assert ended.last_call_at == log[2].at


@pytest.mark.parametrize("broken", ["'{}'", "'null'", '\'{"stages": [{"name": "\\u0000"}]}\'', "NULL"])
async def test_unreadable_chain_affects_no_other_investigation(database: databases.Database, broken: str) -> None:
    identity = await queue.admit(database)
    await queue.execute(database, f"UPDATE investigations SET chain = CAST({broken} AS json)")  # noqa: S608 - our own
    progress = (await stage_rows.stage_progress(database, [identity]))[identity]
    assert (progress.chain, progress.stage_names) == (None, ("analysis",))


async def test_conclusion_of_an_agent_is_its_last_answer_in_each_dialect(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    react = replace(stories.AGENT, strategy="react")
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    react_answer = "Thought: I see.\nFinal Answer: it has no database"
    await writing.commit(
        stories.stage_started(),
        *(stories.started(name, index=index) for index, name in enumerate("abc")),
        stories.started("r", index=3, agent=react),
        stories.asks("k8s.pods_log", execution="a", text="I look."),
        stories.answers("of a", execution="a", call_number=1),
        stories.answers("x" * 100, execution="b"),
        stories.answers(react_answer, execution="r"),
        *(stories.ended(name) for name in "abr"),
        stories.answers("not whole", execution="c"),
        stories.ended("c", "Failed", "no answer"),
    )
    executions = await stage_rows.executions(database, identity)
    assert [(execution.id, execution.index, execution.outcome) for execution in executions] == [
        ("a", 0, "Completed"),
        ("b", 1, "Completed"),
        ("c", 2, "Failed"),
        ("r", 3, "Completed"),
    ]
    expected = {"a": "of a", "b": "x" * 20, "r": "it has no database"}
    last = len(await queue.log(database, identity))
    for at_once in (20, 1):
        monkeypatch.setattr(stage_rows, "ANSWERS_AT_ONCE", at_once)
        assert await stage_rows.conclusions(database, identity, executions, upto=last, length=20) == expected
    assert await stage_rows.conclusions(database, identity, executions, upto=6, length=20) == {"a": "I look."}


async def test_questions_are_no_part_of_it(database: databases.Database) -> None:
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(stories.stage_started(), stories.started(), stories.answers("of it"), stories.ended())
    await writing.commit(stories.stage_ended(), stories.run_ended())
    assert await questions.ask(database, identity, "Why?", max_queued=9, by=queue.CALLER) == 1
    asking = await queue.opened(database, await queue.claimed(database))
    answering = replace(stories.started("two", stage=""), run=1, kind="chat")
    await asking.commit(answering, stories.answers("because", execution="two"))
    executions = await stage_rows.executions(database, identity)
    assert [execution.id for execution in executions] == ["one"]
    progress = (await stage_rows.stage_progress(database, [identity], calls=True))[identity]
    calls = [logged for logged in await queue.log(database, identity) if isinstance(logged.entry, entries.Answered)]
    assert (progress.last_call_at, progress.owner) == (calls[0].at, None)
    upto = calls[-1].seq
    assert await stage_rows.conclusions(database, identity, executions, upto=upto, length=9) == {"one": "of it"}
