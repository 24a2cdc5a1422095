"""The API role."""

from __future__ import annotations

from collections.abc import Callable

from tarsy.api import app
from tarsy.kube import client
from tarsy.live import hubs
from tarsy.process import supervision
from tarsy.process.shared import Shared
from tarsy.resources import base
from tarsy.store.base import databases, notify
from tarsy.store.live import text_streams
from tarsy.web import site

WATCHERS = 2
"""Connections for single statements of live updates, apart from the others, so that viewers delay no work."""


def build(
    shared: Shared,
    cluster: client.Cluster,
    *,
    token: str | None,
    admitted: Callable[[base.ObjectMeta], None] | None,
) -> list[supervision.Part]:
    """Build the role; `admitted` is the controller's of this process, if it has one."""
    watched = databases.Database(shared.database.url, pool_size=WATCHERS)
    shared.stack.push_async_callback(watched.close)
    hub = hubs.Hub(watched)

    def refresh(_: str) -> bool:
        hub.poll()
        return shared.options.serves("controller")  # if not, there is one elsewhere

    application = app.build(
        app.Parts(
            cluster=cluster,
            database=shared.database,
            platform=lambda: shared.in_force.platform,
            index=shared.in_force.index,
            configuration_version=lambda: shared.in_force.number,
            mask=shared.masking.mask_alert,
            secrets=shared.masking.secrets,
            readiness=shared.early.readiness,
            process_reporter=shared.kept,
            hub=hub,
            token=token,
            on_admitted=admitted,
        )
    )
    site.add(application)
    shared.early.front.hand_over(application)
    shared.channels.listen({text_streams.TEXTS: hub.hint, notify.STATUS: refresh})
    return [hub.run]
