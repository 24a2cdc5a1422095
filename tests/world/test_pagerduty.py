"""Notes on PagerDuty's incidents: a PagerDuty on loopback that answers as its documentation says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from support import pagerduty as fake
from support import receivers
from tarsy.config.model import deliveries
from tarsy.deliveries import messages, pagerduty, requests

KEY, OTHER = "a" * 64, "b" * 64


def about(**values: Any) -> messages.Investigation:
    empty: dict[str, Any] = dict.fromkeys(messages.Investigation.model_fields)
    fields = empty | {"id": UUID(int=1), "admitted_at": datetime.now(UTC), **values}
    return messages.Investigation.model_construct(**fields)


def message(text: str = "web-0 is out of memory.") -> messages.Message:
    return messages.Message.model_construct(
        id="1", receiver="r", title="Crash [critical]", text=text, event="ended", investigation=about()
    )


class Duty:
    """Sender of notes to one receiver, which keeps what it noted."""

    def __init__(self, url: str, client: requests.Client) -> None:
        self.notes: Mapping[str, Any] = {}
        self.keys: tuple[str, ...] = (KEY,)
        self.from_email = fake.USER
        self.services: list[str] = []
        self._url = url
        self._client = client

    async def send(self, text: str = "web-0 is out of memory.", *, may_be_sent: bool = False) -> None:
        settings = deliveries.PagerDuty.model_validate(
            {"type": "pagerduty", "from_email": self.from_email, "base_url": self._url, "token_env": "TOKEN"}
            | {"services": self.services}
        )

        async def keep(notes: Mapping[str, Any]) -> None:
            self.notes = dict(notes)

        attempt = requests.Attempt(
            client=self._client,
            paces=requests.Paces(),
            environment={"TOKEN": fake.TOKEN},
            sent_as=self.notes,
            group_digests=self.keys,
            may_be_sent=may_be_sent,
            keep=keep,
        )
        self.notes = await pagerduty.send(settings, message(text), attempt)


@pytest.fixture
async def account() -> fake.PagerDuty:
    return fake.PagerDuty()


@pytest.fixture
async def receiver(account: fake.PagerDuty) -> AsyncIterator[receivers.Receiver]:
    async with receivers.started() as receiver:
        receiver.answer = account.answer
        yield receiver


@pytest.fixture
async def duty(receiver: receivers.Receiver) -> AsyncIterator[Duty]:
    async with requests.Client() as client:
        yield Duty(receiver.url, client)


async def test_incident_of_the_alert_has_a_note_for_each_text(account: fake.PagerDuty, duty: Duty) -> None:
    incident, other = account.opened(KEY, "c"), account.opened(OTHER)
    for text in ("first", "first", "second"):
        await duty.send(text)
    assert account.notes == {incident: ["Crash [critical]\nfirst", "Crash [critical]\nsecond"], other: []}
    assert account.calls == ["GET /incidents", *[f"POST /incidents/{incident}/notes"] * 2]


async def test_receivers_services_alone_choose_among_equal_keys_of_several_services(
    account: fake.PagerDuty, duty: Duty
) -> None:
    account.opened(KEY, service="PWEB", status="resolved", ago=timedelta(days=9))
    ours, theirs = account.opened(KEY, service="POURS"), account.opened(KEY, service="PTHEIRS")
    with pytest.raises(requests.UndeliveredError, match="set services of the receiver") as error:
        await duty.send()
    assert error.value.of_message
    duty.services = ["POURS"]
    await duty.send()
    assert (len(account.notes[ours]), account.notes[theirs]) == (1, [])


async def test_open_or_recent_incident_matches_the_alert_and_earlier_incident_does_not(
    account: fake.PagerDuty, duty: Duty
) -> None:
    account.opened(KEY, status="resolved", ago=timedelta(hours=2))
    with pytest.raises(requests.UndeliveredError, match="no incident of the alert") as error:
        await duty.send()
    assert error.value.of_message
    resolved = account.opened(KEY, status="resolved", ago=timedelta(minutes=5))
    await duty.send()
    assert len(account.notes[resolved]) == 1
    duty.notes = {}
    still_open = account.opened(KEY, status="acknowledged", ago=timedelta(days=3))
    await duty.send()
    assert len(account.notes[still_open]) == 1


async def test_each_incident_of_group_gets_one_note_despite_rate_limit_or_lost_answer(
    account: fake.PagerDuty, duty: Duty, receiver: receivers.Receiver
) -> None:
    incidents = account.opened(KEY), account.opened(OTHER)
    duty.keys = (KEY, "unknown", OTHER)
    failing = ["limited", "lost"]

    def answer(request: receivers.Request) -> web.StreamResponse:
        is_second = request.method == "POST" and incidents[1] in request.path
        failure = failing.pop(0) if is_second and failing else ""
        account.limits = int(failure == "limited")
        answered = account.answer(request)
        return web.Response(status=502) if failure == "lost" else answered

    receiver.answer = answer
    with pytest.raises(requests.UndeliveredError, match="429") as error:
        await duty.send()
    assert (error.value.after, error.value.of_message) == (7.0, False)
    with pytest.raises(requests.UndeliveredError, match="502"):
        await duty.send(may_be_sent=True)
    await duty.send(may_be_sent=True)
    assert [len(account.notes[incident]) for incident in incidents] == [1, 1]
    assert set(duty.notes) == {KEY, OTHER}


async def test_alert_of_another_sender_has_no_incident_and_asks_for_none(account: fake.PagerDuty, duty: Duty) -> None:
    duty.keys = ()
    await duty.send()
    assert (account.calls, duty.notes) == ([], {})


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (web.Response(status=401, text="secret"), "it answers 401: it does not accept the API key"),
        (web.Response(status=403), "it answers 403: the API key may not do this; does it only read?"),
        (
            web.Response(status=302, headers={"Location": "http://x"}),
            "it answers 302, a redirect, which is not followed",
        ),
        (web.Response(text="<html>"), "it answers no JSON object"),
        (web.json_response({"incidents": {"0": {}}}), "it answers without incidents"),
        (web.json_response({"incidents": [{"id": "../../users", "status": "triggered"}, 7]}), "it has no incident"),
        (web.Response(body=b"[" * 3_000_000), "it answers no JSON object"),
    ],
    ids=["key", "rights", "redirect", "no JSON", "shape", "ids", "flood"],
)
async def test_answers_that_are_wrong_are_errors_with_a_name(
    receiver: receivers.Receiver, duty: Duty, answer: web.Response, problem: str
) -> None:
    receiver.answer = lambda _: answer
    with pytest.raises(requests.UndeliveredError) as error:
        await duty.send()
    assert str(error.value).startswith(problem)
    assert len(receiver.requests) == 1


async def test_unknown_author_is_reported_and_deleted_incident_delays_no_other_messages(
    account: fake.PagerDuty, duty: Duty
) -> None:
    account.opened(KEY)
    duty.from_email = "nobody@shop.example"
    with pytest.raises(requests.UndeliveredError, match="it answers 400: from_email") as error:
        await duty.send()
    assert not error.value.of_message, "all messages have this author"
    duty.from_email = fake.USER
    account.notes.clear()
    with pytest.raises(requests.UndeliveredError, match="it answers 404") as error:
        await duty.send()
    assert error.value.of_message
