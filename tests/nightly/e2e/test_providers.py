"""A real operator with a provider of each protocol: what is the same for people whichever model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

LOOKUPS = tuple(model.Call(name="tools__lookup", args={"name": name}) for name in ("web-0", "web-1"))
USAGE = model.Usage(input=1000, output=400, thinking=0)
PRICE = {"input": 2.0, "output": 10.0}
COST = "0.012"  # of two calls: 2 * (1000 * 2 + 400 * 10) / 1e6

PROVIDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "google": ("gemini", {"model": "gemini-2.5-pro"}),
    "chat": ("openai chat", {"type": "openai", "model": "gpt-5.1"}),
    "responses": ("openai responses", {"type": "openai", "model": "gpt-5.1", "api": "responses"}),
    "claude": ("anthropic", {"type": "anthropic", "model": "claude-haiku-4-5", "thinking": {"budget": 2048}}),
    "grok": ("openai chat", {"type": "xai", "model": "grok-4-1-fast"}),
    "other": (
        "openai chat",
        {"type": "langchain", "model_provider": "openai", "model": "m"},
    ),
}
"""To each provider the protocol that it speaks, and its settings."""


async def test_each_protocols_models_investigate_alike(operator: Operator, llm: model.Server) -> None:
    def script(turn: model.Turn) -> model.Answer:
        if turn.iteration == 0:
            return model.Answer(text="I look.", thoughts="Which pods?", calls=LOOKUPS, usage=USAGE)
        return model.Answer(text="web-0 and web-1 exist [tool 0.0]", usage=USAGE)

    def settings(protocol: str, own: dict[str, Any]) -> dict[str, Any]:
        root = llm.url if protocol in ("gemini", "anthropic") else f"{llm.url}/v1"
        if own.get("type") != "langchain":
            return own | {"base_url": root, "price": PRICE}
        return own | {"options": {"base_url": root}, "base_url": None, "price": PRICE}

    llm.script = model.agents(script)
    process = await operator.start(providers={name: settings(*given) for name, given in PROVIDERS.items()})
    for name in PROVIDERS:
        await operator.apply(manifests.chain(name, name=name, llmProvider=name))
        await operator.apply(manifests.investigation(name, alertType=name))
    found = await operator.finished(*PROVIDERS)
    for name, (protocol, own) in PROVIDERS.items():
        status = found[name]["status"]
        assert (status["phase"], status["finalAnalysis"]) == ("Completed", "web-0 and web-1 exist [tool 0.0]"), name
        assert status["usage"]["cost"] == COST, name
        requests = llm.of(investigation=f"{operator.namespace}/{name}", kind="agent")
        assert [(request.protocol, request.model) for request in requests] == [(protocol, own["model"])] * 2
        _, read = await process.request("GET", f"/api/v1/investigations/{found[name]['metadata']['uid']}/export")
        assert [call["name"] for call in read["messages"][2]["tool_calls"]] == ["tools.lookup"] * 2
        results = [message for message in read["messages"] if message["role"] == "tool"]
        assert [message["failed"] for message in results] == [False, False]
    await process.stop()
