"""Our Claude, asked over a real socket through LangChain and the anthropic SDK."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from support import leases
from tarsy.config.model import platforms, providers
from tarsy.llm import anthropic, limited_model, provider, registry
from tarsy.transcript import messages, ports
from tarsy_dev import model

JSON = dict[str, Any]

NAME = "anthropic-default"
SYSTEM = messages.Message(
    role="system", text="You are KubernetesAgent, the agent of stage 'analysis' of chain 'crash'."
)
TASK = messages.Message(role="user", text="Investigation: tarsy/web-crash\n\npod web-0 restarts every minute")
TOOLS = (messages.ToolSpec(name="kubernetes-server.pods_list"), messages.ToolSpec(name="kubernetes-server.events_list"))
REQUEST = ports.Request(tools=TOOLS, messages=(SYSTEM, TASK))
CALLS = (
    model.Call(name="kubernetes-server__pods_list", args={"namespace": "shop"}),
    model.Call(name="kubernetes-server__events_list"),
)
LOOKS = model.Answer(thoughts="**Looking**", text="I will look.", calls=CALLS, chunk=6)


@dataclass(frozen=True)
class Asked:
    """A provider within its limits, and the provider alone."""

    server: model.Server
    source: provider.Provider
    limited: limited_model.LimitedModel

    async def ask(self, request: ports.Request = REQUEST) -> messages.Message:
        """The answer, within the limits."""
        return (await self.limited.ask(request, leases.SCOPE)).message

    async def events(self, request: ports.Request = REQUEST) -> list[provider.StreamEvent]:
        """Return the events that are streamed, without limits."""
        streamed = [event async for event in self.source.stream(request)]
        return [event for event in streamed if event not in (provider.Text(""), provider.Thinking(""))]

    @property
    def sent(self) -> JSON:
        """The last request."""
        body: JSON = self.server.requests[-1].body
        return body


def built(session: aiohttp.ClientSession, url: str, settings: JSON) -> provider.Provider:
    """The provider with `settings` of the platform file."""
    usual = {"type": "anthropic", "model": "claude-haiku-4-5", "base_url": url}
    return anthropic.build(
        NAME, providers.AnthropicProvider.model_validate(usual | settings), key="secret", session=session
    )


@contextlib.asynccontextmanager
async def asking(
    script: model.Script | model.Reply, *, limits: JSON | None = None, **settings: Any
) -> AsyncIterator[Asked]:
    """`script`, or one reply for all iterations, answers what Claude with `settings` asks."""
    answering = script if callable(script) else model.answers(script)
    async with model.serve(answering) as server, registry.session() as session:
        source = built(session, server.url, settings)
        limited = limited_model.LimitedModel(NAME, source, limits=platforms.Limits.model_validate(limits or {}))
        yield Asked(server, source, limited)


BUDGET: JSON = {"thinking": {"budget": 2048}}


def then(request: ports.Request, answer: messages.Message, *more: messages.Message) -> ports.Request:
    """The request that follows an answer, which was stored: with its calls' results, and what else was said."""
    call_number = sum(message.role == "assistant" for message in request.messages)
    calls = tuple(replace(call, id=f"{call_number}.{index}") for index, call in enumerate(answer.calls))
    state = answer.provider_state
    stored = state and replace(state, data=json.loads(json.dumps(state.data)))
    results = [
        messages.Message(role="tool", call_id=call.id, tool_name=call.name, text="ok", failed=index == 1)
        for index, call in enumerate(calls)
    ]
    reply = replace(answer, calls=calls, provider_state=stored)
    return replace(request, messages=(*request.messages, reply, *results, *more))
