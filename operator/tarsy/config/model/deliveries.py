"""The receivers of messages about investigations: where they are, and which investigations they hear of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tarsy import templating
from tarsy.config.model.fields import (
    ALL_NAMESPACES,
    URL,
    AllowedNamespaces,
    Headers,
    Namespaces,
    Part,
    Variable,
    Word,
    require,
)
from tarsy.resources import base, investigations

Milestone = Literal["started", "ended", "resolved"]
"""The first claim of an investigation by a worker, its end, and the end of its alert after that."""
MILESTONES: tuple[Milestone, ...] = ("started", "ended", "resolved")
EventName = Literal[Milestone, "updated"]
"""A milestone, or an update of what was told: a stage has ended, or alerts have joined."""
BUDGET = "budget"
HeardEvent = Literal[EventName, "budget"]
"""An event of an investigation, or a threshold of a budget that is passed."""
TEXT_NAMES = ("event", "receiver", "investigation")
"""The variables of the template of a text."""
BODY_NAMES = (*TEXT_NAMES, "title", "text", "budget")
"""The variables of the template of a body; of `investigation` and `budget` one is none."""


_CHANNEL = "^[CGD][A-Z0-9]{2,30}$"


def _template(names: tuple[str, ...]) -> AfterValidator:
    def check(source: str) -> str:
        try:
            templating.check(source, names=names)
        except templating.TemplateError as error:
            raise ValueError(str(error)) from None
        return source

    return AfterValidator(check)


Text = Annotated[str, Field(min_length=1, max_length=16 * 1024), _template(TEXT_NAMES)]
Body = Annotated[str, Field(min_length=1, max_length=16 * 1024), _template(BODY_NAMES)]


class Rule(Part):
    """The investigations that a receiver hears of: those that match all of its keys."""

    namespaces: Namespaces | None = None
    """The namespaces; None is all that the receiver allows."""
    chains: Annotated[list[base.Reference] | None, Field(max_length=100)] = None
    """The names of chains; None is all, also for an investigation without a chain."""
    severities: Annotated[list[Word] | None, Field(max_length=20)] = None
    """The severities of alerts, as their labels write them; None is all, also none. Of several alerts, one matches."""
    labels: dict[Word, str] = {}
    """The labels that identify the first alert, and their values: alertname, namespace, and the one that names a
    workload."""
    phases: list[investigations.EndedPhase] | None = None
    """The phases at the end; None is all. With it, only ended investigations match."""
    grounded: bool | None = None
    """Whether the result rests on something that was inspected. With it, only results match; None is all."""


class _Receiver(Part):
    """A receiver, and the investigations that it hears of."""

    allowed_namespaces: AllowedNamespaces = None
    """The namespaces whose investigations it may hear of, `*` for all that are served; None is the operator's own."""
    events: Annotated[list[HeardEvent], Field(min_length=1, max_length=10)] = ["ended"]
    """The events that it hears of: `started`, `ended`, `resolved` (its alert, after the end), and `updated` (the end of
    stages, alerts that join); and `budget`: 50, 80 or 100 % of a budget are spent (webhook and slack)."""
    rules: Annotated[list[Rule], Field(max_length=50)] = [Rule()]
    """The investigations that it hears of: those that match one of the rules, and those of chains that name it in
    `spec.notify`. [] is the latter alone."""
    text: Text | None = None
    """The template of the text, in Jinja2; None is the built-in one."""

    def may_hear_of(self, namespace: str, *, own: str) -> bool:
        """Return whether it may hear of investigations in a namespace; `own` is the operator's."""
        allowed = [own] if self.allowed_namespaces is None else self.allowed_namespaces
        return namespace in allowed or ALL_NAMESPACES in allowed


class Webhook(_Receiver):
    """A receiver of JSON over HTTP, of TARSy's own shape or of a template's."""

    type: Literal["webhook"]
    url: URL | None = None
    """The address, if nothing in it is a secret."""
    url_env: Variable | None = None
    """The environment variable with the address, if a part of it is a secret, as it is of Teams workflows."""
    url_file: Path | None = None
    """A file with the address, such as a mounted Secret; read again for each request."""
    headers: Headers = {}
    """The headers of each request. Give secrets by `{{.VAR}}` and do not write them here."""
    secret_env: Variable | None = None
    """The environment variable with the secret that signs requests: `whsec_` and base64 of 24 to 64 bytes."""
    secret_file: Path | None = None
    """A file with that secret; it takes precedence over `secret_env`."""
    body: Body | None = None
    """The template of another JSON body, for receivers that expect their own shape."""

    @model_validator(mode="after")
    def _has_one_address(self) -> Webhook:
        addresses = [key for key in ("url", "url_env", "url_file") if getattr(self, key) is not None]
        if len(addresses) != 1:
            raise ValueError(f"{addresses[1] if addresses else 'url'}: set one of url, url_env and url_file")
        return self


class _WithToken(_Receiver):
    """A receiver that asks for a token."""

    token_env: Variable | None = None
    """The environment variable with the token."""
    token_file: Path | None = None
    """A file with the token; it takes precedence over `token_env`."""

    @model_validator(mode="after")
    def _has_a_token(self) -> Self:
        if self.token_env is None and self.token_file is None:
            raise ValueError("token_file: missing: name a file or, by token_env, a variable with the token")
        return self


class Slack(_WithToken):
    """A channel of Slack: one message for each investigation, and a thread.

    The token is that of a bot (xoxb-...) with the scope `chat:write`.
    """

    type: Literal["slack"]
    channel: Annotated[
        str,
        Field(json_schema_extra={"pattern": _CHANNEL}),
        require(
            lambda value: re.fullmatch(_CHANNEL, value) is not None,
            "not the id of a channel: its details show one, such as C024BE91L",
        ),
    ]
    """The id of the channel, as its details show it, such as C024BE91L."""
    base_url: URL = "https://slack.com/api"
    """The address of the API."""


class _OfAlerts(_WithToken):
    """A receiver whose messages belong to an alert."""

    @model_validator(mode="after")
    def _hears_of_no_budgets(self) -> Self:
        if BUDGET in self.events:
            raise ValueError("events: 'budget' is for webhook and slack alone: a budget belongs to no alert")
        return self


class Grafana(_OfAlerts):
    """The dashboards of a Grafana: an annotation where the alert names a dashboard; other alerts are passed over.

    The token is that of a service account (glsa_...) with the role Editor.
    """

    type: Literal["grafana"]
    base_url: URL
    """The address of Grafana. Alerts choose a dashboard there, never another address."""


class PagerDuty(_OfAlerts):
    """Notes on the incidents that Alertmanager opened in PagerDuty for the alerts; alerts of others are passed over.

    The token is an API key of the REST API that may write.
    """

    type: Literal["pagerduty"]
    from_email: Annotated[str, Field(max_length=254, pattern="^[!-?A-~]+@[!-?A-~]+$")]
    """The mail address of a user of the account, who is shown as the author of the notes."""
    services: Annotated[list[Annotated[str, Field(pattern="^[A-Z0-9]{1,40}$")]], Field(max_length=20)] = []
    """The ids of the services of Alertmanager's incidents, such as PIJ90N7. Needed where several clusters or teams
    of one account have Alertmanagers whose groups are alike: their incidents have the same key."""
    base_url: URL = "https://api.pagerduty.com"
    """The address of the REST API; accounts in Europe have https://api.eu.pagerduty.com."""

    @model_validator(mode="after")
    def _hears_of_no_updates(self) -> PagerDuty:
        if "updated" in self.events:
            raise ValueError(
                "events: 'updated' is not for pagerduty: a note cannot be changed, so each update would be another "
                "note; it hears of started, ended and resolved"
            )
        return self


Receiver = Annotated[Webhook | Slack | Grafana | PagerDuty, Field(discriminator="type")]
