"""The masking that the platform file in force sets: of alerts, and of the secrets that this process was given."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from tarsy.config.model import platforms
from tarsy.config.redact import secret_values
from tarsy.masking import known_secrets, masker
from tarsy.process.runtime import platform_file


@dataclass(frozen=True, kw_only=True)
class Masking:
    """The masking of one process."""

    known: known_secrets.KnownSecrets
    """The secrets that this process was given."""
    alerts: masker.InForce = field(default_factory=lambda: masker.InForce(platforms.AlertMasking().masker()))
    """The masking of every alert before it is stored or sent."""

    def adopt(self, loaded: platforms.Platform) -> None:
        """Mask from now on as that platform file says, and what this process was given wherever it turns up."""
        self.alerts.replace(loaded.defaults.alert_masking.masker())
        self.known.replace(secret_values.values(loaded, os.environ))

    async def prepare(self, next_in_force: platforms.Platform, _: platform_file.Unusable) -> platform_file.Prepared:
        """Mask the next platform's secrets already now, because its new servers and providers may repeat them.

        Alerts are masked as it says once it is in force.
        """
        alerts = await asyncio.to_thread(next_in_force.defaults.alert_masking.masker)
        await asyncio.to_thread(lambda: self.known.replace(secret_values.values(next_in_force, os.environ)))
        return platform_file.Prepared(exchange=lambda: self.alerts.replace(alerts))
