"""Dumps of a database, made and restored by Postgres's own programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tarsy.evaluation import embedded_postgres


def program(name: str, *args: str) -> None:
    """Run one of Postgres's programs."""
    path = embedded_postgres.find_programs() / "bin" / name
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    subprocess.run([path, *args], check=True, env=environment, capture_output=True)


def dump(url: str, file: Path) -> Path:
    """Dump the database to a file; the file."""
    program("pg_dump", "--format=custom", f"--file={file}", url)
    return file


def restore(file: Path, url: str) -> str:
    """Restore a dump into an empty database; its URL."""
    program("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={url}", str(file))
    return url
