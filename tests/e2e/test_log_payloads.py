"""No line of the log has a payload, although every logger of the process writes all that it has to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import apis, manifests, watching
from tarsy_dev import mcp_server, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

pytestmark = pytest.mark.once

EVERY_LOGGER = """
import logging
logging.Logger.isEnabledFor = lambda self, level: True
logging.Logger.getEffectiveLevel = lambda self: logging.DEBUG
"""
"""A sitecustomize: levels count for no logger, whichever code sets them."""
PAYLOADS = {
    name: f"payload {number} of the {name}"
    for number, name in enumerate(
        (
            *("alert", "annotation", "label", "malformed notification", "unreadable object", "posted alert"),
            *("system prompt", "instructions", "runbook", "answer", "thoughts", "arguments", "malformed arguments"),
            *("arguments of an unknown tool", "result", "error of a tool", "description of a tool", "question"),
            *("reason of a hold", "search", "guessed path"),
        )
    )
}
PROVIDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "google": ("", {}),
    "chat": ("/v1", {"type": "openai", "model": "gpt-5.1"}),
    "responses": ("/v1", {"type": "openai", "model": "gpt-5.1", "api": "responses"}),
    "claude": ("", {"type": "anthropic", "model": "claude-haiku-4-5", "thinking": {"budget": 2048}}),
    "grok": ("/v1", {"type": "xai", "model": "grok-4-1-fast"}),
}
"""To each provider the path of its protocol, and its settings."""
LIBRARIES = {"anthropic", "kopf", "mcp", "openai", "sqlalchemy"}
"""Some of the libraries that have something to say at DEBUG."""


def script(model_call: model.Turn) -> model.Reply:
    if model_call.iteration == 0 and model_call.kind == "agent":
        calls = [
            model.Call(name="tools__lookup", args={"name": PAYLOADS["arguments"]}),
            model.Call(name="tools__tell"),
            model.Call(name="tools__fail"),
            model.Call(name="tools__unknown", args={"name": PAYLOADS["arguments of an unknown tool"]}),
            model.Call(name="tools__lookup", raw='{"name": "' + PAYLOADS["malformed arguments"]),
        ]
        return model.Answer(
            text=PAYLOADS["answer"], thoughts=PAYLOADS["thoughts"], calls=model.keyed(model_call, calls)
        )
    return model.Answer(text=PAYLOADS["answer"], thoughts=PAYLOADS["thoughts"])


def tell() -> str:
    """Tell something. Reads only."""
    return PAYLOADS["result"]


def fail() -> str:
    """Fail. Reads only."""
    raise RuntimeError(PAYLOADS["error of a tool"])


async def test_lines_of_all_loggers_have_no_payload(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(EVERY_LOGGER)
    toolbox.mcp.add_tool(tell, description=PAYLOADS["description of a tool"], annotations=mcp_server.READ_ONLY)
    toolbox.mcp.add_tool(fail, annotations=mcp_server.READ_ONLY)
    llm.script = script
    operator.configure(
        mcp_servers={
            "tools": {"transport": {"type": "http", "url": toolbox.url}, "instructions": PAYLOADS["instructions"]}
        },
        agents={"KubernetesAgent": {"mcp_servers": ["tools"], "custom_instructions": PAYLOADS["system prompt"]}},
        defaults={"runbook": PAYLOADS["runbook"]},
        logs={"levels": {"agent": "debug", "llm": "debug", "tools": "debug", "store": "debug"}},
    )
    process = await operator.start(
        as_installed=True,
        env={"PYTHONPATH": str(tmp_path), "TARSY_LOG_FORMAT": "json", "OPENAI_LOG": "debug", "ANTHROPIC_LOG": "debug"},
        providers={name: own | {"base_url": llm.url + path} for name, (path, own) in PROVIDERS.items()},
    )
    for name in PROVIDERS:
        await operator.apply(
            manifests.chain(name, name=name, llmProvider=name, executiveSummary={"enabled": True}),
            manifests.investigation(name, alertType=name, alertData=PAYLOADS["alert"]),
        )
    by_name = await operator.finished(*PROVIDERS)
    await act(operator, process, by_name["google"]["metadata"]["uid"])
    await process.stop()

    lines = [json.loads(line) for line in operator.log.splitlines() if line.startswith("{")]
    assert {str(line["logger"]).partition(".")[0] for line in lines} >= LIBRARIES
    assert {line["level"] for line in lines} >= {"DEBUG", "INFO", "WARNING"}
    sent = "\n".join(json.dumps(request.body) for request in llm.requests)
    for name in ("alert", "system prompt", "instructions", "runbook", "answer", "arguments", "result", "question"):
        assert PAYLOADS[name] in sent, f"the {name} was sent to a model"
    leaks = {
        name: [line for line in operator.log.splitlines() if text in line or text.replace(" ", "%20") in line][:2]
        for name, text in PAYLOADS.items()
    }
    assert {name: leaked for name, leaked in leaks.items() if leaked} == {}


async def act(operator: Operator, process: Process, uid: str) -> None:
    """Send whatever people and other programs send, also what is no alert."""
    path = f"/api/v1/investigations/{uid}"

    async def send(method: str, path: str, body: Any = None, *, status: int) -> Any:
        code, answer = await process.request(method, path, body=json.dumps(body).encode() if body is not None else None)
        assert code == status, (path, answer)
        return answer

    await send("POST", f"{path}/chat", {"question": PAYLOADS["question"]}, status=202)
    async with patience.limit():
        while not (await send("GET", path, status=200))["runs"][-1]["ending"]:
            pass  # the look itself gives way to the others
    await send("POST", f"{path}/hold", {"reason": PAYLOADS["reason of a hold"]}, status=200)
    await send("GET", f"/api/v1/investigations?q={PAYLOADS['search'].replace(' ', '%20')}", status=200)
    await send("GET", f"/api/v1/{PAYLOADS['guessed path'].replace(' ', '%20')}", status=404)
    await send(
        "POST", "/api/v1/alerts", {"alert_type": "google", "data": {"text": PAYLOADS["posted alert"]}}, status=202
    )
    labels = {"alertname": "google", "note": PAYLOADS["label"]}
    annotated = manifests.notification(labels=labels, annotations={"summary": PAYLOADS["annotation"]})
    assert (await process.request("POST", "/api/v1/webhooks/alertmanager", body=annotated))[0] == 200
    malformed = manifests.notification(annotations=[PAYLOADS["malformed notification"]], labels=3)
    await process.request("POST", "/api/v1/webhooks/alertmanager", body=malformed)
    await process.request("POST", "/api/v1/webhooks/alertmanager", body=malformed[:-9])
    async with watching.watching(process.url, headers=apis.bearer(process.editor)) as watcher:
        await watcher.ask(action="subscribe", channel=f"investigation:{uid}")
        await watcher.until_type("investigation.completed")
    await operator.finished()
