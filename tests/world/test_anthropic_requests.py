"""Whatever a conversation of ours is, Claude's server takes it: the strict one, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import aiohttp
import hypothesis
import pytest
from hypothesis import strategies as st
from support.claude import BUDGET, JSON, NAME, built
from tarsy.llm import registry
from tarsy.transcript import messages, ports
from tarsy_dev import model
from tarsy_dev.model import anthropic_conversation

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["", " ", "\n\n", "so it is"])
schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(texts, st.just({"type": "string"}), max_size=3),
        "required": st.lists(texts, max_size=2),
        "anyOf": st.just([{"required": ["a"]}]),
        "$schema": st.just("https://json-schema.org/draft/2020-12/schema"),
    },
)
arguments = texts | st.sampled_from(['{"a": 1}', "[]", '{"a": {"b": [1.5, null]}}', "{" * 10])


@st.composite
def states(draw: st.DrawFn, calls: int) -> messages.ProviderState | None:
    """A provider's state with an answer of so many calls: none, another's, or blocks as Claude gives them."""
    kind = draw(st.sampled_from(["none", "foreign", "own", "own", "not its own"]))
    if kind == "none":
        return None
    thought = draw(texts)
    blocks: list[JSON] = []
    if draw(st.booleans()):
        blocks.append(
            {"type": "redacted_thinking", "data": anthropic_conversation.seal("thoughts that nobody is shown")}
        )
    if draw(st.booleans()):
        blocks.append({"type": "thinking", "thinking": thought, "signature": anthropic_conversation.seal(thought)})
    if draw(st.booleans()):
        blocks.append({"type": "text", "text": draw(texts)})
    identity = draw(st.uuids()).hex
    blocks += [
        {"type": "tool_use", "id": f"toolu_{identity}_{index}", "name": draw(texts), "input": {}}
        for index in range(calls + (kind == "not its own"))
    ]
    return messages.ProviderState(
        provider="google-default" if kind == "foreign" else NAME, data={"content": blocks} if blocks else None
    )


@st.composite
def conversations(draw: st.DrawFn) -> Sequence[messages.Message]:
    """A conversation as the agent loop makes them."""
    conversation = [messages.Message(role="system", text=draw(texts)), messages.Message(role="user", text=draw(texts))]
    for step in range(draw(st.integers(0, 4))):
        calls = tuple(
            messages.ToolCall(id=f"{step}.{index}", name=draw(texts), arguments=draw(arguments))
            for index in range(draw(st.integers(0, 3)))
        )
        conversation.append(
            messages.Message(role="assistant", text=draw(texts), calls=calls, provider_state=draw(states(len(calls))))
        )
        conversation += [
            messages.Message(
                role="tool", call_id=call.id, tool_name=call.name, text=draw(texts), failed=draw(st.booleans())
            )
            for call in calls
        ]
        if not calls or draw(st.booleans()):
            conversation.append(messages.Message(role="user", text=draw(texts)))
    return conversation


@pytest.fixture(scope="module")
def listening() -> Iterator[Callable[[ports.Request, JSON], None]]:
    """Asks a request once, and raises what becomes of it."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def opened() -> tuple[model.Server, aiohttp.ClientSession]:
            server = await stack.enter_async_context(model.serve(lambda _: model.Answer(text="ok"), keep=1))
            return server, await stack.enter_async_context(registry.session())

        server, session = runner.run(opened())

        async def ask(request: ports.Request, settings: JSON) -> None:
            async for _ in built(session, server.url, settings).stream(request):
                pass

        yield lambda request, settings: runner.run(ask(request, settings))
        runner.run(stack.aclose())


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    conversation=conversations(),
    tools=st.lists(st.builds(messages.ToolSpec, name=texts, description=texts, parameters=schemas), max_size=3),
    settings=st.sampled_from([{}, BUDGET, {"model": "claude-sonnet-5", "thinking": {"level": "high"}}]),
)
def test_any_conversation_becomes_a_request_that_is_taken(
    listening: Callable[[ports.Request, JSON], None],
    conversation: Sequence[messages.Message],
    tools: Sequence[messages.ToolSpec],
    settings: JSON,
) -> None:
    named = {spec.name: spec for spec in tools}
    listening(ports.Request(tools=tuple(named.values()), messages=tuple(conversation)), settings)
