"""Hostile callers, in a process of their own: `python -m support.hostile PORT TOKEN`.

500 connections on which requests come slowly, or not at all, and large bodies one after the other meanwhile, from
strangers and from a caller with the webhook's token. Prints after how many seconds the last slow one was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time

SLOW = 500
BOMBERS = 6
LARGE = 10 * 1024 * 1024
WEBHOOK = "/api/v1/webhooks/alertmanager"
_CHUNK = 64 * 1024


def _head(path: str, *, length: int, token: str = "") -> bytes:
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{authorization}Content-Length: {length}\r\n\r\n".encode()


async def _trickle(port: int, first: bytes, then: bytes) -> float:
    """Send slowly until the other side closes: after how many seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.monotonic()
    with contextlib.suppress(OSError):
        writer.write(first)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):  # the pace
                    while await reader.read(4096):
                        pass
                    break
            writer.write(then)
    took = time.monotonic() - started
    writer.transport.abort()
    return took


async def _bomb(port: int, token: str) -> None:
    """Send large bodies, each on a connection of its own, until the other side has heard enough."""
    bodies = [
        ("", b"x" * LARGE),
        ("x.y.z", b"x" * LARGE),
        (token, b"x" * (LARGE + 1)),
        (token, b"[" * LARGE),
        (token, b'{"version":"4","alerts":[' + b"{}," * 1_000_000 + b"{}]}"),
    ]
    for sent_token, body in itertools.cycle(bodies):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(_head(WEBHOOK, length=len(body), token=sent_token))
            for at in range(0, len(body), _CHUNK):
                writer.write(body[at : at + _CHUNK])
                await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()


async def main(port: int, token: str) -> None:
    """Do it until the last slow connection is closed."""
    slowly = [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\n", b"X-More: 1\r\n"),
        (_head("/api/v1/alerts", length=1_000_000), b"x" * 1000),
        (_head(WEBHOOK, length=LARGE, token=token) + b"[" * 1_000_000, b"[" * 1000),
    ]
    bombing = [asyncio.create_task(_bomb(port, token)) for _ in range(BOMBERS)]
    took = await asyncio.gather(*(_trickle(port, *slowly[number % len(slowly)]) for number in range(SLOW)))
    assert not any(task.done() for task in bombing)
    print(max(took))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
