"""Messages that a client may send over a WebSocket, and the answers to all others."""

from __future__ import annotations

import json

import hypothesis
import pytest
from hypothesis import strategies as st
from tarsy.api.compat import live_updates
from tarsy.live import live_events, web_sockets
from tarsy.serve import problems
from websockets import frames

SESSIONS = live_updates.SessionTranslation()
ID = "6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (None, "binary frames are not accepted"),
        ("{", "the text is not JSON"),
        ("[" * 60_000, "the text is not JSON"),
        ('{"action": "ping", "action": "ping"}', "a member appears twice"),
        ('{"action": "subscribe", "channel": "investigations", "last_event_id": NaN}', "NaN is not JSON"),
        ('{"last_event_id": ' + "9" * 5000 + "}", "the text is not JSON"),
        ("[]", "send an object with an action: one of subscribe, unsubscribe, catchup, ping"),
        ('{"action": ["ping"]}', "send an object with an action"),
        ('{"action": "publish"}', "send an object with an action"),
        ('{"action": "ping", "channel": "investigations"}', "ping: channel: "),
        ('{"action": "subscribe"}', "subscribe: channel: "),
        ('{"action": "subscribe", "channel": "' + "a" * 101 + '"}', "subscribe: channel: "),
        ('{"action": "subscribe", "channel": "investigations", "last_event_id": "3"}', "subscribe: last_event_id: "),
        ('{"action": "subscribe", "channel": "investigations", "last_event_id": -1}', "subscribe: last_event_id: "),
        (f'{{"action": "subscribe", "channel": "x", "last_event_id": {2**63}}}', "subscribe: last_event_id: "),
        ('{"action": "subscribe", "channel": "investigations", "since": 3}', "subscribe: since: "),
        ('{"action": "catchup", "channel": "investigations"}', "catchup: last_event_id: "),
        ('{"action": "unsubscribe", "channel": "investigations", "last_event_id": 3}', "unsubscribe: last_event_id: "),
    ],
)
def test_unknown_action_is_refused_with_list_of_known_actions(message: str | None, expected: str) -> None:
    with pytest.raises(web_sockets.RefusedError) as error:
        web_sockets.parse_request(message)
    assert expected in str(error.value)
    assert len(str(error.value)) < 5 * problems.ECHOED_MAX


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(("action", "channel")), inner),
    max_leaves=20,
)
ALMOST = st.fixed_dictionaries(
    {"action": st.sampled_from(("subscribe", "unsubscribe", "catchup", "ping")) | JSON},
    optional={"channel": st.text() | JSON, "last_event_id": st.integers() | JSON, "namespace": st.text() | JSON},
)


@hypothesis.given(st.text() | JSON.map(json.dumps) | ALMOST.map(json.dumps))
def test_any_text_is_an_action_or_is_refused(message: str) -> None:
    try:
        request = web_sockets.parse_request(message)
    except web_sockets.RefusedError:
        return
    assert request.model_dump(exclude_unset=True) == json.loads(message)


@pytest.mark.parametrize(
    ("name", "channel"),
    [
        ("investigations", live_events.Channel(None)),
        ("sessions", live_events.Channel(None, SESSIONS)),
        (f"investigation:{ID}", live_events.Channel(ID)),
        (f"session:{ID}", live_events.Channel(ID, SESSIONS)),
        ("investigation:", live_events.Channel("")),
        ("investigation", None),
        ("Investigations", None),
        (f"alert:{ID}", None),
        ("", None),
    ],
)
def test_channels_have_these_names(name: str, channel: live_events.Channel | None) -> None:
    assert live_events.parse_channel(name, SESSIONS) == channel
    assert channel is None or channel.name == name


def test_refusal_of_an_unknown_channel_names_all_channels() -> None:
    assert live_events.channel_names(None) == "investigations and investigation:<id>"
    assert live_events.channel_names(SESSIONS) == "investigations, investigation:<id>, sessions and session:<id>"
    assert live_events.parse_channel("sessions", None) is None


@pytest.mark.parametrize("text", ["", "é", "x" * 114, "x" * 115, "é" * 100, "x" * 65_524, "x" * 65_525])
def test_shared_text_frame_equals_the_protocols_own(text: str) -> None:
    payload = json.dumps({"text": text}, ensure_ascii=False, separators=(",", ":")).encode()
    frame = frames.Frame(frames.Opcode.TEXT, payload)
    assert live_events.text_frame({"text": text}) == frame.serialize(mask=False)
