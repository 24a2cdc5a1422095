"""The chain that would take an alert: `GET /api/v1/chain-match`, which submits nothing."""

from __future__ import annotations

import functools
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tarsy.api.alerts import intake
from tarsy.auth import permissions
from tarsy.serve import strict
from tarsy.store.fleet import catalogue
from tarsy.views import chain_matches

AlertType = Annotated[
    str,
    Query(min_length=1, max_length=253, description="The type of the alert.", examples=["KubePodCrashLooping"]),
]


def routes(alert_intake: intake.Intake, access: permissions.Access) -> APIRouter:
    """Return the route `GET /api/v1/chain-match`."""
    router = strict.router(prefix="/api/v1", tag="alerts")

    @router.get("/chain-match", operation_id="matchChain")
    async def match(
        alert_type: AlertType, destination: permissions.Destination = Depends(access.match_chains)
    ) -> chain_matches.ChainMatch:
        """Return the chain that would take an alert of a type, or the reason why none would; submit no alert."""
        return await match_chain(alert_intake, alert_type, namespace=destination.namespace)

    return router


async def match_chain(alert_intake: intake.Intake, alert_type: str, *, namespace: str) -> chain_matches.ChainMatch:
    """Return the chain that would take an alert of that type in a namespace now."""
    listed = await alert_intake.chains.list_for((), namespace=namespace)
    tools = await catalogue.tools_by_server(alert_intake.database)
    return chain_matches.chain_match(
        listed.index,
        alert_type,
        default=alert_intake.settings().default_alert_type,
        selectable=functools.partial(listed.index.selectable_servers, catalogue=tools),
    )
