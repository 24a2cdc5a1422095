"""The API role."""

from __future__ import annotations

from collections.abc import Callable

from tarsy.api import app
from tarsy.kube import client
from tarsy.live import hubs
from tarsy.process import supervision
from tarsy.process.context import Context
from tarsy.resources import base
from tarsy.store.base import databases, notify
from tarsy.store.live import text_streams
from tarsy.web import site

LIVE_CONNECTIONS = 2
"""Connections to the database for live updates only, so that viewers delay no work."""


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
            token=token,
            on_admitted=admitted,
        )
    )
    if context.in_force.platform.web.enabled:
        site.add(application)
    context.early.front.hand_over(application)
    context.channels.listen({text_streams.TEXTS: hub.hint, notify.STATUS: refresh})
    return [hub.run]
