"""Providers of LangChain's, each against the scripted model in its own protocol."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_openai.chat_models import _client_utils
from tarsy.config.model import platforms, providers
from tarsy.llm import provider, registry, tool_calls
from tarsy.transcript import messages, ports
from tarsy_dev import model

TASK = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'."
PROMPT = (messages.Message(role="system", text=SYSTEM), messages.Message(role="user", text=TASK))
SCHEMA = {"type": "object", "properties": {"namespace": {"type": "string"}}}
TOOLS = (
    messages.ToolSpec(name="kubernetes-server.pods_list", description="Lists pods.", parameters=SCHEMA),
    messages.ToolSpec(name="kubernetes-server.events.list"),
)
REQUEST = ports.Request(tools=TOOLS, messages=PROMPT)
CALLS = (
    model.Call(name="kubernetes-server__pods_list", args={"namespace": "shöp", "deep": {"a": [1, None]}}),
    model.Call(name=tool_calls.accepted_name("kubernetes-server__events.list"), args={}),
)


@dataclass(frozen=True)
class Kind:
    """A provider, as the platform file has it."""

    type: str
    fields: dict[str, Any]
    path: str = ""
    """The path that the SDK wants behind the server's address."""
    shows_thoughts: bool = True
    """Whether it shows what the scripted model thinks."""
    keeps_arguments: bool = True
    """Whether a call's arguments go back as the text that they came as."""

    def settings(self, url: str, **fields: Any) -> providers.Provider:
        """The provider at `url`."""
        base = f"{url}{self.path}"
        address = {"options": {"base_url": base}} if self.type == "langchain" else {"base_url": base}
        document = {"llm_providers": {"mine": {"type": self.type, "model": "m", **address, **self.fields, **fields}}}
        return platforms.Platform.model_validate(document).llm_providers["mine"]


KINDS = {
    "openai chat": Kind("openai", {"model": "gpt-5.1"}, path="/v1", shows_thoughts=False),
    "openai responses": Kind(
        "openai", {"model": "gpt-5.1", "api": "responses", "thinking": {"level": "low"}}, path="/v1"
    ),
    "anthropic": Kind("anthropic", {"model": "claude-haiku-4-5", "thinking": {"budget": 2048}}, keeps_arguments=False),
    "xai": Kind("xai", {"model": "grok-4-1-fast"}, path="/v1"),
    "langchain": Kind(
        "langchain",
        {"model": "gpt-5.1", "model_provider": "openai"},
        path="/v1",
        shows_thoughts=False,
        keeps_arguments=False,
    ),
}


@contextlib.asynccontextmanager
async def opened(kind: Kind, url: str, name: str = "mine", **fields: Any) -> AsyncIterator[provider.Provider]:
    """The provider, asking the server at `url`."""
    settings = kind.settings(url, **fields)
    _client_utils._cached_async_httpx_client.cache_clear()  # by address: a port comes again, a loop does not
    async with registry.session() as http:
        build = importlib.import_module(registry.TYPES[settings.type].module).build
        made: provider.Provider = build(name, settings, key="sk-secret", session=http)
        try:
            yield made
        finally:
            await made.close()


async def events(source: provider.Provider, request: ports.Request = REQUEST) -> list[provider.StreamEvent]:
    """All that an answer brings, without the empty texts."""
    return [event async for event in source.stream(request) if event not in (provider.Text(""), provider.Thinking(""))]


async def refusal(source: provider.Provider) -> provider.ProviderError:
    """The error of an answer; an incomplete one is an error as in `llm.limited_model`."""
    try:
        received = await events(source)
    except provider.ProviderError as error:
        return error
    assert not any(isinstance(event, provider.Finish) for event in received), received
    return provider.RetryableError("ended before it was whole")


def text_of(received: Sequence[provider.StreamEvent]) -> str:
    return "".join(event.text for event in received if isinstance(event, provider.Text))


def thoughts_of(received: Sequence[provider.StreamEvent]) -> str:
    return "".join(event.text for event in received if isinstance(event, provider.Thinking))


def usage_of(received: Sequence[provider.StreamEvent]) -> messages.Usage | None:
    return next((event.usage for event in reversed(received) if isinstance(event, provider.Usage)), None)


def answered(received: Sequence[provider.StreamEvent], name: str = "mine", call_number: int = 0) -> messages.Message:
    """The answer as it is stored and read back."""
    calls = [event for event in received if isinstance(event, provider.Call)]
    finish = received[-1]
    assert isinstance(finish, provider.Finish)
    state = json.loads(json.dumps(finish.state))
    return messages.Message(
        role="assistant",
        text=text_of(received),
        thinking=thoughts_of(received),
        calls=tuple(
            messages.ToolCall(id=f"{call_number}.{index}", name=call.name, arguments=call.arguments)
            for index, call in enumerate(calls)
        ),
        provider_state=messages.ProviderState(provider=name, data=state) if state else None,
    )


def results(answer: messages.Message) -> tuple[messages.Message, ...]:
    """A result of each of its calls; that of the last is an error."""
    return tuple(
        messages.Message(
            role="tool",
            call_id=call.id,
            tool_name=call.name,
            text=f"what {call.name} shows",
            failed=call is answer.calls[-1],
        )
        for call in answer.calls
    )
