"""Questions to the API server before a request is served: without an answer the request gets a 503."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from tarsy import errors
from tarsy.kube import objects
from tarsy.serve import problems

TOLD_SECONDS = 10.0
"""Seconds between two logged reasons: requests without a token must not fill the log."""

log = logging.getLogger(__name__)


class Asking:
    """Tells those who ask that there was no answer, and the log now and then why."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told = -TOLD_SECONDS

    @asynccontextmanager
    async def whether(self, what: str) -> AsyncIterator[None]:
        """Around a question to the API server: `what` cannot be found out where it is not answered."""
        try:
            yield
        except (errors.TemporaryError, objects.RefusedError, TimeoutError) as error:
            if (now := self._clock()) - self._told >= TOLD_SECONDS:
                self._told = now
                why = str(error) or "the API server takes too long"
                log.warning("%s cannot be found out: %s", what, why, extra={"action": "review_failed"})
            message = (
                f"{what} cannot be found out now: ask again; where it stays so, the operator has no API server, or may "
                "not ask it (it needs the ClusterRole system:auth-delegator): its log has more"
            )
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message) from error
