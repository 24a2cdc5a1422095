"""Our Claude over a real socket, through LangChain and the anthropic SDK: what is its own among the providers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from langchain_core import messages as lc
from langchain_core.outputs import ChatGenerationChunk
from support import leases
from support.claude import BUDGET, CALLS, JSON, LOOKS, NAME, REQUEST, TOOLS, asking, built, then
from tarsy.config.model import providers
from tarsy.llm import anthropic, provider, registry
from tarsy.transcript import messages, ports
from tarsy_dev import model
from tarsy_dev.model import anthropic as wire

FOUND = model.Search(query="exit code 137", pages=(model.Page(title="Exit codes", url="https://pages.test/137"),))


async def test_an_answer_comes_as_thoughts_text_calls_and_usage() -> None:
    async with asking(LOOKS, **BUDGET) as asked:
        *events, usage, first, second, finish = await asked.events()
    assert "".join(event.text for event in events if isinstance(event, provider.Thinking)) == "**Looking**"
    assert "".join(event.text for event in events if isinstance(event, provider.Text)) == "I will look."
    assert isinstance(finish, provider.Finish)
    assert [first, second] == [
        provider.Call("kubernetes-server.pods_list", '{"namespace": "shop"}'),
        provider.Call("kubernetes-server.events_list", "{}"),
    ]
    assert isinstance(usage, provider.Usage)
    counted = model.usage_of(_turn(asked.sent), LOOKS)
    assert (usage.usage.input_tokens, usage.usage.output_tokens, usage.usage.thinking_tokens) == (
        counted.input,
        counted.output,
        counted.thinking,
    ), "what was written to and read from the cache counts as well"
    assert usage.usage.total_tokens == counted.input + counted.output + counted.thinking


def _turn(body: JSON) -> model.Turn:
    request, refused = wire.parse(path={}, headers={"x-api-key": "k", "anthropic-version": "2026-10-21"}, body=body)
    assert refused is None
    return request


async def test_thoughts_go_back_byte_for_byte_also_after_storage_and_a_takeover() -> None:
    redacted = model.Answer(redacted=True, thoughts="more", text="And now this.", calls=CALLS, chunk=2)
    async with asking(model.answers(LOOKS, redacted, "the end"), **BUDGET) as asked:
        first = then(REQUEST, await asked.ask())
        second = then(first, await asked.ask(first))
        async with registry.session() as session:
            another = built(session, asked.server.url, BUDGET)
            assert isinstance([event async for event in another.stream(second)][-1], provider.Finish)
    states = [message.provider_state for message in second.messages if message.provider_state]
    sent = [message["content"] for message in asked.sent["messages"] if message["role"] == "assistant"]
    assert [state.data["content"] for state in states] == sent
    assert [block["type"] for block in sent[1]] == ["redacted_thinking", "thinking", "text", "tool_use", "tool_use"]
    assert sent[0][0]["thinking"] == "**Looking**"
    results = asked.sent["messages"][2]["content"]
    assert [(block["tool_use_id"], block["is_error"]) for block in results] == [
        (sent[0][2]["id"], False),
        (sent[0][3]["id"], True),
    ]
    assert results[0]["content"] == [{"type": "text", "text": "[tool 0.0]\nok"}]


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, {"max_tokens": 16_384}),
        (BUDGET, {"max_tokens": 16_384, "thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (
            {"model": "claude-sonnet-5-5", "thinking": {"level": "low"}, "max_output_tokens": 32_000},
            {
                "max_tokens": 32_000,
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": "low"},
            },
        ),
    ],
    ids=["as the model does", "budget", "level"],
)
async def test_thinking_is_asked_for_as_the_model_takes_it(settings: JSON, sent: JSON) -> None:
    async with asking(LOOKS, **settings) as asked:
        answer = await asked.ask()
    assert {
        key: asked.sent.get(key) for key in ("max_tokens", "thinking", "output_config") if key in asked.sent
    } == sent
    assert answer.thinking == ("**Looking**" if "thinking" in sent else "")


@pytest.mark.parametrize(
    ("thinking", "message"),
    [({"level": "minimal"}, "level is low, medium or high"), ({"budget": 1023}, "budget is at least 1024")],
)
def test_thinking_that_claude_does_not_take_is_an_error_of_the_file(thinking: JSON, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        providers.AnthropicProvider.model_validate({"type": "anthropic", "model": "m", "thinking": thinking})


FOREIGN = messages.ProviderState(provider="google-default", data=[{"text": "of Gemini's"}])


@pytest.mark.parametrize(
    "state", [None, FOREIGN, replace(FOREIGN, provider=NAME)], ids=["none", "foreign", "shapeless"]
)
async def test_turn_of_another_provider_is_sent_as_text_and_calls_without_thinking_budget(
    state: messages.ProviderState | None,
) -> None:
    called = tuple(messages.ToolCall(id="", name=spec.name, arguments="{}") for spec in TOOLS)
    answer = messages.Message(role="assistant", text="I look.", thinking="hm", calls=called, provider_state=state)
    async with asking(model.answers(LOOKS, LOOKS, "the end"), **BUDGET) as asked:
        request = then(REQUEST, answer)
        assert await asked.ask(request)
        assert "thinking" not in asked.sent
        assert [block["type"] for block in asked.sent["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
        concluded = messages.Message(role="assistant", text="So it is.")
        question = messages.Message(role="user", text="And why?")
        assert await asked.ask(replace(request, messages=(*request.messages, concluded, question)))
        assert asked.sent["thinking"]["budget_tokens"] == 2048


async def test_turn_started_with_thinking_keeps_thinking_enabled_to_its_end() -> None:
    quiet = model.Answer(text="And there.", calls=CALLS)
    async with asking(model.answers(LOOKS, quiet, LOOKS, "the end"), **BUDGET) as asked:
        request = REQUEST
        for _ in range(3):
            request = then(request, await asked.ask(request))
        conclude = messages.Message(role="user", text="Conclude.")
        await asked.ask(replace(request, tools=(), messages=(*request.messages, conclude)))
    assert [request.body["thinking"] for request in asked.server.requests] == 4 * [
        {"type": "enabled", "budget_tokens": 2048}
    ]


async def test_search_results_are_reported_and_go_back() -> None:
    searched = model.Answer(thoughts="hm", searches=(FOUND,), text="Killed.", calls=CALLS)
    async with asking(model.answers(searched, "the end"), native_tools=["web_search"], **BUDGET) as asked:
        request = replace(REQUEST, native_tools=("web_search",))
        events = await asked.events(request)
        [grounding] = [event for event in events if isinstance(event, provider.Grounding)]
        assert grounding == provider.Grounding(
            "web_search",
            sources=[provider.Source(title="Exit codes", url="https://pages.test/137")],
            queries=["exit code 137"],
        )
        assert {"type": "web_search_20250305", "name": "web_search"} in asked.sent["tools"]
        again = then(request, await asked.ask(request))
        assert (await asked.ask(again)).text == "the end"
    kinds = [block["type"] for block in asked.sent["messages"][1]["content"]]
    assert kinds == ["thinking", "server_tool_use", "web_search_tool_result", "text", "tool_use", "tool_use"]
    assert asked.sent["messages"][1]["content"][3]["citations"][0]["url"] == "https://pages.test/137"


async def test_paused_answer_is_continued_and_becomes_one_answer() -> None:
    usage = model.Usage(input=40, output=5)
    paused = model.Answer(thoughts="hm", searches=(FOUND,), finish="paused", usage=usage)
    script = model.answers(paused, model.Answer(text="Killed.", calls=CALLS, usage=usage), "the end")
    async with asking(script, native_tools=["web_search"], **BUDGET) as asked:
        request = replace(REQUEST, native_tools=("web_search",))
        answer = (await asked.limited.ask(request, leases.SCOPE)).message
        assert len(asked.server.requests) == 2
        assert answer.text == "Killed."
        assert [call.name for call in answer.calls] == [spec.name for spec in TOOLS]
        events = await asked.events(request)
        assert [event.usage.total_tokens for event in events if isinstance(event, provider.Usage)] == [45, 90]
        asked.server.script = model.answers("", "the end")
        await asked.ask(then(request, answer))
    kinds = [block["type"] for block in asked.sent["messages"][1]["content"]]
    assert kinds == ["thinking", "server_tool_use", "web_search_tool_result", "text", "tool_use", "tool_use"]


async def test_endlessly_paused_answer_is_an_error() -> None:
    paused = model.Answer(searches=(FOUND,), finish="paused")
    async with asking(lambda _: paused, native_tools=["web_search"]) as asked:
        with pytest.raises(ports.ModelError, match="paused the answer 10 times") as error:
            await asked.ask(replace(REQUEST, native_tools=("web_search",)))
    assert error.value.failure.kind == "rejected"
    assert len(asked.server.requests) == anthropic.PAUSES


@pytest.mark.parametrize(
    ("metadata", "error", "text"),
    [
        ({"stop_reason": "refusal"}, provider.RejectedError, "the model refused to answer$"),
        (
            {"stop_reason": "refusal", "stop_details": {"category": "cyber", "explanation": None}},
            provider.RejectedError,
            r"the model refused to answer \(cyber\)",
        ),
        ({"stop_reason": "model_context_window_exceeded"}, provider.ContextOverflowError, "filled the context"),
    ],
)
async def test_refusal_and_full_context_are_raised_as_errors(metadata: JSON, error: type[Exception], text: str) -> None:
    async with asking(LOOKS) as asked:
        assert isinstance(asked.source, anthropic.Claude)
        with pytest.raises(error, match=text):
            asked.source.finish(ChatGenerationChunk(message=lc.AIMessageChunk(content="", response_metadata=metadata)))


async def test_unchanged_parts_are_marked_to_be_cached_while_more_will_follow() -> None:
    async with asking(model.answers(LOOKS, "the end", "sum")) as asked:
        marked = {"type": "ephemeral"}
        after = then(REQUEST, await asked.ask())
        assert asked.sent["system"][-1]["cache_control"] == marked
        assert asked.sent["messages"][-1]["content"][-1]["cache_control"] == marked
        await asked.ask(after)
        assert asked.sent["messages"][-1]["content"][-1]["cache_control"] == marked
        assert str(asked.sent).count("cache_control") == 2
        conclude = messages.Message(role="user", text="Conclude.")
        await asked.ask(replace(after, tools=(), messages=(*after.messages, conclude)))
        assert "cache_control" not in str(asked.sent)
        await asked.ask(replace(REQUEST, tools=()))
        assert "cache_control" not in str(asked.sent), "nobody would read it"
