"""The lists that are watched, over a real database."""

from __future__ import annotations

from support import queue
from tarsy.api.live import changing, outbox, wire
from tarsy.store import database as databases

CHANNEL = wire.Channel("investigation", None)


def listener() -> outbox.Listener:
    return outbox.Listener(outbox.Outbox(lambda message, channel: message.text(channel)), CHANNEL)


async def test_who_listens_to_a_namespace_is_told_nothing_of_another_one_that_has_its_name_since(
    database: databases.Database,
) -> None:
    lists = changing.Lists(database)
    before, since, beside = listener(), listener(), listener()
    async with (
        lists.listens(changing.Namespace(name="tarsy", uid="uid of an earlier one"), before, after=None),
        lists.listens(changing.Namespace(name="other", uid="uid of the other"), beside, after=None),
        lists.listens(changing.Namespace(name="tarsy", uid="uid-of-tarsy"), since, after=None),
    ):
        assert before.over.done()
        assert before.over.result() == "the namespace tarsy is another one by now: subscribe again"
        await queue.admit(database)
        await lists.look()
        assert len(since.outbox._queue) == 1
        assert not before.outbox._queue
        assert not beside.over.done()
        assert not since.over.done()
