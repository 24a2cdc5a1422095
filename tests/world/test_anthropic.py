"""Our Claude over a real socket, through LangChain and the anthropic SDK: what is its own among the providers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import hypothesis
import pytest
from hypothesis import strategies as st
from langchain_core import messages as lc
from langchain_core.outputs import ChatGenerationChunk
from support import leases
from tarsy.config import platform, providers
from tarsy.llm import anthropic, provider, registry
from tarsy.llm import model as models
from tarsy.transcript import messages, ports
from tarsy_dev import model
from tarsy_dev.model import anthropic as wire
from tarsy_dev.model import anthropic_conversation

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
FOUND = model.Search(query="exit code 137", pages=(model.Page(title="Exit codes", url="https://pages.test/137"),))


@dataclass(frozen=True)
class Asked:
    """A provider within its limits, and the provider alone."""

    server: model.Server
    source: provider.Provider
    limited: models.LimitedModel

    async def ask(self, request: ports.Request = REQUEST) -> messages.Message:
        return (await self.limited.ask(request, leases.SCOPE)).message

    async def events(self, request: ports.Request = REQUEST) -> list[provider.StreamEvent]:
        shown = [event async for event in self.source.stream(request)]
        return [event for event in shown if event not in (provider.Text(""), provider.Thinking(""))]

    @property
    def sent(self) -> JSON:
        """The last request."""
        body: JSON = self.server.requests[-1].body
        return body


@contextlib.contextmanager
def built(session: aiohttp.ClientSession, url: str, settings: JSON) -> Iterator[provider.Provider]:
    usual = {"type": "anthropic", "model": "claude-haiku-4-5", "base_url": url}
    yield anthropic.build(
        NAME, providers.AnthropicProvider.model_validate(usual | settings), key="secret", session=session
    )


@contextlib.asynccontextmanager
async def asking(
    script: model.Script | model.Reply, *, limits: JSON | None = None, **settings: Any
) -> AsyncIterator[Asked]:
    """`script`, or one reply for all iterations, answers what Claude with `settings` asks."""
    answering = script if callable(script) else model.answers(script)
    async with model.serve(answering) as server, registry.session() as session:
        with built(session, server.url, settings) as source:
            limited = models.LimitedModel(NAME, source, limits=platform.Limits.model_validate(limits or {}))
            yield Asked(server, source, limited)


BUDGET: JSON = {"thinking": {"budget": 2048}}


def then(request: ports.Request, answer: messages.Message, *more: messages.Message) -> ports.Request:
    """The request that follows an answer, which was stored: with its calls' results, and what else was said."""
    turn = sum(message.role == "assistant" for message in request.messages)
    calls = tuple(replace(call, id=f"{turn}.{index}") for index, call in enumerate(answer.calls))
    state = answer.provider_state
    stored = state and replace(state, data=json.loads(json.dumps(state.data)))
    results = [
        messages.Message(role="tool", call_id=call.id, tool_name=call.name, text="ok", failed=index == 1)
        for index, call in enumerate(calls)
    ]
    said = replace(answer, calls=calls, provider_state=stored)
    return replace(request, messages=(*request.messages, said, *results, *more))


async def test_an_answer_comes_as_thoughts_text_calls_and_usage() -> None:
    async with asking(LOOKS, **BUDGET) as asked:
        *shown, usage, first, second, finish = await asked.events()
    assert "".join(event.text for event in shown if isinstance(event, provider.Thinking)) == "**Looking**"
    assert "".join(event.text for event in shown if isinstance(event, provider.Text)) == "I will look."
    assert isinstance(finish, provider.Finish)
    assert [first, second] == [
        provider.Call("kubernetes-server.pods_list", '{"namespace": "shop"}'),
        provider.Call("kubernetes-server.events_list", "{}"),
    ]
    assert isinstance(usage, provider.Usage)
    told = model.usage_of(_turn(asked.sent), LOOKS)
    assert (usage.usage.input_tokens, usage.usage.output_tokens, usage.usage.thinking_tokens) == (
        told.input,
        told.output,
        told.thinking,
    ), "what was written to and read from the cache counts as well"
    assert usage.usage.total_tokens == told.input + told.output + told.thinking


def _turn(body: JSON) -> model.Turn:
    turn, refused = wire.parse(path={}, headers={"x-api-key": "k", "anthropic-version": "2026-10-21"}, body=body)
    assert refused is None
    return turn


async def test_thoughts_go_back_byte_for_byte_also_after_storage_and_a_takeover() -> None:
    redacted = model.Answer(redacted=True, thoughts="more", text="And now this.", calls=CALLS, chunk=2)
    async with asking(model.answers(LOOKS, redacted, "the end"), **BUDGET) as asked:
        first = then(REQUEST, await asked.ask())
        second = then(first, await asked.ask(first))
        async with registry.session() as session:
            with built(session, asked.server.url, BUDGET) as another:
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
        (BUDGET, {"max_tokens": 16_384 + 2048, "thinking": {"type": "enabled", "budget_tokens": 2048}}),
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
async def test_a_turn_of_another_provider_goes_as_text_and_calls_and_the_model_goes_on_without_a_budget(
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


async def test_a_turn_that_began_with_thoughts_is_thought_about_to_its_end() -> None:
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


async def test_what_a_search_finds_is_told_and_goes_back() -> None:
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


async def test_an_answer_that_is_paused_is_asked_on_and_is_one_answer() -> None:
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


async def test_an_answer_that_is_paused_for_ever_is_none() -> None:
    paused = model.Answer(searches=(FOUND,), finish="paused")
    async with asking(lambda _: paused, native_tools=["web_search"]) as asked:
        with pytest.raises(ports.ModelError, match="paused the answer 10 times") as error:
            await asked.ask(replace(REQUEST, native_tools=("web_search",)))
    assert error.value.failure.kind == "rejected"
    assert len(asked.server.requests) == anthropic.PAUSES


async def test_a_pause_in_a_stream_that_breaks_off_afterwards_is_no_whole_answer() -> None:
    paused = model.Answer(searches=(FOUND,), finish="paused")
    async with asking(model.answers(paused, model.Cut(after=2)), native_tools=["web_search"]) as asked:
        with pytest.raises(provider.RetryableError, match="the connection broke"):
            await asked.events(replace(REQUEST, native_tools=("web_search",)))


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
async def test_some_ends_are_none(metadata: JSON, error: type[Exception], text: str) -> None:
    async with asking(LOOKS) as asked:
        assert isinstance(asked.source, anthropic.Claude)
        with pytest.raises(error, match=text):
            asked.source.finish(ChatGenerationChunk(message=lc.AIMessageChunk(content="", response_metadata=metadata)))


async def test_a_model_that_refuses_is_rejected() -> None:
    async with asking(model.Answer(text="I will not", finish="safety")) as asked:
        with pytest.raises(provider.RejectedError, match="refused"):
            await asked.events()


async def test_what_is_cut_off_by_the_limit_of_tokens_is_not_sent_back() -> None:
    unsigned = model.Answer(thoughts="so many", signed=False, finish="length")
    async with asking(unsigned, **BUDGET) as asked:
        assert (await asked.events())[-1] == provider.Finish(None)


async def test_what_stays_the_same_is_marked_to_be_cached_while_more_will_follow() -> None:
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


@pytest.mark.parametrize(
    ("reply", "error", "code", "text"),
    [
        (model.HttpError(status=401), provider.FatalError, "401", f"check api_key_env or api_key_file .*{NAME}"),
        (model.HttpError(status=403), provider.FatalError, "403", "permission_error.*check api_key_env"),
        (model.HttpError(status=404, message="model: claude-x"), provider.FatalError, "404", "claude-x; check model"),
        (model.HttpError(status=400, message="wrong"), provider.FatalError, "400", "invalid_request_error: wrong"),
        (model.HttpError(status=413), provider.ContextOverflowError, "context_overflow", "request_too_large"),
        (
            model.HttpError(status=400, message="prompt is too long: 210000 tokens > 200000 maximum"),
            provider.ContextOverflowError,
            "context_overflow",
            "210000 tokens > 200000 maximum; set context_tokens",
        ),
        (
            model.HttpError(
                status=400, message="input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
            ),
            provider.ContextOverflowError,
            "context_overflow",
            "188240",
        ),
        (model.HttpError(status=429, retry_after=7), provider.RetryableError, "429", "rate_limit_error"),
        (model.HttpError(status=500), provider.RetryableError, "500", "api_error"),
        (model.HttpError(status=529), provider.RetryableError, "529", "overloaded_error: Overloaded"),
        (
            model.StreamError(error=model.HttpError(status=529)),
            provider.RetryableError,
            "overloaded_error",
            "Overloaded",
        ),
        (
            model.StreamError(error=model.HttpError(status=400, message="wrong")),
            provider.FatalError,
            "invalid_request_error",
            "wrong",
        ),
        (
            model.StreamError(error=model.HttpError(status=400, message="prompt is too long: 3 tokens > 2 maximum")),
            provider.ContextOverflowError,
            "context_overflow",
            "too long",
        ),
        (model.Cut(after=None), provider.RetryableError, "", "the connection broke"),
        (model.Cut(after=2), provider.RetryableError, "", "the connection broke"),
        (model.Garbage(), provider.RetryableError, "", "the stream is not the API's"),
        (model.Garbage(text="[]"), provider.RetryableError, "", "the stream is not the API's"),
    ],
)
async def test_what_goes_wrong_is_told_as_our_own_errors(
    reply: model.Reply, error: type[provider.ProviderError], code: str, text: str
) -> None:
    async with asking(reply) as asked:
        with pytest.raises(error, match=text) as raised:
            await asked.events()
    assert (type(raised.value), raised.value.code) == (error, code)
    assert "secret" not in str(raised.value)
    if isinstance(raised.value, provider.RetryableError):
        assert raised.value.after == (7 if code == "429" else None)
    assert len(asked.server.requests) == 1, "the SDK asks once"


async def test_a_model_that_does_not_take_a_budget_is_told_of_before_anything_is_asked() -> None:
    settings = providers.AnthropicProvider.model_validate({"type": "anthropic", "model": "claude-opus-5"} | BUDGET)
    async with registry.session() as session:
        with pytest.raises(provider.UnusableError, match="claude-opus-5; use adaptive thinking"):
            anthropic.build(NAME, settings, key="secret", session=session)


async def test_wrong_json_in_a_calls_arguments_is_told_to_the_model_as_it_was() -> None:
    broken = model.Answer(thoughts="hm", calls=(*CALLS[1:], replace(CALLS[0], raw='{"namespac')))
    async with asking(model.answers(broken, "the end"), **BUDGET) as asked:
        answer = await asked.ask()
        assert answer.calls[1].arguments == '{"namespac'
        assert (await asked.ask(then(REQUEST, answer))).text == "the end"
    assert asked.sent["messages"][1]["content"][-1]["input"] == {}


@pytest.mark.parametrize("name", ["no such tool!", "kubernetes-server__secrets_list", "x" * 300])
async def test_a_call_of_what_there_is_not_goes_back_as_one_that_is_taken(name: str) -> None:
    async with asking(
        model.answers(model.Answer(thoughts="hm", calls=(model.Call(name=name),)), "ok"), **BUDGET
    ) as asked:
        assert (await asked.ask(then(REQUEST, await asked.ask()))).text == "ok"


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_an_answer_of_nothing_can_be_followed_by_a_question(text: str) -> None:
    async with asking(model.answers(model.Answer(text=text), "the end"), **BUDGET) as asked:
        nothing = await asked.ask()
        assert nothing.text == text
        followed = then(REQUEST, nothing, messages.Message(role="user", text="Say something."))
        asked.server.script = lambda _: model.Answer(text="the end")
        assert (await asked.ask(followed)).text == "the end"
    assert [message["role"] for message in asked.sent["messages"]] == ["user"]


async def test_ten_megabytes_are_refused() -> None:
    async with asking(model.Flood(megabytes=10)) as asked:
        with pytest.raises(ports.ModelError, match="longer than 1048576 characters"):
            await asked.ask()
        request = await asked.server.wait_for(lambda requests: next((r for r in requests if r.ended), None), timeout=5)
    assert request.end == "client closed"


@pytest.mark.parametrize("fault", [model.Hang(), model.Hang(after=2)], ids=["before the first byte", "after it"])
async def test_who_leaves_closes_the_socket_at_once(fault: model.Hang) -> None:
    async with asking(fault) as asked:
        task = asyncio.create_task(asked.ask())
        await asked.server.wait_for(
            lambda requests: requests and requests[0].answered and requests[0].pieces == (fault.after or 0)
        )
        left = time.time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        request = await asked.server.wait_for(lambda requests: next((r for r in requests if r.ended), None), timeout=5)
    assert request.end == "client closed"
    assert request.ended is not None
    assert request.ended - left < 1


@pytest.mark.parametrize("fault", [model.Hang(), model.Hang(after=2)], ids=["before the first byte", "after it"])
async def test_silence_ends_an_attempt(fault: model.Hang) -> None:
    async with asking(fault, limits={"first_byte": "100ms", "idle": "50ms", "iteration": "200ms"}) as asked:
        with pytest.raises(ports.ModelError, match="silent") as error:
            await asked.ask()
    assert error.value.failure.kind == "timeout"


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
    said = [messages.Message(role="system", text=draw(texts)), messages.Message(role="user", text=draw(texts))]
    for turn in range(draw(st.integers(0, 4))):
        calls = tuple(
            messages.ToolCall(id=f"{turn}.{index}", name=draw(texts), arguments=draw(arguments))
            for index in range(draw(st.integers(0, 3)))
        )
        said.append(
            messages.Message(role="assistant", text=draw(texts), calls=calls, provider_state=draw(states(len(calls))))
        )
        said += [
            messages.Message(
                role="tool", call_id=call.id, tool_name=call.name, text=draw(texts), failed=draw(st.booleans())
            )
            for call in calls
        ]
        if not calls or draw(st.booleans()):
            said.append(messages.Message(role="user", text=draw(texts)))
    return said


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
            with built(session, server.url, settings) as source:
                async for _ in source.stream(request):
                    pass

        yield lambda request, settings: runner.run(ask(request, settings))
        runner.run(stack.aclose())


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    said=conversations(),
    tools=st.lists(st.builds(messages.ToolSpec, name=texts, description=texts, parameters=schemas), max_size=3),
    settings=st.sampled_from([{}, BUDGET, {"model": "claude-sonnet-5", "thinking": {"level": "high"}}]),
)
def test_any_conversation_becomes_a_request_that_is_taken(
    listening: Callable[[ports.Request, JSON], None],
    said: Sequence[messages.Message],
    tools: Sequence[messages.ToolSpec],
    settings: JSON,
) -> None:
    named = {spec.name: spec for spec in tools}
    listening(ports.Request(tools=tuple(named.values()), messages=tuple(said)), settings)
