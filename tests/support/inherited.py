"""Settings that a process inherits from the program that starts the tests, and that must not decide their outcome.

A shell without job control, `nohup` and some runners ignore SIGINT for what they start in the background; its children
then install no handler and no KeyboardInterrupt ever comes. Time zone, language, umask and proxies change what a
program prints, what it may read, and where it connects.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")
_SAVED = "TARSY_TESTS_PROXIES"
"""The variable in which the workers of xdist find the proxies that its controller took away."""


def settle() -> None:
    """Set all of it for this process, and so for what it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)
    os.environ.update(TZ="UTC", LANG="C.UTF-8", LC_ALL="C.UTF-8")
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in _PROXIES}
    os.environ.setdefault(_SAVED, json.dumps(removed))


@contextlib.contextmanager
def proxies() -> Iterator[None]:
    """Give the proxies back: a build that the tests start may need them to fetch its sources."""
    saved = json.loads(os.environ[_SAVED])
    os.environ.update(saved)
    try:
        yield
    finally:
        for name in saved:
            del os.environ[name]
