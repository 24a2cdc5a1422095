"""The parts of a process that all its roles share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tarsy.config.load import settings
from tarsy.process import startup
from tarsy.process.runtime import masking, platform_file
from tarsy.store.base import databases, notify
from tarsy.store.fleet import reporter


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The parts that roles are built with."""

    options: settings.Settings
    in_force: platform_file.PlatformFile
    masking: masking.Masking
    database: databases.Database
    early: startup.Early
    stack: AsyncExitStack
    owner: uuid.UUID
    """This process, to the leases; random, because a pod's name may be used again."""
    kept: reporter.Keeper

    def hear(self, hints: Mapping[str, Callable[[str], bool]]) -> None:
        """Have hints told, from this process and from others; beside those who are told of them already."""
        for channel, hint in hints.items():
            waiter = self.database.hinted.get(channel)
            self.database.hinted[channel] = notify.both(waiter, hint) if waiter else hint
