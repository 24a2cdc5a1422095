"""The roles of the chart, on a real API server: each right that one of them lacks is missed by name."""

from __future__ import annotations

import pytest
from support import installed
from tarsy.config.load import settings
from tarsy.kube import client
from tarsy.kube import rights as needed
from tarsy.probes import checks
from tarsy_dev import patience

pytestmark = pytest.mark.once

ROLES: dict[str, list[settings.Role]] = {
    "api": ["api"],
    "controller": ["controller"],
    installed.ALL: ["api", "controller", "worker"],
}


async def missing(cluster: client.Cluster, part: str) -> list[str]:
    """Return what readiness reports as missing for an operator with that role."""
    wanted = needed.needed(ROLES[part], deployment=installed.account(part))
    return [missing_right.name for missing_right in await checks.Cluster(cluster, wanted)()]


@pytest.mark.parametrize("part", ["api", "controller", installed.ALL])
async def test_each_verb_removed_from_a_role_is_reported_missing_by_name(
    chart_accounts: installed.Installed, part: str
) -> None:
    cluster = await client.connect(await chart_accounts.kubeconfig(part))
    granted = chart_accounts.granted(part)
    try:
        for right in sorted(granted):
            wanted = f"the right to {right.verb} {right.resource} {right.name}".strip()
            is_needed = not any(other.covers(right) for other in granted - {right})  # one account may have it twice
            for is_there in (True, False, True):
                if is_there:
                    await until(cluster, part, [])
                    continue
                async with chart_accounts.without(right, part=part):
                    await until(cluster, part, [wanted] if is_needed else [])
    finally:
        await cluster.close()


async def until(cluster: client.Cluster, part: str, expected: list[str]) -> None:
    """Wait until that is what is missing: the API server learns of a changed role a moment later."""
    missing_rights = ["nothing was asked"]
    try:
        async with patience.limit():
            while missing_rights != expected:
                missing_rights = await missing(cluster, part)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: {missing_rights}, not {expected}") from None
