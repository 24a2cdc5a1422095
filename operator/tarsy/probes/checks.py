"""Readiness checks: the parts that a process needs and that are missing now, by name.

The API server is asked for its kinds and for the metadata of one chain, because its own `/readyz` says nothing of etcd,
of our rights and of our kinds; and, more seldom, for each right by itself. The watch reports itself whether it is open
for each kind. The age of its last event would be no measure, because a namespace may be silent for hours. The age of
its last bookmark would be one, but kopf keeps bookmarks to itself, and closes a watch without any for 70 s. So an open
watch had a sign of life within 70 s, and a younger outage shows in the API server's answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from tarsy.config.load import settings
from tarsy.kube import client, discovery, objects, rights, watch
from tarsy.resources import chains
from tarsy.store.base import databases

RIGHTS_SECONDS = 30.0
RIGHTS_MISSING_SECONDS = 1.0
"""For so long what the API server says of our rights is taken for true, and where one is missing."""
EVERYBODY: tuple[settings.Role, ...] = ("api", "controller", "worker")


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that is not there."""

    what: str
    """Its name, which everybody may read."""
    needed_by: tuple[settings.Role, ...]
    why: str
    """How that was found out; for the log."""


Need = Callable[[], Awaitable[Sequence[Missing]]]
"""Says what of something is missing just now."""


class Secret:
    """A secret that may be in a file."""

    def __init__(self, secret: settings.Secret, *, needed_by: tuple[settings.Role, ...]) -> None:
        self._secret = secret
        self._needed_by = needed_by
        self.value = ""
        """Once it is there: as it was found first."""

    async def __call__(self) -> Sequence[Missing]:
        """Read it, unless it has been."""
        try:
            self.value = self.value or self._secret.read()
        except settings.SecretError as error:
            return [Missing(what=str(error), needed_by=self._needed_by, why=str(error))]
        return []


class Database:
    """The database, with the schema and the rights that this program needs."""

    def __init__(self, database: Callable[[], databases.Database | None]) -> None:
        """Check the result of `database`, which is None as long as its URL is unknown; that is missing then."""
        self._database = database
        self._was_right = False

    async def __call__(self) -> Sequence[Missing]:
        """Ask it; for the revision of its schema only until that was right once."""
        database = self._database()
        if database is None:
            return []
        try:
            lacks = await database.lacks(revision=not self._was_right)
        except databases.StoreDownError as error:
            return [Missing(what="the database", needed_by=EVERYBODY, why=str(error))]
        if lacks:
            return [Missing(what=lacks, needed_by=EVERYBODY, why=lacks)]
        self._was_right = True
        return []


class Cluster:
    """The API server, with our kinds and our rights."""

    def __init__(self, cluster: client.Cluster, wanted: Sequence[rights.Right]) -> None:
        """`wanted` are the rights that the process needs."""
        self._cluster = cluster
        self._wanted = wanted
        self._lacking: Sequence[rights.Right] = ()
        self._reviewed = -math.inf

    async def __call__(self) -> Sequence[Missing]:
        """Ask it."""
        missing: list[Missing] = []
        try:
            if unserved := await discovery.unserved_kinds(self._cluster):
                what = f"the CRDs {', '.join(unserved)}"
                missing.append(Missing(what=what, needed_by=("api", "controller"), why=f"{what} are not installed"))
            await self._review()
            lists = not any((right.verb, right.resource) == ("list", chains.PLURAL) for right in self._lacking)
            if lists and chains.PLURAL not in unserved:
                await discovery.ping(self._cluster, namespace=self._cluster.served.own)
        except (client.ClusterDownError, objects.RefusedError) as error:
            self._reviewed = -math.inf  # it may be refused for a right that has been taken away
            return [Missing(what="the API server", needed_by=("api", "controller"), why=str(error))]
        return [*missing, *self._missing_parts()]

    async def _review(self) -> None:
        fresh = RIGHTS_MISSING_SECONDS if self._lacking else RIGHTS_SECONDS
        if time.monotonic() - self._reviewed >= fresh:
            self._lacking = await rights.missing(self._cluster, self._wanted)
            self._reviewed = time.monotonic()

    def _missing_parts(self) -> Iterator[Missing]:
        """The rights that are missing, those on one kind together."""
        for resource, name in dict.fromkeys((right.resource, right.name) for right in self._lacking):
            of_it = [right for right in self._lacking if (right.resource, right.name) == (resource, name)]
            verbs = ", ".join(dict.fromkeys(right.verb for right in of_it))
            what = f"the right to {verbs} {' '.join(filter(None, (resource, name)))}"
            roles = {role for right in of_it for role in right.needed_by}
            where = "in all namespaces" if of_it[0].everywhere else f"in namespace {self._cluster.served.own}"
            yield Missing(what=what, needed_by=tuple(sorted(roles)), why=f"{what} {where}")


class Watch:
    """The watch of our kinds."""

    def __init__(self, watcher: watch.Watcher) -> None:
        self._watcher = watcher

    async def __call__(self) -> Sequence[Missing]:
        """Look whether it is open."""
        if not self._watcher.is_cut():
            return []
        cut = self._watcher.cut_for()
        why = "the watch is not open yet" if math.isinf(cut) else f"the watch has not been open for {cut:.0f} s"
        return [Missing(what="the watch", needed_by=("controller",), why=why)]
