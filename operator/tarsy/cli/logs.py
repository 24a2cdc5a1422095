"""`tarsy logs`: the answers and tool calls of agents, each line with its stage and agent."""

from __future__ import annotations

import collections
from datetime import datetime
from typing import Any

import click

from tarsy.cli.client import failures, remote, sessions, terminal, times, transcripts, views


@click.command(
    help="Print the answers and tool calls of an investigation's agents, also after its object was deleted.",
    epilog="Examples:\n\n\b\n  tarsy logs web-crash --tools\n  tarsy logs -f @latest --stage analysis",
)
@sessions.named
@click.option("-f", "--follow", is_flag=True, help="Print new events until the investigation has ended.")
@click.option("--stage", metavar="NAME", help="Only this stage.")
@click.option("--agent", metavar="NAME", help="Only this agent.")
@click.option("--failed", is_flag=True, help="Only failures, and all events of agents that failed.")
@click.option("--thinking", is_flag=True, help="Also print the models' thoughts.")
@click.option("--tools", is_flag=True, help="Also print the results of tool calls.")
@click.option(
    "--since", type=times.Moment(), metavar="TIME", help="Only events since TIME: 15m, 2d, or an RFC 3339 time."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N events.")
@sessions.connected
def command(
    *,
    session: sessions.Session,
    name: str | None,
    uid: str | None,
    follow: bool,
    stage: str | None,
    agent: str | None,
    failed: bool,
    thinking: bool,
    tools: bool,
    since: datetime | None,
    tail: int | None,
) -> None:
    """Print logs."""
    reference = session.find(name, uid, with_object=False)
    selection = transcripts.Selection(
        stage=stage, agent=agent, failed=failed, thinking=thinking, tools=tools, since=since
    )
    view = _load_view(session, reference, waits=follow)
    if view is None:
        return
    _check(view, stage, agent)
    printer = transcripts.Printer(
        selection,
        lambda: session.api.get(remote.below(reference.uid))["executions"],
        streams=follow and terminal.is_terminal(),
    )
    timeline = remote.below(reference.uid, "/timeline")
    newest: collections.deque[dict[str, Any]] = collections.deque(maxlen=tail)
    after = 0
    for page, last in session.api.pages(timeline, "events"):
        after = last
        for event in page:
            if tail is None:
                printer.event(event)
            elif printer.is_wanted(event):
                newest.append(event)
    for event in newest:
        printer.event(event)
    if follow and not views.has_ended(view):
        after = _follow(session, reference.uid, printer, after)
        for page, _ in session.api.pages(timeline, "events", after=after):
            for event in page:
                printer.event(event)
    printer.close()


def _load_view(session: sessions.Session, reference: sessions.Reference, *, waits: bool) -> dict[str, Any] | None:
    """Return the API's view. Before the admission print a note, and return None; or wait for it if `waits`."""
    import time

    while True:
        try:
            view: dict[str, Any] = session.api.get(remote.below(reference.uid))
        except failures.NotFound:
            if reference.object is None:
                raise
            session.note(f"{reference.name} is not admitted yet: it has no log.", once="admitted")
            if not waits:
                return None
            time.sleep(1)
        else:
            return view


def _check(view: dict[str, Any], stage: str | None, agent: str | None) -> None:
    """Raise a Failure for a stage or an agent that the investigation does not have."""
    stages = [each["name"] for each in view["stage_progress"]]
    if stage and stage not in stages:
        raise failures.NotFound(sessions.unknown(f"stage {stage} in {view['name']}", stage, stages))
    agents = {name for each in view["stage_progress"] for name in each["agents"]}
    agents |= {execution["name"] for execution in view["executions"]}
    if agent and agents and agent not in agents:
        raise failures.NotFound(sessions.unknown(f"agent {agent} in {view['name']}", agent, sorted(agents)))


def _follow(session: sessions.Session, uid: str, printer: transcripts.Printer, after: int) -> int:
    """Print live events until the investigation has ended. Return the last entry of the log that was printed."""
    path = remote.below(uid, "/events")
    interrupted = _Interruptions(session)
    for event in session.api.events(path, last_id=str(after), interrupted=interrupted.report):
        if event.id:
            after = int(event.id)
        data = event.data
        if event.type.startswith("timeline_event."):
            printer.event(data["event"])
        elif event.type == "stream.chunk":
            printer.chunk(data["event_id"], data["offset"], data["delta"])
        elif event.type == "catchup.overflow":
            for page, last in session.api.pages(remote.below(uid, "/timeline"), "events", after=after):
                after = last
                for missed in page:
                    printer.event(missed)
        elif event.type == "subscription.ended":
            raise failures.Failure(f"the API ended the stream: {data.get('reason', '')}")
        elif event.type == "investigation.completed" or (
            event.type == "investigation.status" and data["phase"] in views.ENDED
        ):
            break
    return after


class _Interruptions:
    """Notes about lost connections, one for each outage."""

    def __init__(self, session: sessions.Session) -> None:
        self._session = session
        self._last = ""

    def report(self, reason: str) -> None:
        """Print the reason, unless it is the same as before."""
        if reason != self._last:
            self._session.note(f"The connection was lost, reconnecting: {reason}")
        self._last = reason
