"""The budgets of the platform file, and what is spent of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, Depends

from tarsy.auth import permissions
from tarsy.config.model import budgets as model_budgets
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.serve import openapi, strict
from tarsy.store.base import databases
from tarsy.store.queue import ledgers
from tarsy.views import budgets as views

LEDGERS_MAX = 100
"""The ledgers of each budget that are shown, those that spent most."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Reads the ledgers of budgets."""

    cluster: client.Cluster
    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force."""

    async def read(self, scope: permissions.Scope, *, listable: frozenset[str]) -> views.Budgets:
        """Read the ledgers of the present periods: those of the scope, and of investigations in `listable`."""
        in_force = {
            name: budget for name, budget in self.platform().budgets.items() if self._is_readable(budget, scope)
        }
        readable = ledgers.Readable(namespaces=scope.namespaces, listable=listable)
        read = await ledgers.read(self.database, in_force, limit=LEDGERS_MAX + 1, readable=readable)
        return views.budgets_view(in_force, read, limit=LEDGERS_MAX, unchecked=scope.unchecked)

    def _is_readable(self, budget: model_budgets.Budget, scope: permissions.Scope) -> bool:
        """Whether a budget is shown; that of all investigations, or of a provider, tells of all namespaces."""
        if budget.per != "investigation" and budget.scope in ("all", "provider"):
            return self.cluster.served.own in scope.namespaces
        return budget.namespace is None or budget.namespace in scope.namespaces


def routes(budgets: Budgets, may: permissions.Access) -> APIRouter:
    """Return the route `GET /api/v1/budgets`."""
    router = strict.router(prefix="/api/v1", tag="system")

    @router.get("/budgets", operation_id="listBudgets", responses=openapi.problem_responses(HTTPStatus.NOT_FOUND))
    async def read(
        scope: permissions.Scope = Depends(may.list_chains_in), listable: frozenset[str] = Depends(may.listable)
    ) -> views.Budgets:
        """Return each budget with what is spent, reserved and left in its present period.

        Those of namespaces and chains are shown where the caller may list chains, those of investigations where it may
        list investigations, and those of all and of providers if it may list chains in the operator's namespace.
        """
        return await budgets.read(scope, listable=listable)

    return router
