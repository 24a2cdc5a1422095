"""The time limit of the masker is of the processor's time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tarsy.masking import known_secrets, masker


class Delayed(known_secrets.KnownSecrets):
    """Known secrets that are looked for in a thread that waits, or works, for a while."""

    def __init__(self, delay: Callable[[], object]) -> None:
        super().__init__()
        self._delay = delay

    def mask_bytes(self, doc: bytes) -> bytes:
        self._delay()
        return super().mask_bytes(doc)


def work() -> None:
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(
    ("delay", "masked"),
    [(lambda: time.sleep(0.5), "password=[MASKED:password]"), (work, masker.withheld(17))],
    ids=["waits", "works"],
)
def test_time_of_the_processor_alone_counts(
    delay: Callable[[], object], masked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masker, "_SECONDS", 0.25)
    assert masker.Masker(groups=["security"], secrets=Delayed(delay)).text("password=cnry1234") == masked
