"""The handling of alerts: their types, their namespaces, and the tokens that webhooks bring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from tarsy.config.model.fields import Namespace, Namespaces, Part, Time, Word, within
from tarsy.resources import base

TOKENS_MAX = 1000


class Token(Part):
    """A token that sends alerts to the webhooks of some namespaces, and does nothing else."""

    token_file: Path
    """A file that holds the token, such as a mounted Secret. A changed file comes into force within seconds."""
    namespaces: Annotated[Namespaces, Field(min_length=1)]
    """The served namespaces that the token may send alerts to: to the paths that end with their names and, if
    `ingest.namespace` is among them, also to those that name no namespace."""


class Ingest(Part):
    """The handling of alerts from webhooks."""

    alert_type_label: Word = "alert_type"
    """The label with an alert's type; without it, the type is the label `alertname`."""
    default_alert_type: base.AlertType | None = None
    """The type for alerts whose type no chain takes; None does not investigate them."""
    cooldown: Annotated[Time, within("0s", "365d")] = Field(default="5m", validate_default=True)
    """The time after the end of an investigation in which new episodes of its alert are counted on it; 0s is none. If
    it failed, it is a minute at least; for the second failure in a row 4 cool-downs, for later ones 16."""
    dedup_window: Annotated[Time, within("1s", "365d")] = Field(default="7d", validate_default=True)
    """The time for which an alert episode is remembered, also after its investigation is deleted."""
    namespace: Namespace | None = None
    """The served namespace of alerts that come without one; None is the operator's own. A change needs a restart."""
    tokens: Annotated[list[Token], Field(max_length=TOKENS_MAX)] = []
    """Further tokens of webhooks, such as one for each team; TARSY_WEBHOOK_TOKEN is for `ingest.namespace` alone."""

    @model_validator(mode="after")
    def _names_each_file_once(self) -> Ingest:
        first_uses: dict[Path, int] = {}
        for index, token in enumerate(self.tokens):
            first = first_uses.setdefault(token.token_file, index)
            if first != index:
                raise ValueError(
                    f"tokens.{index}.token_file: the same file as of tokens.{first}: list all its namespaces there"
                )
        return self
