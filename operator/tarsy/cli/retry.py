"""`tarsy retry`: an investigation that has ended, run again as a new one."""

from __future__ import annotations

import click

from tarsy.cli.client import formats, remote, sessions, terminal, times


@click.command(
    help="Run an ended investigation again, as a new one. --from-stage copies the results of earlier stages.",
    epilog="Examples:\n\n\b\n  tarsy retry web-crash\n  tarsy retry web-crash --from-stage analysis --watch",
)
@sessions.named
@click.option("--from-stage", metavar="NAME", help="The first stage to run again; by default all stages run.")
@click.option("--current-chain", is_flag=True, help="Run all stages of the chain as it is now; by default, as it was.")
@click.option("--watch", is_flag=True, help="Watch the new investigation until it has ended; the exit code says how.")
@click.option(
    "--timeout", type=times.Duration(), metavar="DURATION", help="With --watch: stop after DURATION, and exit with 6."
)
@formats.option("name", "json", "yaml")
@sessions.connected
def command(
    *,
    session: sessions.Session,
    name: str | None,
    uid: str | None,
    from_stage: str | None,
    current_chain: bool,
    watch: bool,
    timeout: float | None,
    form: str | None,
) -> None:
    """Run an investigation again."""
    if from_stage and current_chain:
        raise click.UsageError("--current-chain runs all stages: leave --from-stage out")
    if watch and form:
        raise click.UsageError("--watch cannot be used with -o")
    reference = session.find(name, uid, with_object=False)
    body = {"fromStage": from_stage} if from_stage else {"chain": "current"} if current_chain else {}
    created = session.api.ask("POST", remote.below(reference.uid, "/retry"), body)
    if form in ("json", "yaml"):
        formats.print_document(created, form)
    else:
        click.echo(f"alertinvestigation.tarsy.dev/{terminal.clean_line(created['name'])}{'' if form else ' created'}")
    if watch:
        from tarsy.cli import follow

        session.namespace = created["namespace"]
        raise click.exceptions.Exit(follow.show(session, created["name"], None, timeout=timeout, form=None))
