"""`tarsy open`: the pages in a browser, with the rights of a token.

The token is exchanged for a one-time code. The browser gets the code alone, and a cookie for it.
"""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext, suppress
from typing import TextIO
from urllib import parse

import click


@click.command(help="Open the pages in a browser: the list, or the investigation NAME.")
@click.argument("name", required=False)
@click.option("--namespace", "-n", metavar="NAMESPACE", help="The investigation's; else the kubeconfig's.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context; else its current one.")
@click.option(
    "--api",
    envvar="TARSY_API",
    show_envvar=True,
    metavar="URL",
    help="Where the API is; else a port of this machine is forwarded to its Service until Ctrl-C.",
)
@click.option(
    "--service-namespace",
    default="tarsy",
    show_default=True,
    metavar="NAMESPACE",
    help="The namespace of the API's Service, without --api.",
)
@click.option(
    "--token-file",
    type=click.File(),
    metavar="FILE",
    help="A token of the cluster, - for standard input; else TARSY_TOKEN, else the kubeconfig's.",
)
@click.option("--no-browser", is_flag=True, help="Print the address; it signs one browser in, within 30 seconds.")
def command(
    *,
    name: str | None,
    namespace: str | None,
    context: str | None,
    api: str | None,
    service_namespace: str,
    token_file: TextIO | None,
    no_browser: bool,
) -> None:
    """Sign a browser in."""
    from tarsy.cli import kubeconfig, port_forward, remote

    token = token_file.read().strip() if token_file else os.environ.get("TARSY_TOKEN", "")
    token = token or kubeconfig.token(context=context)
    page = f"/investigations/{_uid(name, namespace, context)}" if name else "/"
    reachable = nullcontext(api.rstrip("/")) if api else port_forward.to_api(service_namespace, context=context)
    with reachable as url:
        address = remote.API(url, token=token).ask("POST", "/api/v1/session-codes", {})["url"]
        needs_sign_in = bool(parse.urlsplit(address).query)
        address = f"{address}&next={parse.quote(page)}" if needs_sign_in else address.rstrip("/") + page
        if no_browser or click.launch(address) != 0:
            click.echo(address)
        if api is None and address.startswith(url):
            click.echo(f"{url} leads to the API until Ctrl-C.", err=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


def _uid(name: str, namespace: str | None, context: str | None) -> str:
    """Return the id of an investigation, which is its object's uid."""
    from tarsy.cli import kubeconfig

    scope = ["-n", namespace] if namespace else []
    return kubeconfig.kubectl(
        "get", "alertinvestigations.tarsy.dev", name, *scope, "-o", "jsonpath={.metadata.uid}", context=context
    )
