"""Deliveries of real operators that are killed between reading, sending and noting: every message arrives, in order.

The oracle is outside the operators: the requests that the receivers had.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest
from aiohttp import web
from support import manifests, receivers, slack
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator

pytestmark = pytest.mark.timeout(600)

INVESTIGATIONS = 6
KILLS = ("deliveries.send.after=exit@2", "deliveries.send.before=exit@3")
"""The first process dies after it sent a message and before it noted that, the second after it read one."""
EVENTS = ["started", "ended"]
DONE = """
  SELECT count(*) = $1 AND bool_and(next_at IS NULL AND event = 'ended' AND gave_up_at IS NULL)
  FROM deliveries, pg_sleep(0.2)
  WHERE receiver <> 'hangs'
"""
UNSENT = "SELECT count(*) FROM deliveries WHERE receiver = 'hangs' AND sent_at IS NULL"


async def test_every_end_is_told_in_order_although_two_leaders_are_killed_and_one_receiver_hangs(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = lambda _: model.Answer(text="root cause: no memory", delay=0.1)
    workspace = slack.Slack(limits=2)

    async def answer(request: receivers.Request) -> web.StreamResponse:
        if request.path == "/hangs":
            await asyncio.Event().wait()
        if request.path == "/hook":
            return web.Response()
        await asyncio.sleep(0.2)  # a slow server
        return workspace.answer(request)

    async with receivers.started() as receiver:
        receiver.answer = answer
        channel = {"type": "slack", "channel": slack.CHANNEL, "token_env": "SLACK_TOKEN"}
        operator.configure(
            deliveries={
                "hook": {"type": "webhook", "url": f"{receiver.url}/hook", "events": EVENTS},
                "hangs": {"type": "webhook", "url": f"{receiver.url}/hangs", "events": EVENTS},
                "channel": {**channel, "base_url": f"{receiver.url}/api", "events": EVENTS},
            }
        )
        await operator.apply(manifests.chain(executiveSummary={"enabled": False}))
        database = await asyncpg.connect(operator.database_url)
        lease, token = timedelta(seconds=3), {"SLACK_TOKEN": slack.TOKEN}
        dying = [await operator.start(lease=lease, env={**token, "TARSY_FAILPOINTS": KILLS[0]})]
        while not await database.fetchval("SELECT count(*) FROM delivery_positions"):
            pass  # the statement itself gives way to the others
        dying.append(await operator.start(lease=lease, env={**token, "TARSY_FAILPOINTS": KILLS[1]}))
        names = [f"web-{number}" for number in range(INVESTIGATIONS)]
        await operator.apply(*(manifests.investigation(name) for name in names))
        for process in dying:  # the second leads once the first is dead
            await process.ended()
        third = await operator.start(lease=lease, env=token)
        objects = await operator.finished(*names)
        async with patience.limit():
            while not await database.fetchval(DONE, 2 * INVESTIGATIONS):
                pass  # the statement itself gives way to the others
        hanging = await database.fetchval(UNSENT)
        await database.close()
        await third.stop()

    uids = {manifest["metadata"]["uid"] for manifest in objects.values()}
    sent = [json.loads(request.body) for request in receiver.requests if request.path == "/hook"]
    messages_by_uid = {uid: [message for message in sent if message["investigation"]["id"] == uid] for uid in uids}
    assert sum(map(len, messages_by_uid.values())) == len(sent)
    for messages in messages_by_uid.values():
        assert messages[-1]["event"] == "ended"
        for former, later in itertools.pairwise(messages):
            assert EVENTS.index(former["event"]) <= EVENTS.index(later["event"])
            assert former["investigation"]["revision"] <= later["investigation"]["revision"]
    again = sum(times - 1 for times in Counter(message["id"] for message in sent).values())
    assert again <= len(KILLS), "a death repeats at most the one message of a receiver that was on its way"
    assert len(workspace.firsts) == len(workspace.replies) == INVESTIGATIONS, "found again by their metadata"
    assert all(later - earlier >= 0.99 for earlier, later in itertools.pairwise(workspace.sent_at)), "one a second"
    assert {reply["thread_ts"] for reply in workspace.replies} == {first["ts"] for first in workspace.firsts}
    assert all("no memory" in first["blocks"][1]["text"]["text"] for first in workspace.firsts)
    assert hanging == INVESTIGATIONS
