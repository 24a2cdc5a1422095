"""The API role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tarsy.api import app
from tarsy.auth import webhook_tokens
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.live import hubs
from tarsy.mcp_endpoint import endpoint
from tarsy.process import supervision
from tarsy.process.context import Context
from tarsy.process.runtime import platform_file
from tarsy.resources import base
from tarsy.store.base import databases, notify
from tarsy.store.live import text_streams
from tarsy.web import site

LIVE_CONNECTIONS = 2
"""Connections to the database for live updates only, so that viewers delay no work."""

log = logging.getLogger(__name__)


class _WebhookTokens:
    """The tokens of webhooks, by the platform file in force."""

    def __init__(self, token: str, context: Context, cluster: client.Cluster) -> None:
        """`token` is TARSY_WEBHOOK_TOKEN's."""
        self._token = token
        self._default_namespace = cluster.served.default
        self.in_force = self._load(context.in_force.platform)
        context.in_force.prepare(self._prepare)
        context.in_force.warn(lambda: self.in_force.problems)

    def _load(self, platform: platforms.Platform) -> webhook_tokens.Tokens:
        loaded = webhook_tokens.load(self._token, platform.ingest, default_namespace=self._default_namespace)
        for problem in loaded.problems:
            log.warning("%s", problem, extra={"action": "webhook_token_unusable"})
        return loaded

    async def _prepare(self, platform: platforms.Platform, _: platform_file.Unusable) -> platform_file.Prepared:
        loaded = await asyncio.to_thread(self._load, platform)

        def exchange() -> None:
            self.in_force = loaded

        return platform_file.Prepared(exchange=exchange)


def build(
    context: Context,
    cluster: client.Cluster,
    *,
    token: str | None,
    admitted: Callable[[base.ObjectMeta], None] | None,
) -> list[supervision.Part]:
    """Build the role; `admitted` is the callback of this process's controller, if it has one."""
    live_database = databases.Database(context.database.url, pool_size=LIVE_CONNECTIONS)
    context.stack.push_async_callback(live_database.close)
    hub = hubs.Hub(live_database)

    def refresh(_: str) -> bool:
        hub.poll()
        return context.options.serves("controller")  # otherwise another process writes the status

    tokens = None if token is None else _WebhookTokens(token, context, cluster)
    application = app.build(
        app.Parts(
            cluster=cluster,
            database=context.database,
            platform=lambda: context.in_force.platform,
            index=context.in_force.index,
            configuration_version=lambda: context.in_force.number,
            mask=context.masking.mask_alert,
            secrets=context.masking.secrets,
            readiness=context.early.readiness,
            process_reporter=context.process_reporter,
            hub=hub,
            tokens=None if tokens is None else lambda: tokens.in_force,
            on_admitted=admitted,
        )
    )
    endpoint.add(application)
    if context.in_force.platform.web.enabled:
        site.add(application)
    context.process_reporter.add_source(application.services.alert_intake.owners.facts)
    context.early.front.hand_over(application)
    context.channels.listen({text_streams.TEXTS: hub.hint, notify.STATUS: refresh})
    return [hub.run]
