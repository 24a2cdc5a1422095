"""The handling of alerts: their types, their namespaces, and the tokens that webhooks bring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from tarsy.config.model.fields import Namespace, Namespaces, Part, Time, Word, within
from tarsy.resources import base

WEBHOOK_TOKEN = "TARSY_WEBHOOK_TOKEN"  # noqa: S105 - the variable's name
TOKENS_MAX = 1000
SEVERITIES_MAX = 100


class Token(Part):
    """A token that sends alerts to the webhooks of some namespaces, and does nothing else."""

    token_file: Path
    """A file that holds the token, such as a mounted Secret. A changed file comes into force within seconds."""
    namespaces: Annotated[Namespaces, Field(min_length=1)]
    """The served namespaces that the token may send alerts to: to the paths that end with their names and, if
    `ingest.namespace` is among them, also to those that name no namespace."""
    source: Annotated[str, Field(max_length=253)] = ""
    """The name of the sender: the Alertmanagers of an HA pair have one, another cluster has its own. Alerts of two
    sources are never one, though all their labels are equal. "" is the token itself in the keys of groups; an alert of
    several tokens without a source is one."""


class ThisCluster(Part):
    """The alerts that are about the cluster that TARSy runs in. Of no other alert a pod is looked up."""

    senders: Annotated[list[Annotated[str, Field(min_length=1, max_length=253)]], Field(max_length=TOKENS_MAX)] = [
        WEBHOOK_TOKEN
    ]
    """Their senders: TARSY_WEBHOOK_TOKEN, or a `source` of `ingest.tokens`. Others never are."""
    name: Annotated[str, Field(max_length=1024)] = ""
    """The value of their label `ingest.cluster_label`; "" if they have none."""


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
    severities: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=SEVERITIES_MAX)
    ] = [
        "critical",
        "error",
        "high",
        "warning",
        "medium",
        "low",
        "info",
        "none",
    ]
    """The severities of alerts, the highest first; capital letters do not matter. An alert that joins an investigation
    with a higher one lets it be claimed earlier, and is not counted on one that has ended."""
    cluster_label: Word = "cluster"
    """The label that names an alert's cluster, where a sender brings alerts of several. Chains with `grouping.by:
    Owner` keep its values apart."""
    this_cluster: ThisCluster | None = None
    """The alerts that are about the cluster that TARSy runs in. Chains with `grouping.by: Owner` look their pods and
    Jobs up; None looks none up."""
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

    @model_validator(mode="after")
    def _has_senders(self) -> Ingest:
        sources = {WEBHOOK_TOKEN, *(token.source for token in self.tokens)}
        for index, sender in enumerate(self.this_cluster.senders if self.this_cluster else ()):
            if sender not in sources:
                raise ValueError(
                    f"this_cluster.senders.{index}: '{sender}' is no sender: write {WEBHOOK_TOKEN}, or the"
                    " `source` of one of `tokens`"
                )
        return self
