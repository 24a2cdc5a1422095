"""The connections of a command to the cluster and to the API. Each is made when it is first needed."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO
from urllib import parse

import click

from tarsy.cli.client import failures, kubectl, remote, terminal

NAMES_MAX = 2000
"""The maximum number of names that a wrong name is compared with."""
PAGE = 500
LATEST = "@latest"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
STOPPED = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""


@dataclass(frozen=True)
class Reference:
    """An investigation that was found by its name or its UID."""

    uid: str
    name: str
    namespace: str
    object: dict[str, Any] | None
    """The object in the cluster; None if it is gone or was not asked for."""


@dataclass(kw_only=True)
class Session:
    """The options that all commands share, and the connections made with them."""

    namespace_option: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    user: str | None = None
    groups: tuple[str, ...] = ()
    api_url: str | None = None
    service_namespace: str = "tarsy"
    token_file: TextIO | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    notes: int = 0
    """The number of notes so far."""
    _noted: set[str] = field(default_factory=set)
    _token_problem: str = ""
    """The reason why requests have no token."""

    def close(self) -> None:
        """End the port-forward, if there is one."""
        self._stack.close()

    @functools.cached_property
    def cluster(self) -> kubectl.Kubectl:
        """The cluster."""
        return kubectl.Kubectl(kubeconfig=self.kubeconfig, context=self.context, user=self.user, groups=self.groups)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The kubeconfig of the context."""
        from tarsy.cli.client import kubeconfig

        return kubeconfig.read(self.cluster)

    @functools.cached_property
    def namespace(self) -> str:
        """The namespace of `-n`, else the context's."""
        from tarsy.cli.client import kubeconfig

        return self.namespace_option or kubeconfig.namespace(self.config)

    @functools.cached_property
    def token(self) -> str:
        """The token for the API. Raises a Failure with the remedy if there is none."""
        from tarsy.cli.client import kubeconfig

        token = self.token_file.read().strip() if self.token_file else os.environ.get("TARSY_TOKEN", "")
        return token or kubeconfig.token(self.config)

    @functools.cached_property
    def api(self) -> remote.API:
        """The API. Raises a Failure if it cannot be used."""
        if self.user or self.groups:
            message = "--as works only for the cluster: the API identifies its callers by their tokens"
            raise failures.Refused(message)
        if self.api_url:
            url = self.api_url.rstrip("/")
            if parse.urlsplit(url).scheme not in ("http", "https"):
                raise click.UsageError(f"--api: {url} is no URL: write one with http or https")
            is_local = parse.urlsplit(url).hostname in LOOPBACK
            return remote.API(
                lambda: url,
                token=lambda: self._token_or_none(is_local=is_local),
                hint=lambda: self._token_problem,
                renew=self._renew,
                is_local=is_local,
            )
        from tarsy.cli.client import port_forward

        self.token  # noqa: B018 - raises a Failure before a port is forwarded
        forward = port_forward.Forward(self.cluster, self.service_namespace)
        self._stack.callback(forward.close)
        forward.url()
        return remote.API(forward.url, token=lambda: self.token, renew=self._renew, is_local=True)

    def _renew(self) -> bool:
        """Forget a token from the kubeconfig, because it has expired. Return False if the token is from elsewhere."""
        if self.token_file or os.environ.get("TARSY_TOKEN"):
            return False
        for name in ("token", "config"):
            self.__dict__.pop(name, None)
        return True

    def _token_or_none(self, *, is_local: bool) -> str:
        """Return the token, or "" if there is none: an operator on this machine may not need one."""
        try:
            return self.token
        except failures.Failure as error:
            if not is_local:
                raise
            self._token_problem = error.message
            return ""

    def note(self, text: str, *, once: str = "") -> None:
        """Print a line on stderr. Of lines with the same `once`, print only the first."""
        if once not in self._noted:
            click.echo(terminal.clean(text), err=True)
            self.notes += 1
        if once:
            self._noted.add(once)

    def find(self, name: str | None, uid: str | None = None, *, with_object: bool = True) -> Reference:
        """Find an investigation by its name, by `@latest` or by its UID, even if its object is gone.

        Raises a Failure. For a wrong name, its message suggests similar ones.
        """
        if (name is None) == (uid is None):
            raise click.UsageError(f"give a NAME, {LATEST}, or --uid UID; `tarsy list` shows the names")
        if uid:
            return self._reference(self.api.get(remote.below(uid)), with_object=with_object)
        assert name  # noqa: S101 - checked above
        name = name.rpartition("/")[2]
        if name == LATEST:
            return self._latest(with_object=with_object)
        try:
            document = self.cluster.get(kubectl.path(self.namespace, name=name))
        except failures.NotFound as error:
            return self._find_in_api(name, error)
        except failures.Unreachable as error:
            try:
                return self._find_in_api(name, error)
            except failures.Unreachable:
                raise error from None
        return of_object(document)

    def _reference(self, view: dict[str, Any], *, with_object: bool) -> Reference:
        """Return the reference to an investigation of the API, with its object if that still exists."""
        document = None
        if with_object:
            with contextlib.suppress(failures.Failure):
                document = self.cluster.get(kubectl.path(view["namespace"], name=view["name"]))
            if document and document["metadata"]["uid"] != view["id"]:
                document = None
        return Reference(uid=view["id"], name=view["name"], namespace=view["namespace"], object=document)

    def _find_in_api(self, name: str, why: failures.Failure) -> Reference:
        """Find an investigation by its name in the API, after its object could not be read because of `why`."""
        try:
            rows = self.api.get(
                remote.INVESTIGATIONS, namespace=self.namespace, name=name, sort="-admitted_at", limit=1
            )["items"]
        except failures.Failure as error:
            if isinstance(why, failures.Unreachable):
                raise why from error
            message = f"{self._unknown(name)} The API cannot be asked for one whose object is gone: {error.message}"
            raise failures.NotFound(message) from error
        if not rows:
            if isinstance(why, failures.Unreachable):
                raise why
            raise failures.NotFound(self._unknown(name))
        row = rows[0]
        return Reference(uid=row["id"], name=row["name"], namespace=row["namespace"], object=None)

    def _latest(self, *, with_object: bool) -> Reference:
        """Return the newest investigation of the namespace; without the API, the newest of its objects."""
        try:
            rows = self.api.get(remote.INVESTIGATIONS, namespace=self.namespace, sort="-admitted_at", limit=1)["items"]
        except failures.Failure as error:
            self.note(f"Without the API, {LATEST} is the newest object: {error.message}")
            newest = max(
                (document for page in self.objects() for document in page),
                key=lambda document: str(document["metadata"]["creationTimestamp"]),
                default=None,
            )
            if newest is not None:
                return of_object(newest)
        else:
            if rows:
                return self._reference(rows[0], with_object=with_object)
        raise failures.NotFound(f"There is no investigation in namespace {self.namespace}.")

    def objects(
        self, plural: str = kubectl.INVESTIGATIONS, **query: str | int | None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the objects of the namespace, page by page."""
        query = {"limit": PAGE, **query}
        while True:
            listed = self.cluster.get(kubectl.path(self.namespace, plural), **query)
            yield listed["items"]
            query["continue"] = listed["metadata"].get("continue")
            if not query["continue"]:
                return

    def names(self, plural: str = kubectl.INVESTIGATIONS) -> list[str]:
        """Return the first names of the namespace; none if they cannot be read."""
        try:
            lines = self.cluster.run("get", f"{plural}.tarsy.dev", "-n", self.namespace, "--no-headers").splitlines()
        except failures.Failure:
            return []
        return [line.split()[0] for line in lines[:NAMES_MAX] if line.split()]

    def _unknown(self, name: str) -> str:
        return unknown(f"investigation {name} in namespace {self.namespace}", name, self.names())


def unknown(what: str, name: str, names: Sequence[str]) -> str:
    """Return the message for a wrong name, with similar names."""
    import difflib

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names)[:3]
    there = f" The nearest: {', '.join(near)}." if near else ""
    return f"There is no {what}.{there}"


def of_object(document: dict[str, Any]) -> Reference:
    """Return the reference of an object."""
    metadata = document["metadata"]
    return Reference(uid=metadata["uid"], name=metadata["name"], namespace=metadata["namespace"], object=document)


def _kubectl_names(ctx: click.Context, incomplete: str, *arguments: str) -> list[str]:
    """Return the words of kubectl's output that begin with `incomplete`; none if it fails."""
    cluster = kubectl.Kubectl(kubeconfig=ctx.params.get("kubeconfig"), context=ctx.params.get("context"))
    try:
        return [name for name in cluster.run(*arguments).split() if name.startswith(incomplete)]
    except failures.Failure:
        return []


_COMMON = (
    click.option(
        "--namespace",
        "-n",
        "namespace_option",
        metavar="NAMESPACE",
        shell_complete=lambda ctx, _, incomplete: _kubectl_names(
            ctx, incomplete, "get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}"
        ),
        help="The namespace; by default the context's.",
    ),
    click.option(
        "--kubeconfig", metavar="FILE", help="The kubeconfig; by default that of KUBECONFIG, or ~/.kube/config."
    ),
    click.option(
        "--context",
        metavar="NAME",
        shell_complete=lambda ctx, _, incomplete: _kubectl_names(
            ctx, incomplete, "config", "get-contexts", "-o", "name"
        ),
        help="The kubeconfig's context; by default the current one.",
    ),
    click.option(
        "--as", "user", metavar="USER", help="The user to impersonate in the cluster; the API cannot be used then."
    ),
    click.option(
        "--as-group", "groups", multiple=True, metavar="GROUP", help="A group to impersonate; may be repeated."
    ),
)
_API = (
    click.option(
        "--api",
        "api_url",
        envvar="TARSY_API",
        show_envvar=True,
        metavar="URL",
        help="The API's address; by default a local port is forwarded to its Service.",
    ),
    click.option(
        "--service-namespace",
        default="tarsy",
        show_default=True,
        metavar="NAMESPACE",
        help="Without --api: the namespace of the API's Service.",
    ),
    click.option(
        "--token-file",
        type=click.File(),
        metavar="FILE",
        help="A file with the token, - for standard input; by default TARSY_TOKEN, or the kubeconfig's token.",
    ),
)
OPTIONS = (
    "namespace_option",
    "kubeconfig",
    "context",
    "user",
    "groups",
    "api_url",
    "service_namespace",
    "token_file",
)
"""The names of the parameters that `connected` adds."""


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a Session, and call it with the `session`."""

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        session = Session(**{name: values.pop(name) for name in OPTIONS})
        before = _end_on_signals()
        try:
            return function(session=session, **values)
        except KeyboardInterrupt:
            click.echo("" if sys.stderr.isatty() else "Interrupted.", err=True)
            raise click.exceptions.Exit(STOPPED) from None
        finally:
            session.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    for option in reversed((*_COMMON, *_API)):
        command = option(command)
    return command


def _end_on_signals() -> dict[signal.Signals, Any]:
    """Make SIGTERM and SIGHUP end the command and its kubectl. Return the former handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    return {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}


def complete_investigations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Return the names of investigations that begin with `incomplete`."""
    return complete(ctx, incomplete, kubectl.INVESTIGATIONS)


def complete(ctx: click.Context, incomplete: str, plural: str) -> list[str]:
    """Return the names of objects that begin with `incomplete`, in the namespace and cluster of the command line."""
    options = ctx.params
    session = Session(
        namespace_option=options.get("namespace_option"),
        kubeconfig=options.get("kubeconfig"),
        context=options.get("context"),
        user=options.get("user"),
    )
    latest = [LATEST] if plural == kubectl.INVESTIGATIONS and incomplete.startswith("@") else []
    return latest + [name for name in session.names(plural) if name.startswith(incomplete)]


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument NAME and the option --uid."""
    function = click.option(
        "--uid",
        metavar="UID",
        help="The investigation's UID, in place of a name; it also finds one whose object is gone.",
    )(function)
    return click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_investigations)(function)
