"""An investigation followed to its end: a watch on its object tells of changes, and the API has its view.

When a watch ends, the object is read and watched again. So no lasting change is missed, whether the watch was cut,
expired (410) or stopped with its API server.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tarsy.cli.client import failures, kubectl, remote, sessions, views

TICK_SECONDS = 1.0
POLL_SECONDS = 2.0
"""Seconds between two requests to the API for an investigation whose object is gone or cannot be read."""
WATCH_SECONDS = 240
"""Seconds after which the API server ends a watch."""
PAUSE_SECONDS = (0.2, 1.0, 2.0, 5.0)
API_PAUSE_SECONDS = 5.0
"""Seconds between a failure of the API and the next request to it."""
View = dict[str, Any]


class Watch:
    """A thread that watches an object by its name, and queues its states, absences and outages."""

    def __init__(self, cluster: kubectl.Kubectl, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._selector = f"metadata.name={name}"
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()  # a Queue breaks at Ctrl-C
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> Watch:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        if self._process:
            self._process.kill()

    def next(self, deadline: float | None) -> tuple[str, Any]:
        """Return the next event and its value: object, absent, away or refused; tick after a second without one.

        Raises Late once the monotonic clock has reached `deadline`.
        """
        check(deadline)
        left = TICK_SECONDS if deadline is None else min(TICK_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            return self._queue.get(timeout=left)
        except queue.Empty:
            return "tick", None

    def _run(self) -> None:
        failed = 0
        while not self._stopped.is_set():
            try:
                version = self._list()
                failed = 0
                self._watch(version)
            except failures.Refused as error:
                self._queue.put(("refused", error))
                return
            except failures.Failure as error:
                self._queue.put(("away", error))
                self._stopped.wait(PAUSE_SECONDS[min(failed, len(PAUSE_SECONDS) - 1)])
                failed += 1
            else:
                self._stopped.wait(PAUSE_SECONDS[0])

    def _list(self) -> str:
        """Read the object, and return the resource version to watch from."""
        listed = self._cluster.get(kubectl.path(self._namespace), fieldSelector=self._selector)
        self._queue.put(("object", listed["items"][0]) if listed["items"] else ("absent", None))
        return str(listed["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        """Watch until the API server ends the watch, or an event cannot be read."""
        path = kubectl.with_query(
            kubectl.path(self._namespace),
            watch="true",
            fieldSelector=self._selector,
            resourceVersion=version,
            timeoutSeconds=WATCH_SECONDS,
        )
        command = self._cluster.command("get", "--raw", path)
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        ) as process:
            self._process = process
            if self._stopped.is_set():
                process.kill()
            assert process.stdout  # noqa: S101 - it is a pipe
            assert process.stderr  # noqa: S101 - it is a pipe
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._queue.put(("object", event["object"]))
                    elif event["type"] == "DELETED":
                        self._queue.put(("absent", event["object"]))
            except ValueError:  # a line that was cut off
                return
            stderr = process.stderr.read()
        if process.returncode and not self._stopped.is_set():
            raise kubectl.failure(stderr)


def check(deadline: float | None) -> None:
    """Raise Late once the monotonic clock has reached `deadline`."""
    if deadline is not None and time.monotonic() >= deadline:
        raise failures.Late("--timeout has passed. The investigation continues.")


class Follower:
    """Follows one investigation."""

    def __init__(self, session: sessions.Session, *, timeout: float | None) -> None:
        """`timeout` in seconds; None has no limit."""
        self._session = session
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._api_again = 0.0

    def views(self, name: str | None, uid: str | None, *, may_be_absent: bool) -> Iterator[View | None]:
        """Yield the view after each change, and None after each second without one, until the investigation has ended.

        Raises Late after the timeout, and NotFound for a wrong name; with `may_be_absent` it waits for the object.
        """
        session = self._session
        try:
            reference = session.find(name, uid)
        except failures.NotFound as error:
            if not may_be_absent or uid or not name or name == sessions.LATEST:
                raise
            session.note(f"{error.message}\nWaiting for it.")
            yield from self._watch_object(session.namespace, name.rpartition("/")[2], None)
            return
        if reference.object is None:
            yield from self._poll_api(reference.uid)
        else:
            yield from self._watch_object(reference.namespace, reference.name, reference.uid)

    def _watch_object(self, namespace: str, name: str, uid: str | None) -> Iterator[View | None]:
        """Yield the views of an object that is watched."""
        is_away = False
        view: View | None = None
        with Watch(self._session.cluster, namespace, name) as watch:
            while True:
                kind, value = watch.next(self._deadline)
                if kind == "refused":
                    raise value
                if kind == "object" and uid in (None, value["metadata"]["uid"]):
                    uid = str(value["metadata"]["uid"])
                    if is_away:
                        self._session.note("The cluster answers again.")
                    is_away = False
                    view = self._view_from_api(uid) or views.from_object(value)
                elif kind in ("object", "absent") and uid:
                    yield from self._follow_deleted(value if kind == "absent" else None, uid)
                    return
                elif kind == "away":
                    if not is_away:
                        self._session.note(f"The cluster does not answer, retrying: {value.message}")
                    is_away = True
                    view = self._view_from_api(uid) if uid else None
                else:
                    view = None
                yield view
                if view and views.has_ended(view):
                    return

    def _view_from_api(self, uid: str) -> View | None:
        """Return the API's view; None if it does not answer."""
        if time.monotonic() < self._api_again:
            return None
        try:
            view: View = self._session.api.get(remote.below(uid))
        except failures.NotFound:
            return None  # the object exists, and is not admitted yet
        except failures.Failure as error:
            self._session.note(f"Without the API, agents are not shown: {error.message}", once="api")
            is_final = isinstance(error, failures.Refused)
            self._api_again = float("inf") if is_final else time.monotonic() + API_PAUSE_SECONDS
            return None
        return view

    def _follow_deleted(self, last: dict[str, Any] | None, uid: str) -> Iterator[View | None]:
        """Yield the views of an investigation whose object was deleted."""
        if last and views.has_ended(view := views.from_object(last)):
            yield self._view_from_api(uid) or view
            return
        self._session.note("Its object was deleted, which cancels the investigation.")
        try:
            yield from self._poll_api(uid)
        except (failures.Refused, failures.NotFound) as error:
            raise failures.Cancelled(
                f"The object was deleted, and the outcome cannot be read: {error.message}"
            ) from error

    def _poll_api(self, uid: str) -> Iterator[View | None]:
        """Yield the API's view every POLL_SECONDS; None if the API does not answer."""
        session = self._session
        failed = 0
        while True:
            check(self._deadline)
            view = None
            try:
                view = session.api.get(remote.below(uid))
                failed = 0
            except failures.Unreachable as error:
                if failed == 0:
                    session.note(f"The API does not answer, retrying: {error.message}")
                failed += 1
            yield view
            if view and views.has_ended(view):
                return
            time.sleep(
                POLL_SECONDS
                if self._deadline is None
                else min(POLL_SECONDS, max(0.0, self._deadline - time.monotonic()))
            )


def report_end(session: sessions.Session, view: View) -> int:
    """Return the exit code for the end of an investigation. Print phase and message on stderr unless it completed."""
    phase = view["phase"]
    if phase != "Completed":
        session.note(f"{phase}: {view['message']}".removesuffix(": "))
    return views.EXIT_CODES[phase]
