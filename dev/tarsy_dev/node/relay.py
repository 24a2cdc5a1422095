"""A relay of connections from the machine into the node's network, where the API server is.

The socket was opened on the machine's 127.0.0.1 and is served here: it belongs to the network that it was opened in.
"""

from __future__ import annotations

import contextlib
import socket
import threading


def serve(listener: socket.socket, host: str, port: int) -> None:
    """Relay each connection of `listener` to `host` and `port`, in threads of its own, until the process ends."""
    threading.Thread(target=_accept, args=(listener, (host, port)), name="relay", daemon=True).start()


def _accept(listener: socket.socket, server: tuple[str, int]) -> None:
    while True:
        caller, _ = listener.accept()
        try:
            called = socket.create_connection(server, timeout=5)
        except OSError:
            caller.close()
            continue
        called.settimeout(None)
        for source, target in ((caller, called), (called, caller)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(65536):
            target.sendall(received)
    # The other direction may go on, as after a request whose end was told by closing.
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    with contextlib.suppress(OSError):
        source.shutdown(socket.SHUT_RD)
