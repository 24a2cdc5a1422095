"""Answers of receivers, and the signature of requests."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.deliveries import requests, webhook


async def test_pace_is_counted_from_last_answer_and_shared_by_senders_to_same_destination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    sent = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    paces = requests.Paces()

    async def send(to_receiver: str, *, after: float | None = None) -> None:
        nonlocal now
        async with paces.one_at_a_time(to_receiver, seconds=1.0):
            sent.append((to_receiver, now))
            now += 0.5  # until the answer
            if after is not None:
                raise requests.UndeliveredError("it answers 429", after=after)

    for receiver in ("a", "a", "b", "a"):
        await send(receiver)
    assert sent == [("a", 100.0), ("a", 101.5), ("b", 102.0), ("a", 103.0)]
    with pytest.raises(requests.UndeliveredError, match="it answers 429"):
        await send("a", after=30.0)
    with pytest.raises(requests.UndeliveredError, match="it limits the rate") as limited:
        await send("a")
    assert limited.value.after == 30.0
    await send("b")
    now += 29.0
    await send("a")
    assert [sent_to for sent_to, _ in sent[4:]] == ["a", "b", "a"], "none while the rate is limited"


SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@given(st.text())
def test_any_retry_after_is_a_bounded_number_of_seconds(value: str) -> None:
    assert 0.0 <= requests.retry_after(value) <= requests.RETRY_AFTER_MAX


def test_retry_after_is_seconds_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    assert requests.retry_after("7") == 7.0
    assert requests.retry_after("999999") == requests.RETRY_AFTER_MAX
    assert requests.retry_after(email.utils.formatdate(now - 60, usegmt=True)) == 0.0
    assert requests.retry_after(email.utils.formatdate(now + 3500, usegmt=True)) == 3500


@pytest.mark.parametrize(
    ("status", "of_message"), [(400, True), (422, True), (401, False), (404, False), (429, False), (500, False)]
)
def test_statuses_about_a_message_alone_let_other_messages_pass(status: int, of_message: bool) -> None:
    assert requests.refusal(status, {}).of_message is of_message


@given(st.binary(max_size=2000))
def test_signature_is_what_standard_webhooks_verifies(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: 1_800_000_000.0)
        headers = webhook.signature(SECRET, body, identity="msg-1")
    version, _, sent = headers["webhook-signature"].partition(",")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert version == "v1"
    assert base64.b64decode(sent) == hmac.digest(bytes(range(32)), signed, "sha256")
    assert headers["webhook-timestamp"] == "1800000000"


@pytest.mark.parametrize(
    "secret", ["", "hunter2", "whsec_", "whsec_AAAA", "whsec_!!!", base64.b64encode(b"x" * 32).decode()]
)
def test_secret_of_another_form_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(requests.UndeliveredError, match="openssl rand") as error:
        webhook.signature(secret, b"", identity="msg-1")
    assert not secret or secret == "whsec_" or secret not in str(error.value)
