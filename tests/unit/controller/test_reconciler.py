"""Which sightings of an object are looked at. What is done about them is in tests/cluster."""

from __future__ import annotations

from typing import Any

import pytest
from tarsy.controller import investigations
from tarsy.kube import watch
from tarsy.resources import base

UID = "00000000-0000-0000-0000-00000000000a"


def seen(*, generation: int, deleted: bool = False) -> watch.Seen:
    return watch.Seen(namespace="tarsy", name="web-0", uid=UID, generation=generation, deleted=deleted)


async def test_object_that_this_process_made_is_looked_at_once_it_has_changed_or_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unused: Any = None
    reconciler = investigations.Reconciler(cluster=unused, database=unused, index=unused, mask=str, workers=1)
    looked_at: list[investigations.Key] = []
    monkeypatch.setattr(reconciler, "add", looked_at.append)
    reconciler.seen(seen(generation=1))
    assert len(looked_at) == 1, "another process may have made it, and died before it was admitted"
    reconciler.mark_admitted(base.ObjectMeta(namespace="tarsy", name="web-0", uid=UID, generation=1))
    reconciler.seen(seen(generation=1))
    assert len(looked_at) == 1
    reconciler.seen(seen(generation=2))
    reconciler.seen(seen(generation=1, deleted=True))
    assert len(looked_at) == 3
