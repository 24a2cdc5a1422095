"""The context of a process: the parts that its roles are built with."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tarsy.config.load import settings
from tarsy.process import startup, traces
from tarsy.process.runtime import masking, platform_file
from tarsy.store.base import databases, hints
from tarsy.store.fleet import reporter


@dataclass(frozen=True, kw_only=True)
class Context:
    """The common parts of all roles of a process."""

    options: settings.Settings
    in_force: platform_file.PlatformFile
    masking: masking.Masking
    channels: hints.Channels
    """The channels of hints on which this process listens; each role adds its callbacks."""
    database: databases.Database
    early: startup.Early
    own_namespace: str
    """The operator's; "" if a process without the roles controller and api does not know it."""
    stack: AsyncExitStack
    traces: traces.Traces | None
    """None if no traces are sent."""
    owner: uuid.UUID
    """The random id of this process for leases; the name of a pod may be used again."""
    process_reporter: reporter.Reporter
