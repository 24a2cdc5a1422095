"""`tarsy budgets`: what is spent, reserved and left of the budgets, and when they renew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from tarsy.cli.client import formats, sessions, terminal, times

BUDGETS = "/api/v1/budgets"


@click.command(
    help="Show what is spent, reserved and left of each budget, and when it renews.",
    epilog="Examples:\n\n\b\n  tarsy budgets\n  tarsy budgets -o json",
)
@formats.option("json", "yaml")
@click.option("--no-headers", is_flag=True, help="Do not print column headers.")
@sessions.connected
def command(*, session: sessions.Session, form: str | None, no_headers: bool) -> None:
    """Show the budgets."""
    view = session.api.get(BUDGETS)
    if form:
        formats.print_document(view, form)
        return
    names = ("BUDGET", "OF", "PER", "UNIT", "LIMIT", "SPENT", "RESERVED", "UNCONFIRMED", "LEFT", "RENEWS")
    rows = [row for budget in view["budgets"] for row in _rows(budget)]
    if not rows:
        click.echo(
            "The platform file has no budgets that you may see. Those of a namespace and its chains need the right to "
            "list agentchains.tarsy.dev in it; those of all or of a provider need that in TARSy's namespace.",
            err=True,
        )
        return
    for line in terminal.table(rows, header=None if no_headers else names):
        click.echo(line)
    for unchecked in view["unchecked_namespaces"]:
        name = unchecked["name"]
        session.note(f"Namespace {name} is left out: {unchecked['message']}", once=f"unchecked {name}")
    if view["is_incomplete"]:
        click.echo("More were left out.", err=True)


def _rows(budget: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each ledger of a budget; one for a budget of which nothing is spent."""
    subject = budget["of"] or ("all" if budget["scope"] == "all" else f"each {budget['scope']}")
    nothing = {"subject": subject, "spent": 0, "reserved": 0, "unconfirmed": 0, "left": budget["limit"]}
    passed = times.since(budget["renews_at"])
    renews = "never" if passed is None else f"in {times.duration_text(-passed)}"
    unit = budget["unit"].replace("_", " ")
    for ledger in budget["ledgers"] or [nothing]:
        amounts = (budget["limit"], *(ledger[key] for key in ("spent", "reserved", "unconfirmed", "left")))
        yield (
            budget["name"],
            ledger["subject"] or subject,
            budget["per"],
            unit,
            *(f"{amount:,.2f}" if budget["unit"] == "cost" else f"{amount:,.0f}" for amount in amounts),
            renews,
        )
