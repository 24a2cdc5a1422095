"""The masking that the platform file in force sets: known secrets, and the masker of alerts."""

from __future__ import annotations

import asyncio
import os

from tarsy.config.model import platforms
from tarsy.config.redact import secret_values
from tarsy.masking import known_secrets
from tarsy.process.runtime import platform_file


class Masking:
    """The masking of one process."""

    def __init__(self, secrets: known_secrets.KnownSecrets) -> None:
        """`secrets` are the known secrets, which `adopt` and `prepare` add to."""
        self.secrets = secrets
        self._alert_masker = platforms.AlertMasking().masker(secrets)

    def mask_alert(self, text: str) -> str:
        """Mask an alert, a question or a runbook by the rules of the platform file in force."""
        return self._alert_masker.text(text)

    def adopt(self, loaded: platforms.Platform) -> None:
        """Mask by the rules of a platform file from now on, and add its secrets to the known ones."""
        self._alert_masker = loaded.defaults.alert_masking.masker(self.secrets)
        self.secrets.add(secret_values.collect(loaded, os.environ))

    async def prepare(self, next_in_force: platforms.Platform, _: platform_file.Unusable) -> platform_file.Prepared:
        """Mask the next platform's secrets from now on, because its new servers and providers may repeat them.

        Its rules for alerts apply once it is in force.
        """
        alert_masker = await asyncio.to_thread(next_in_force.defaults.alert_masking.masker, self.secrets)
        await asyncio.to_thread(lambda: self.secrets.add(secret_values.collect(next_in_force, os.environ)))

        def exchange() -> None:
            self._alert_masker = alert_masker

        return platform_file.Prepared(exchange=exchange)
