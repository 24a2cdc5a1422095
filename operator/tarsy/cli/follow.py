"""`tarsy wait` and `watch`: an investigation, followed to its end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from tarsy.cli.client import changes, formats, sessions, terminal, times, tree

_TIMEOUT = click.option(
    "--timeout",
    type=times.Duration(),
    metavar="DURATION",
    help="Stop after DURATION, such as 90s or 15m, and exit with 6.",
)


@click.command(
    help="Wait until an investigation has ended; the exit code says how.",
    epilog="Examples:\n\n\b\n  tarsy wait web-crash --timeout 15m",
)
@sessions.named
@_TIMEOUT
@sessions.connected
def wait(*, session: sessions.Session, name: str | None, uid: str | None, timeout: float | None) -> None:
    """Wait for the end of an investigation."""
    *_, view = changes.Follower(session, timeout=timeout).views(name, uid, may_be_absent=False)
    assert view  # noqa: S101 - the last one has ended
    click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(view['name'])} {view['phase']}")
    raise click.exceptions.Exit(changes.report_end(session, view))


@click.command(
    help="Watch an investigation stage by stage until it has ended; the exit code says how.",
    epilog="Examples:\n\n\b\n  tarsy watch web-crash\n  tarsy watch @latest -o jsonl",
)
@sessions.named
@_TIMEOUT
@formats.option("jsonl")
@sessions.connected
def watch(
    *, session: sessions.Session, name: str | None, uid: str | None, timeout: float | None, form: str | None
) -> None:
    """Watch an investigation."""
    raise click.exceptions.Exit(show(session, name, uid, timeout=timeout, form=form))


def show(
    session: sessions.Session, name: str | None, uid: str | None, *, timeout: float | None, form: str | None
) -> int:
    """Show an investigation until it has ended, and return the exit code for its end."""
    on_terminal = form is None and terminal.is_terminal()
    show_view: Callable[[changes.View | None], None] = _Screen(session).show if on_terminal else _Lines(form).show
    view = None
    for view in changes.Follower(session, timeout=timeout).views(name, uid, may_be_absent=True):
        show_view(view)
    assert view  # noqa: S101 - the last one has ended
    if form is None and (text := view["summary"] or view["final_analysis"]):
        click.echo(f"\n{terminal.clean(text)}")
    return changes.report_end(session, view)


class _Screen:
    """A tree that is redrawn in place."""

    def __init__(self, session: sessions.Session) -> None:
        self._session = session
        self._notes = session.notes
        self._height = 0
        self._view: changes.View | None = None

    def show(self, view: changes.View | None) -> None:
        """Draw the view, or the last one again if it is None: its durations have grown."""
        self._view = view or self._view
        if self._view is None:
            return
        columns, height = shutil.get_terminal_size()
        lines = tree.lines(self._view)
        if len(lines) >= height > 1:
            lines = [*lines[:1], *lines[len(lines) - height + 2 :]]
        if self._notes != self._session.notes:
            self._notes = self._session.notes
            self._height = 0  # a note was printed below the tree: the next tree is drawn below the note
        back = f"\x1b[{self._height}A" if self._height else ""
        sys.stdout.write(back + "\r\x1b[J" + "".join(f"{_truncate(line, columns)}\n" for line in lines))
        sys.stdout.flush()
        self._height = len(lines)


def _truncate(line: str, columns: int) -> str:
    """Return a line cut to the terminal's width. A line that is too long loses its colours."""
    plain = line
    for code in terminal.COLOURS.values():
        plain = plain.replace(f"\x1b[{code}m", "")
    plain = plain.replace("\x1b[0m", "")
    return line if terminal.width(plain) <= columns else terminal.cut(plain, columns)


class _Lines:
    """Lines for pipes and files: one for each change of a status."""

    def __init__(self, form: str | None) -> None:
        self._form = form
        self._states: dict[tuple[str, ...], tuple[str, str]] = {}

    def show(self, view: changes.View | None) -> None:
        """Print what has changed since the last view."""
        if view is None:
            return
        states = tree.states(view)
        for key, (status, message) in states.items():
            before = self._states.get(key)
            if before == (status, message) or (before and before[0] == status and key[0] != "investigation"):
                continue
            self._print(key, status, message)
        self._states |= states

    def _print(self, key: tuple[str, ...], status: str, message: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        stage = key[1] if key[0] in ("stage", "agent") else ""
        agent = key[2] if key[0] == "agent" else ""
        if self._form:
            event: dict[str, Any] = {"time": at, "type": key[0], "stage": stage, "agent": agent, "status": status}
            click.echo(formats.text(event | {"message": message}, "jsonl"))
        else:
            subject = " ".join(part for part in (key[0], stage, agent) if part)
            click.echo(terminal.clean_line(f"{at} {subject} {status} {message}"))
