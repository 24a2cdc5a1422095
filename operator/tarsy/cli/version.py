"""`tarsy version`."""

from __future__ import annotations

import click

from tarsy.cli.client import failures, formats, kubectl, sessions


@click.command(
    help="Show the version of this program and of the kinds in the cluster.",
    epilog="Examples:\n\n\b\n  tarsy version --client",
)
@click.option("--client", is_flag=True, help="Show only the version of this program.")
@formats.option("json", "yaml")
@sessions.connected
def command(*, session: sessions.Session, client: bool, form: str | None) -> None:
    """Show versions."""
    from importlib import metadata

    versions = {"client": metadata.version("tarsy")}
    failure: failures.Failure | None = None
    if not client:
        try:
            versions["kubernetes"] = session.cluster.get("/version")["gitVersion"]
            versions["kinds"] = session.cluster.get(kubectl.GROUP)["groupVersion"]
        except failures.Failure as error:
            failure = error
    if form:
        formats.print_document(versions, form)
    else:
        for name, version in versions.items():
            click.echo(f"{name}: {version}")
    if failure:
        raise failure
