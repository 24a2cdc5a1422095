"""Readiness checks: the parts that a process needs and that are missing now, by name.

The API server is asked for its kinds and for the metadata of one chain, because its own `/readyz` says nothing about
etcd, our rights and our kinds; less often, it is asked for each right. The watch itself reports whether it is open for
each kind. The age of its last event does not help, because a namespace may have no events for hours. The age of its
last bookmark would help, but kopf hides bookmarks, and closes a watch that has received none for 70 s. So an open watch
is at most 70 s old in its news, and a more recent outage shows in the API server's answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from tarsy.config.load import settings
from tarsy.kube import client, discovery, objects, rights, watch
from tarsy.resources import chains
from tarsy.store.base import databases, schema

RIGHTS_SECONDS = 30.0
RIGHTS_MISSING_SECONDS = 1.0
"""Seconds that the API server's answer about our rights is cached: if none is missing, and if one is."""
ALL_ROLES: tuple[settings.Role, ...] = ("api", "controller", "worker")


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A part that is missing."""

    name: str
    """Its public name."""
    needed_by: tuple[settings.Role, ...]
    reason: str
    """The finding, for the log."""


Check = Callable[[], Awaitable[Sequence[Missing]]]


class Secret:
    """Checks a secret that may be in a file."""

    def __init__(self, secret: settings.Secret, *, needed_by: tuple[settings.Role, ...]) -> None:
        self._secret = secret
        self._needed_by = needed_by
        self.value = ""
        """The value that was read first; "" until then."""

    async def __call__(self) -> Sequence[Missing]:
        """Read the secret, unless it has been read."""
        try:
            self.value = self.value or self._secret.read()
        except settings.SecretError as error:
            return [Missing(name=str(error), needed_by=self._needed_by, reason=str(error))]
        return []


class Database:
    """Checks the database, its schema and the rights of its user."""

    def __init__(self, database: Callable[[], databases.Database | None]) -> None:
        """`database` returns None while the URL is unknown; the check of the URL reports that."""
        self._database = database
        self._was_right = False

    async def __call__(self) -> Sequence[Missing]:
        """Query the database, and the revision of its schema until that has been right once."""
        database = self._database()
        if database is None:
            return []
        try:
            lacks = await schema.missing(database, check_revision=not self._was_right)
        except databases.StoreDownError as error:
            return [Missing(name="the database", needed_by=ALL_ROLES, reason=str(error))]
        if lacks:
            return [Missing(name=lacks, needed_by=ALL_ROLES, reason=lacks)]
        self._was_right = True
        return []


class Cluster:
    """Checks the API server, our kinds and our rights."""

    def __init__(self, cluster: client.Cluster, needed: Sequence[rights.Right]) -> None:
        """`needed` are the rights of the process's roles."""
        self._cluster = cluster
        self._needed = needed
        self._lacking: Sequence[rights.Right] = ()
        self._reviewed_at = -math.inf

    async def __call__(self) -> Sequence[Missing]:
        """Ask the API server."""
        missing: list[Missing] = []
        try:
            if unserved := await discovery.unserved_kinds(self._cluster):
                name = f"the CRDs {', '.join(unserved)}"
                missing.append(Missing(name=name, needed_by=("api", "controller"), reason=f"{name} are not installed"))
            valid_for = RIGHTS_MISSING_SECONDS if self._lacking else RIGHTS_SECONDS
            if time.monotonic() - self._reviewed_at >= valid_for:
                self._lacking = await rights.missing(self._cluster, self._needed)
                self._reviewed_at = time.monotonic()
            may_list = not any((right.verb, right.resource) == ("list", chains.PLURAL) for right in self._lacking)
            if may_list and chains.PLURAL not in unserved:
                await discovery.ping(self._cluster, namespace=self._cluster.served.own)
        except (client.ClusterDownError, objects.RefusedError) as error:
            self._reviewed_at = -math.inf  # the refusal may come from a right that was taken away
            return [Missing(name="the API server", needed_by=("api", "controller"), reason=str(error))]
        return [*missing, *self._missing_rights()]

    def _missing_rights(self) -> Iterator[Missing]:
        """Yield the missing rights, grouped by kind."""
        for resource, object_name in dict.fromkeys((right.resource, right.name) for right in self._lacking):
            rights_on_it = [right for right in self._lacking if (right.resource, right.name) == (resource, object_name)]
            verbs = ", ".join(dict.fromkeys(right.verb for right in rights_on_it))
            name = f"the right to {verbs} {' '.join(filter(None, (resource, object_name)))}"
            roles = {role for right in rights_on_it for role in right.needed_by}
            where = "in all namespaces" if rights_on_it[0].everywhere else f"in namespace {self._cluster.served.own}"
            yield Missing(name=name, needed_by=tuple(sorted(roles)), reason=f"{name} {where}")


class Watch:
    """Checks the watch of our kinds."""

    def __init__(self, watcher: watch.Watcher) -> None:
        self._watcher = watcher

    async def __call__(self) -> Sequence[Missing]:
        """Return the watch if it is not open."""
        if not self._watcher.is_cut():
            return []
        cut = self._watcher.cut_for()
        reason = "the watch is not open yet" if math.isinf(cut) else f"the watch has not been open for {cut:.0f} s"
        return [Missing(name="the watch", needed_by=("controller",), reason=reason)]
