"""The command `tarsy operator`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast, get_args

import click
import uvloop

from tarsy.config.load import loader, settings
from tarsy.masking import known_secrets
from tarsy.process import errors, hardening, lifecycle
from tarsy.telemetry import logs, metrics


@click.command(
    help="Run an operator process. It needs DATABASE_URL or DATABASE_URL_FILE in the environment and, if it serves the "
    "API, TARSY_WEBHOOK_TOKEN or TARSY_WEBHOOK_TOKEN_FILE.",
    epilog="Examples:\n\n\b\n  tarsy operator --config platform.yaml --listen 127.0.0.1:8080",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TARSY_CONFIG",
    show_envvar=True,
    help="The platform file: providers, MCP servers, agents. It is merged into the built-in platform.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The kubeconfig of the cluster; by default this pod's cluster, or else $KUBECONFIG or ~/.kube/config.",
)
@click.option("--listen", default="127.0.0.1:8080", show_default=True, help="HOST:PORT of the API.")
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="HOST:PORT of the metrics, which are served as /metrics without a token; off serves none. "
    f"[default: {metrics.DEFAULT_LISTEN}; if another process has that, no metrics are served]",
)
@click.option(
    "--role",
    type=click.Choice(get_args(settings.Role)),
    default="all",
    show_default=True,
    help="The part of an operator's work that this process does.",
)
@click.option(
    "--insecure-dev",
    is_flag=True,
    help="Serve without a token, and only to this machine. Runbooks may come from this machine, too.",
)
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING"]), default="INFO", show_default=True)
@click.option(
    "--log-format",
    type=click.Choice(get_args(logs.Format)),
    default="text",
    envvar="TARSY_LOG_FORMAT",
    show_envvar=True,
    show_default=True,
    help="text for people, json for log collectors; both have the same lines and fields.",
)
def command(
    *,
    config: Path | None,
    kubeconfig: Path | None,
    listen: str,
    metrics_listen: str | None,
    role: str,
    insecure_dev: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run an operator process."""
    secrets = known_secrets.KnownSecrets()
    logs.configure(level=log_level, form=cast("logs.Format", log_format), mask=secrets.mask)
    hardening.make_undumpable()
    try:
        process_settings = settings.operator(
            environment=os.environ,
            config=config,
            kubeconfig=kubeconfig,
            listen=listen,
            metrics_listen=metrics_listen,
            role=cast("settings.Role", role),
            insecure_dev=insecure_dev,
        )
        uvloop.run(lifecycle.operator(process_settings, secrets))
    except (loader.ConfigError, errors.StartError) as error:
        raise click.ClickException(str(error)) from error
