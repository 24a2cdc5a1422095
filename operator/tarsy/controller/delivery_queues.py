"""The duty that sends messages about investigations to the receivers of the platform file.

It reads what has changed (`store.operations.deliveries`), stores a message for each receiver that hears of it, and
sends what is due. It writes nothing to investigations, and without receivers it reads nothing.

Each receiver has a queue, connections and pauses of its own, so one that is down, slow or hostile delays no other, and
no investigation. A message is sent at least once: a process that dies after it sent one and before it noted that sends
it again, with the same id. Of one investigation, messages come in order; while a receiver is down, its messages keep
their order and newer events replace older ones that were not sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from tarsy import errors, failpoints, templating
from tarsy.config.model import deliveries, platforms
from tarsy.controller import workqueue
from tarsy.deliveries import messages, pagerduty, registry, requests, rules
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.operations import budget_messages
from tarsy.store.operations import deliveries as stored
from tarsy.store.reads import summaries
from tarsy.telemetry import metrics

POLL_SECONDS = 1.0
CHANGES_AT_ONCE = 1000
DUE_AT_ONCE = 100
"""The messages of one receiver that are in memory at once."""
EXPIRED_AT_ONCE = 100
GIVE_UP_SECONDS = 10.0
"""The interval at which messages are looked for that are too old."""
POSITION_SECONDS = 60.0
"""The longest time for which the number to read changes from is kept in memory alone."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a receiver rests after a failure; doubled with each failure in a row."""
FIRST_REPEAT, LONGEST_REPEAT = 30.0, 3600.0
"""Seconds until a message is sent again that its receiver refuses while it takes others; doubled each time."""
TRIED_FIRST = 5
"""The failed attempts after which a message lets others be tried before it, in case its receiver fails at it alone."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Sender:
    """The queue of one receiver, by its present settings."""

    settings: deliveries.Receiver
    queue: workqueue.WorkQueue[UUID | budget_messages.Key]
    client: requests.Client
    task: asyncio.Task[None] = field(init=False)
    paused_until: float = 0.0
    """Monotonic seconds."""
    failures: int = 0
    """The number of failures in a row, for which it rests."""

    async def run(self) -> None:
        """Send until it is cancelled."""
        async with self.client:
            await self.queue.run()


class DeliveryQueues:
    """The duty of this process."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        platform: Callable[[], platforms.Platform],
        leads_until: Callable[[], float],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`platform` returns the platform file in force.

        `leads_until` returns the monotonic time until which this process does the duties.
        """
        self._cluster = cluster
        self._database = database
        self._platform = platform
        self._leads_until = leads_until
        self._environment = environment
        self._senders: dict[str, _Sender] = {}
        self._paces = requests.Paces()
        self._position: int | None = None
        self._stored_at = self._gave_up_at = 0.0

    async def run(self) -> None:
        """Send what is due while this process does the duties, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            # Apart from the reads, so that a database that is away keeps no sender running beyond the leader's lease.
            while True:
                await self._exchange(self._receivers(), group)
                await asyncio.sleep(POLL_SECONDS)

    async def _read(self) -> None:
        """Store messages about what has changed, and hand those that are due to the senders."""
        while True:
            if receivers := self._receivers():
                try:
                    while await self._queue_changes(receivers):
                        pass
                    due = await stored.due(self._database, list(receivers), limit=DUE_AT_ONCE)
                    of_budgets = await budget_messages.due(self._database, list(receivers), limit=DUE_AT_ONCE)
                    for receiver, sender in self._senders.items():
                        for key in (*of_budgets.get(receiver, ()), *due.get(receiver, ())):
                            sender.queue.ensure(key)
                    if time.monotonic() - self._gave_up_at > GIVE_UP_SECONDS:
                        await self._give_up(receivers)
                        self._gave_up_at = time.monotonic()
                except errors.TemporaryError as error:
                    log.warning("deliveries wait: %s", error, extra={"action": "deliveries_wait"})
            else:
                self._position = None
            await asyncio.sleep(POLL_SECONDS)

    def _receivers(self) -> Mapping[str, deliveries.Receiver]:
        """Return the receivers that this process sends to."""
        return self._platform().deliveries if self._leads() else {}

    def _leads(self) -> bool:
        return time.monotonic() < self._leads_until()

    async def _exchange(self, receivers: Mapping[str, deliveries.Receiver], group: asyncio.TaskGroup) -> None:
        """End the senders whose receivers are gone or have other settings, and start the new ones."""
        for name, sender in [*self._senders.items()]:
            if receivers.get(name) != sender.settings:
                sender.task.cancel()
                await asyncio.wait([sender.task])
                del self._senders[name]
        for name, settings in receivers.items():
            if name not in self._senders:
                self._senders[name] = sender = self._sender(name, settings)
                sender.task = group.create_task(sender.run())

    def _sender(self, name: str, settings: deliveries.Receiver) -> _Sender:
        async def deliver(key: UUID | budget_messages.Key) -> None:
            if not self._leads():
                return
            if (wait := sender.paused_until - time.monotonic()) > 0:
                raise workqueue.LaterError(wait)
            if isinstance(key, UUID):
                await self._deliver(sender, name, key)
            else:
                await self._deliver_of_budget(sender, name, key)

        sender = _Sender(settings=settings, queue=workqueue.WorkQueue(deliver, workers=1), client=requests.Client())
        return sender

    async def _queue_changes(self, receivers: Mapping[str, deliveries.Receiver]) -> bool:
        """Store the messages that receivers want of the next changes; return whether more changes follow."""
        if self._position is None:
            self._position, self._stored_at = await stored.begin(self._database), time.monotonic()
        changes = await stored.changes(self._database, changed=self._position, limit=CHANGES_AT_ONCE)
        wanted = list(rules.wanted(changes.news, receivers, own=self._cluster.served.own))
        if wanted or time.monotonic() - self._stored_at > POSITION_SECONDS:
            failpoints.hit("deliveries.queue.before")
            await stored.queue(self._database, wanted, changed=changes.horizon)
            self._stored_at = time.monotonic()
        self._position = changes.horizon
        return changes.more

    async def _deliver(self, sender: _Sender, receiver: str, identity: UUID) -> None:
        """Send the message that is due about one investigation."""
        due = await stored.begin_attempt(self._database, identity, receiver=receiver)
        if due is None:
            return
        details = await summaries.details(self._database, identity, runs=1)
        own = self._cluster.served.own
        if details is None or not sender.settings.may_hear_of(details.summary.namespace, own=own):
            await stored.drop(self._database, identity, receiver=receiver)
            return
        log_fields = {
            "receiver": receiver,
            "investigation": f"{details.summary.namespace}/{details.summary.name}",
            "uid": identity,
        }
        try:
            message = self._message(details, due, sender.settings, receiver=receiver)
            failpoints.hit("deliveries.send.before")
            digests = []
            if sender.settings.type == "pagerduty":
                digests = await stored.group_digests(self._database, identity, limit=pagerduty.INCIDENTS_MAX)
            attempt = requests.Attempt(
                client=sender.client,
                paces=self._paces,
                environment=self._environment,
                sent_as=due.sent_as,
                group_digests=digests,
                may_be_sent=due.attempts > 0,
                keep=lambda part: stored.keep(self._database, identity, due, receiver=receiver, sent_as=part),
            )
            sent_as = await registry.TYPES[sender.settings.type](sender.settings, message, attempt)
            failpoints.hit("deliveries.send.after")
        except requests.UndeliveredError as error:
            problem, delay = self._rest(sender, receiver, failures=due.failures, error=error, log_fields=log_fields)
            await stored.failed(self._database, identity, due, receiver=receiver, problem=problem, delay=delay)
            return
        await stored.sent(self._database, identity, due, receiver=receiver, sent_as=sent_as)
        self._resume(sender, receiver)

    async def _deliver_of_budget(self, sender: _Sender, receiver: str, key: budget_messages.Key) -> None:
        """Send the message that is due about one ledger of a budget."""
        due = await budget_messages.begin_attempt(self._database, key, receiver=receiver)
        if due is None:
            return
        budget = self._platform().budgets.get(key.budget)
        own = self._cluster.served.own
        if budget is None or not rules.hears_of_budget(budget, key.subject, sender.settings, own=own):
            await budget_messages.drop(self._database, key, receiver=receiver)
            return
        message = messages.budget_message(
            budget, key, threshold=due.threshold, receiver=receiver, secrets=self._cluster.secrets
        )
        failpoints.hit("deliveries.send.before")
        attempt = requests.Attempt(
            client=sender.client,
            paces=self._paces,
            environment=self._environment,
            sent_as={},
            may_be_sent=due.attempts > 0,
            keep=_keep_nothing,
        )
        try:
            await registry.TYPES[sender.settings.type](sender.settings, message, attempt)
            failpoints.hit("deliveries.send.after")
        except requests.UndeliveredError as error:
            log_fields = {"receiver": receiver, "budget": key.text}
            problem, delay = self._rest(sender, receiver, failures=due.failures, error=error, log_fields=log_fields)
            await budget_messages.failed(self._database, key, due, receiver=receiver, problem=problem, delay=delay)
            return
        await budget_messages.sent(self._database, key, due, receiver=receiver)
        self._resume(sender, receiver)

    def _resume(self, sender: _Sender, receiver: str) -> None:
        """Count a message that was sent."""
        metrics.DELIVERIES.add(receiver, "sent")
        if sender.failures:
            sender.failures = 0
            log.info("a receiver takes messages again", extra={"action": "delivery_resumed", "receiver": receiver})

    def _message(
        self, details: summaries.Details, due: stored.Due, settings: deliveries.Receiver, *, receiver: str
    ) -> messages.Message:
        """Return the message, with the built-in text if the receiver's template fails."""
        platform = self._platform()
        pages = platform.api.public_url if platform.web.enabled else None
        about = messages.investigation(details, secrets=self._cluster.secrets, pages=pages)
        identity = f"{details.summary.id}-{due.revision}"
        try:
            return messages.message(
                about, event=due.event, receiver=receiver, identity=identity, template=settings.text
            )
        except templating.TemplateError as error:
            log_fields = {"action": "delivery_text_failed", "receiver": receiver}
            log.warning("the built-in text is sent, because a template failed: %s", error, extra=log_fields)
        return messages.message(about, event=due.event, receiver=receiver, identity=identity, template=None)

    def _rest(
        self,
        sender: _Sender,
        receiver: str,
        *,
        failures: int,
        error: requests.UndeliveredError,
        log_fields: Mapping[str, object],
    ) -> tuple[str, timedelta]:
        """Let the receiver or the message rest; return the problem, and the delay of the message.

        `failures` are the failed attempts to send it before.
        """
        problem = self._cluster.secrets.mask(str(error))
        delay = 0.0
        if error.of_message:
            delay = max(error.after, min(FIRST_REPEAT * 2.0 ** min(failures, 30), LONGEST_REPEAT))
        else:
            pause = min(FIRST_PAUSE * 2.0 ** min(sender.failures, 30), LONGEST_PAUSE)
            pause = max(error.after, pause * (0.5 + random.random() / 2))  # noqa: S311 - spreads load only
            sender.paused_until = time.monotonic() + pause
            if failures >= TRIED_FIRST:  # then others are tried before it
                delay = LONGEST_PAUSE
        if error.of_message or not sender.failures:
            log.warning("a message was not delivered: %s", problem, extra={"action": "delivery_failed", **log_fields})
        sender.failures += not error.of_message
        metrics.DELIVERIES.add(receiver, "failed")
        return problem, timedelta(seconds=delay)

    async def _give_up(self, receivers: Collection[str]) -> None:
        """Give up the messages that are too old; the statuses of their investigations, and events, say so.

        A budget has an event at its threshold already.
        """
        for receiver in receivers:
            for message in await stored.give_up(self._database, receiver=receiver, limit=EXPIRED_AT_ONCE):
                metrics.DELIVERIES.add(receiver, "given_up")
                log_fields = {"action": "delivery_given_up", "receiver": receiver, "uid": message.investigation}
                log.warning("a message was given up: %s", message.problem or "it was not reached", extra=log_fields)
        for receiver, key, problem in await budget_messages.give_up(self._database, list(receivers)):
            metrics.DELIVERIES.add(receiver, "given_up")
            log_fields = {"action": "delivery_given_up", "receiver": receiver, "budget": key.text}
            log.warning("a message was given up: %s", problem or "it was not reached", extra=log_fields)


async def _keep_nothing(_: object) -> None:
    """A message about a budget has no parts."""
