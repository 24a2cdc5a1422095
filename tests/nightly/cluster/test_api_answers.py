"""Answers that an API server gives only in its worst hours, from a fake one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support import answers
from tarsy.kube import client, objects

EXPIRED = "The provided continue parameter is too old to display a consistent list result."


class Pages:
    """Lists of two pages, the second of which has expired in the first `expired` lists."""

    def __init__(self, *, expired: int) -> None:
        self.begun = 0
        self._expired = expired

    def __call__(self, request: web.Request) -> tuple[int, dict[str, Any]]:
        second = request.query.get("continue") == "second"
        self.begun += not second
        if second and self.begun <= self._expired:
            return answers.refusal(410, EXPIRED)
        manifest = {"metadata": {"name": "two" if second else "one", "uid": "2" if second else "1"}}
        return 200, {"metadata": {} if second else {"continue": "second"}, "items": [manifest]}


async def test_list_with_expired_pages_is_started_again(tmp_path: Path) -> None:
    pages = Pages(expired=2)
    async with answers.answering(pages, folder=tmp_path) as cluster:
        listed = await objects.list_investigations(cluster, namespace="tarsy")
    assert ([metadata.name for metadata in listed], pages.begun) == (["one", "two"], 3)


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
async def test_failing_api_server_is_reported_down_with_its_own_message(tmp_path: Path, code: int) -> None:
    async with answers.answering(lambda _: answers.refusal(code, "etcdserver: no leader"), folder=tmp_path) as cluster:
        with pytest.raises(client.ClusterDownError, match=f"answers {code}: etcdserver: no leader"):
            await objects.list_chains(cluster, namespace="tarsy")
