"""The receiver `webhook`: JSON over HTTP, with CloudEvents headers and a signature.

Sources: CloudEvents 1.0.2, "HTTP Protocol Binding", binary content mode; Standard Webhooks 1.0.0, "Signature scheme".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tarsy import templating
from tarsy.config.model import deliveries
from tarsy.deliveries import messages, requests, secrets

BODY_MAX = 256 * 1024
"""Characters of a body that a template makes."""
_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


AnyMessage = messages.Message | messages.BudgetMessage


async def send(settings: deliveries.Webhook, message: AnyMessage, attempt: requests.Attempt) -> Mapping[str, Any]:
    """Send `message`; its receiver drops doubles itself. Raises UndeliveredError."""
    url = settings.url or secrets.read(settings, "url", attempt.environment)
    body = _body(settings, message)
    own = {**cloud_event(message), "content-type": "application/json"}
    if settings.secret_env is not None or settings.secret_file is not None:
        own |= signature(secrets.read(settings, "secret", attempt.environment), body, identity=message.id)
    others = {name: value for name, value in settings.headers.items() if name.lower() not in own}
    await attempt.client.send("POST", url, headers={**others, **own}, body=body, answer_max=0)
    return {}


def cloud_event(message: AnyMessage) -> dict[str, str]:
    """Return the attributes of the event as headers."""
    if isinstance(message, messages.BudgetMessage):
        return {
            "ce-specversion": "1.0",
            "ce-id": message.id,
            "ce-type": "dev.tarsy.budget.threshold.v1",
            "ce-source": "/api/v1/budgets",
            "ce-subject": urllib.parse.quote(message.budget.name, safe="-."),
        }
    about = message.investigation
    times = {"started": about.started_at, "ended": about.ended_at}
    at = times.get(message.event)
    return {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-type": f"dev.tarsy.investigation.{message.event}.v1",
        "ce-source": f"/apis/tarsy.dev/v1alpha1/namespaces/{about.namespace}/alertinvestigations",
        "ce-subject": urllib.parse.quote(about.name, safe="-."),
        **({"ce-time": at.isoformat().replace("+00:00", "Z")} if at else {}),
    }


def signature(secret: str, body: bytes, *, identity: str) -> dict[str, str]:
    """Return the headers that sign a body. Raises UndeliveredError if `secret` has another form."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or len(key) not in _SECRET_BYTES:
        raise requests.UndeliveredError(
            "its secret is not whsec_ and base64 of 24 to 64 bytes, as `echo whsec_$(openssl rand -base64 32)` makes it"
        )
    at = str(int(time.time()))
    digest = hmac.digest(key, f"{identity}.{at}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": identity,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _body(settings: deliveries.Webhook, message: AnyMessage) -> bytes:
    if settings.body is None:
        return message.model_dump_json().encode()
    values = {"investigation": None, "budget": None, **message.model_dump(mode="json")}
    try:
        body = templating.render(settings.body, values, limit=BODY_MAX)
    except templating.TemplateError as error:
        raise requests.UndeliveredError(f"body: {error}", of_message=True) from error
    if len(body) > BODY_MAX:
        raise requests.UndeliveredError(f"body: it has more than {BODY_MAX} characters", of_message=True)
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        reason = "body: the template makes no JSON; write texts with |tojson"
        raise requests.UndeliveredError(reason, of_message=True) from None
    return body.encode()
