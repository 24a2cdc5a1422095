"""The types of receivers, and the function that sends a message to each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tarsy.deliveries import grafana, pagerduty, requests, slack, webhook

Send = Callable[[Any, Any, requests.Attempt], Awaitable[Mapping[str, Any]]]
"""Its arguments are the receiver's settings, a message that it takes, and the attempt."""

TYPES: Mapping[str, Send] = {
    "grafana": grafana.send,
    "pagerduty": pagerduty.send,
    "slack": slack.send,
    "webhook": webhook.send,
}
