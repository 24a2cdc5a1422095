"""The scripted model as a process: prints its URL on a line, and serves until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from tarsy_dev import loopback
from tarsy_dev.model import server

_KEEP = 1000  # requests in memory, for GET /log; the file has them all


async def main(*, host: str, port: int, log: Path | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server.serve(host=host, port=port, log=log, keep=_KEEP) as running:
        print(running.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev.model", description=__doc__)
    parser.add_argument("--host", default=loopback.HOST, help="the address that it listens on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="a free one if not given")
    parser.add_argument("--log", type=Path, help="append every request to this file, as JSON lines")
    arguments = parser.parse_args()
    asyncio.run(main(host=arguments.host, port=arguments.port, log=arguments.log))
