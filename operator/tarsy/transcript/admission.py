"""The admission of an object that asks for an investigation: a snapshot to run, or a refusal, not yet stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tarsy.resources import chains, investigations


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The refusal of an investigation: it ends before it begins."""

    reason: str
    """CamelCase, for conditions."""
    message: str


@dataclass(frozen=True, kw_only=True)
class AdmittedChain:
    """The chain as it was when the investigation was admitted: a later edit never changes a running one."""

    name: str
    namespace: str
    generation: int
    hash: str
    spec: chains.Spec


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The ended investigation that a new one runs again, and the part of it that is copied."""

    original: str
    """The uid of the ended one."""
    from_stage: str | None
    """The first stage that runs again; None for all."""
    copied_stages: tuple[str, ...] = ()
    """The stages before `from_stage`."""


@dataclass(frozen=True, kw_only=True)
class Original:
    """An investigation that may be run again, as far as a new one needs it. All text is masked."""

    id: str
    namespace: str
    namespace_uid: str | None
    name: str
    has_ended: bool
    alert_type: str
    alert_data: str
    alert_summary: str
    severity: str | None
    runbook_url: str | None
    fingerprint: str | None
    labels: Mapping[str, str]
    generator_url: str | None
    external_url: str | None
    mcp: investigations.MCP | None
    chain: AdmittedChain | None
    """The chain that it ran; None if it was refused."""
    stage_outcomes: Mapping[str, str]
    """The outcome of each stage that has ended by itself, by its name: not by the end of the investigation."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """An alert that may join the investigation of a group, masked and cut."""

    fingerprint: str
    starts_ms: int
    alert_type: str
    severity: str
    labels: Mapping[str, str]
    """The labels that identify it."""
    words: str
    """The text that a search matches."""
    alert_json: str = ""
    """The alert as JSON, with which an investigation of its own would begin."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """An alert that has joined the investigation of a group, as it is stored."""

    fingerprint: str
    starts_ms: int
    alert_type: str
    severity: str
    labels: Mapping[str, str]
    """The labels that identify it."""
    alert_json: str | None
    """See `Member`; None if an earlier build let it join."""
    is_firing: bool

    @property
    def starts_at(self) -> datetime:
        """The start of the alert."""
        return datetime.fromtimestamp(self.starts_ms / 1000, UTC)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """One object, with the chain that it is to run; all text from outside is masked."""

    id: str
    """The object's uid."""
    namespace: str
    name: str
    generation: int
    alert_type: str
    alert_data: str | None
    """None if it is in the store, under `alert_data_ref`."""
    alert_data_ref: str | None = None
    namespace_uid: str | None = None
    """The uid of its namespace: a later namespace of the same name does not inherit the investigation."""
    author: str = ""
    """The author, by the object's own claim."""
    severity: str | None = None
    runbook_url: str | None = None
    fingerprint: str | None = None
    starts_at: datetime | None = None
    """The start of the alert; with `fingerprint` it identifies the alert's episode."""
    receipt: str | None = None
    """The receipt in the object; the store checks whether intake issued it."""
    digest: str = ""
    """The digest of the spec with which the object was created; set with `receipt`."""
    priority: int = 0
    suspend: bool = False
    mcp: investigations.MCP | None = None
    """The tool selection of the object."""
    ttl_seconds: int | None = None
    """The time to live of the ended object, if its spec sets one; None means the chain's."""
    target: str = ""
    """The subject of the alert, on one line."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that identify the alert."""
    alert_summary: str = ""
    """The first line of its annotation `summary`; "" if the alert data is in the store, which has it too."""
    generator_url: str | None = None
    external_url: str | None = None
    group_digest: str | None = None
    """The digest of the group key of its notification."""
    traceparent: str | None = None
    """The span of another system that the alert carries."""
    depth: int = 0
    """The number of investigations in a row that led to this one."""
    retry: Retry | None = None
    chain: AdmittedChain | Refusal
    """The chain that it runs, or the reason of its refusal."""
