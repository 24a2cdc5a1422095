"""Commands of people who lack a right: they end, and say which right it is."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support import accounts, apis, command_line, manifests
from tarsy.cli.client import failures
from tarsy.config.model import budgets
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

BUDGET = budgets.Budget(scope="all", per="day", tokens=1000)
NONE_SEEN = (
    "The platform file has no budgets that you may see. Those of a namespace and its chains need the right to list "
    "agentchains.tarsy.dev in it; those of all or of a provider need that in TARSy's namespace.\n"
)


@pytest.mark.parametrize(("verbs", "missing"), [(["get"], "list"), (["get", "list"], "watch")])
async def test_watch_ends_with_the_right_that_is_missing(
    plane: Administrator, admin: client.Cluster, programs: dict[str, Path], verbs: list[str], missing: str
) -> None:
    plane.create(manifests.investigation("web"), namespace=admin.served.own)
    token = await accounts.create(admin, "anna", may={"alertinvestigations": verbs})
    kubeconfig = plane.kubeconfig(user="anna", token=token, namespace=admin.served.own)
    command = command_line.CommandLine(kubectl=programs["kubectl"], kubeconfig=kubeconfig, env={})
    text = f'cannot {missing} resource "alertinvestigations" in API group "tarsy.dev" in the namespace'
    async with patience.limit():
        while text not in (ended := await command.run("watch", "web", "--timeout", "60s")).err:
            pass  # the API server has not heard of the rights yet
    assert ended.code == failures.Refused.exit_code
    error = ended.err.splitlines()[-1]
    assert error.startswith('Error: Error from server (Forbidden): alertinvestigations.tarsy.dev "web" is forbidden: ')
    assert error.endswith(f'{text} "{admin.served.own}"')
    assert [line.split()[1:] for line in ended.out.splitlines()] == (
        [["investigation", "Pending"]] if missing == "watch" else []
    ), "what was read before"


async def test_budgets_that_a_person_may_not_see_are_told_with_the_rights_that_show_them(
    plane: Administrator,
    cluster: client.Cluster,
    admin: client.Cluster,
    database: databases.Database,
    programs: dict[str, Path],
) -> None:
    suffix = uuid.uuid4().hex[:8]
    stranger = await accounts.create(admin, f"stranger-{suffix}", may={"agentchains": ["get"]})
    lister = await accounts.create(admin, f"lister-{suffix}", may={"agentchains": ["list"]})
    kubeconfig = plane.kubeconfig(namespace=cluster.served.own)
    command = command_line.CommandLine(kubectl=programs["kubectl"], kubeconfig=kubeconfig, env={})

    async def run_budgets(token: str, **budgets_by_name: budgets.Budget) -> command_line.Ended:
        parts = apis.parts(cluster=cluster, database=database, token="webhook", known_budgets=budgets_by_name)
        async with apis.listening(parts) as url:
            return await command.other(TARSY_API=url, TARSY_TOKEN=token).run("budgets")

    seen = await run_budgets(lister, day=BUDGET)
    assert (seen.code, seen.err, seen.out.splitlines()[1].split()[0]) == (0, "", "day")
    none = await run_budgets(lister)
    assert (none.code, none.out, none.err) == (0, "", NONE_SEEN)
    refused = await run_budgets(stranger, day=BUDGET)
    user = f"system:serviceaccount:{cluster.served.own}:stranger-{suffix}"
    message = f"Error: 403: User {user} may not list agentchains in namespace {cluster.served.own}\n"
    assert (refused.code, refused.out, refused.err) == (failures.Refused.exit_code, "", message)
