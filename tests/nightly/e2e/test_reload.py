"""The platform file is broken, mended, replaced as a ConfigMap is and made unreadable, while twenty runs go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

RUNS = 20


async def await_answer(process: Process, path: str, wanted: str, *, there: bool = True) -> Any:
    """Return the answer of the API at `path` once `wanted` is part of it, or no longer."""
    answer: Any = None
    try:
        async with patience.limit():
            while True:
                status, answer = await process.request("GET", path)
                if status == 200 and (wanted in json.dumps(answer)) is there:
                    return answer
                await asyncio.sleep(0.1)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: {path}: {answer}") from None


def mount(file: Path, version: str, content: dict[str, Any]) -> None:
    """Put it there as kubelet does."""
    folder = file.parent
    (folder / version).mkdir()
    (folder / version / file.name).write_text(json.dumps(content))
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").replace(folder / "..data")
    if not file.is_symlink():
        (folder / "link").symlink_to(f"..data/{file.name}")
        (folder / "link").replace(file)


async def test_the_file_changes_in_all_ways_and_no_run_fails(
    operator: Operator, llm: model.Server, tmp_path: Path
) -> None:
    held = asyncio.Event()

    async def script(model_call: model.Turn) -> model.Reply:
        await held.wait()
        return model.Answer(text="root cause")

    llm.script = script
    process = await operator.start()
    file = tmp_path / "tarsy-0.yaml"
    before = json.loads(file.read_text())
    waiting = manifests.chain("later", name="later", stages=[manifests.stage("analysis", agent="LaterAgent")])
    await operator.apply(manifests.chain(), waiting)
    await operator.apply(*(manifests.investigation(f"run-{number}") for number in range(RUNS)))
    await llm.wait_for(lambda requests: len(requests) >= RUNS or None)
    await await_answer(process, "/api/v1/system/warnings", "unknown agent 'LaterAgent'")

    file.write_text("limits: {answr: 1}\n")
    await await_answer(process, "/api/v1/system/warnings", f"{file}:1: limits: unknown: answr")
    notes = (await await_answer(process, "/readyz", "not in force"))["notes"]
    assert str(file) not in str(notes)
    file.write_text(json.dumps(before))
    await await_answer(process, "/api/v1/system/warnings", "not in force", there=False)

    async with model.serve(model.answers("found by the later one")) as later:
        agents = {**before["agents"], "LaterAgent": {"llm_provider": "later"}}
        providers = {**before["llm_providers"], "later": {**before["llm_providers"]["scripted"], "base_url": later.url}}
        changed = {**before, "agents": agents, "llm_providers": providers, "queue": {**before["queue"], "slots": 60}}
        mount(file, "..1", changed)
        await operator.kubectl("wait", "chain/later", "--for=condition=Ready", "--timeout=60s")
        assert "queue.slots" in str(await await_answer(process, "/readyz", "queue.slots"))
        await await_answer(process, "/api/v1/system/warnings", "queue.slots")
        await await_answer(process, "/api/v1/system/config", "LaterAgent")
        (file.parent / "..data").unlink()  # links to nowhere cannot be read, even by root
        await await_answer(process, "/api/v1/system/warnings", "No such file or directory")
        await operator.apply(manifests.investigation("new", alertType="later"))
        await operator.finished("new")
        assert len(later.requests) == 1
        held.set()
        by_name = await operator.finished()
    assert {manifest["status"]["phase"] for manifest in by_name.values()} == {"Completed"}
    assert len(by_name) == RUNS + 1
    mount(file, "..2", before)
    await await_answer(process, "/api/v1/system/warnings", "not in force", there=False)
    await await_answer(process, "/api/v1/system/providers", "later", there=False)
    await process.stop()
