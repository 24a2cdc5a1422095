"""Every provider of LangChain's, through its real SDK, against a server as strict as its own.

A row of `kinds.KINDS` is a provider; what is one provider's own has a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from support import kinds
from tarsy.llm import provider
from tarsy.transcript import messages, ports
from tarsy_dev import model, patience


@pytest.fixture(params=kinds.KINDS)
def kind(request: pytest.FixtureRequest) -> kinds.Kind:
    return kinds.KINDS[request.param]


async def test_answer_arrives_complete_and_is_sent_back_unchanged(kind: kinds.Kind) -> None:
    first = model.Answer(text="I look.", thoughts="Where to look?", calls=kinds.CALLS, chunk=3)
    usage = model.Usage(input=100, output=20, thinking=7)
    second = model.Answer(text="It is out of memory.", usage=usage)
    async with model.serve(model.answers(first, second)) as server, kinds.opened(kind, server.url) as source:
        events = await kinds.events(source)
        assert kinds.text_of(events) == "I look."
        assert kinds.thoughts_of(events) == ("Where to look?" if kind.shows_thoughts else "")
        named = [event for event in events if isinstance(event, provider.Response)]
        assert {event.model for event in named} - {""} == {kind.fields["model"]}
        assert len({event.id for event in named} - {""}) == (0 if kind.type == "langchain" else 1), "LangChain hides it"
        calls = [event for event in events if isinstance(event, provider.Call)]
        assert [call.name for call in calls] == [tool.name for tool in kinds.TOOLS]
        assert [json.loads(call.arguments) for call in calls] == [dict(call.args) for call in kinds.CALLS]
        answer = kinds.answered(events)
        conversation = (*kinds.PROMPT, answer, *kinds.results(answer))
        events = await kinds.events(source, ports.Request(tools=kinds.TOOLS, messages=conversation))
        last = server.requests[-1]
    assert last.answered == "Answer", last.answered
    assert kinds.text_of(events) == "It is out of memory."
    assert kinds.usage_of(events) == messages.Usage(
        input_tokens=100, output_tokens=20, thinking_tokens=7, total_tokens=127
    )
    body = json.dumps(last.body, ensure_ascii=False)
    for call in calls if kind.keeps_arguments else ():
        assert json.dumps(call.arguments, ensure_ascii=False) in body
    for marker in ("[tool 0.0]\\nwhat kubernetes-server.pods_list", "[tool 0.1] failed\\nwhat"):
        assert marker in body


async def test_answers_with_any_calls_are_sent_back_unchanged_after_storage(kind: kinds.Kind) -> None:
    """Ten turns in each of which the strict server checks ids, order and encrypted reasoning."""
    replies = [model.Answer(text=f"Step {n}.", thoughts="Hm.", calls=kinds.CALLS[: n % 3]) for n in range(1, 6)]
    async with model.serve(model.answers(*replies, "Done.")) as server, kinds.opened(kind, server.url) as source:
        conversation = kinds.PROMPT
        for call_number in range(len(replies)):
            answer = kinds.answered(
                await kinds.events(source, ports.Request(tools=kinds.TOOLS, messages=conversation)),
                call_number=call_number,
            )
            more = () if answer.calls else (messages.Message(role="user", text="Go on."),)
            conversation = (*conversation, answer, *kinds.results(answer), *more)
        events = await kinds.events(source, ports.Request(tools=kinds.TOOLS, messages=conversation))
        assert kinds.text_of(events) == "Done."
        states = [message.provider_state.data for message in conversation if message.provider_state]
        body = json.dumps(server.requests[-1].body)
    if kind is kinds.KINDS["openai responses"]:
        state_blocks = [block for state in states for block in state["items"] if block["type"] != "text"]
        assert len(state_blocks) == len(replies) + sum(len(reply.calls) for reply in replies)
        assert all(json.dumps(block) in body for block in state_blocks), "byte for byte"


async def test_a_result_is_understood_with_its_reference_and_whether_it_failed(kind: kinds.Kind) -> None:
    turns: list[model.Turn] = []

    def script(request: model.Turn) -> model.Answer:
        turns.append(request)
        return model.Answer(text="I look.", calls=kinds.CALLS) if len(turns) == 1 else model.Answer(text="Done.")

    async with model.serve(script) as server, kinds.opened(kind, server.url) as source:
        answer = kinds.answered(await kinds.events(source))
        conversation = (*kinds.PROMPT, answer, *kinds.results(answer))
        await kinds.events(source, ports.Request(tools=kinds.TOOLS, messages=conversation))
    asked = turns[-1]
    assert (asked.system, asked.iteration, asked.kind) == (kinds.SYSTEM, 1, "agent")
    assert asked.key.investigation == "tarsy/web-crash"
    assert [tool.name for tool in asked.tools] == [call.name for call in kinds.CALLS]
    results = [(result.name, result.text, result.reference, result.failed) for result in asked.messages[-1].results]
    texts = [f"what {tool.name} shows" for tool in kinds.TOOLS]
    (first_call, other), (first, second) = kinds.CALLS, texts
    assert results == [(first_call.name, first, "[tool 0.0]", False), (other.name, second, "[tool 0.1]", True)]


async def test_state_of_another_provider_is_dropped_and_its_answer_is_still_sent(kind: kinds.Kind) -> None:
    answer = model.Answer(text="I look.", thoughts="Hm.", calls=kinds.CALLS)
    async with model.serve(model.answers(answer, "Done.")) as server, kinds.opened(kind, server.url) as source:
        theirs = kinds.answered(await kinds.events(source), name="theirs")
        conversation = (*kinds.PROMPT, theirs, *kinds.results(theirs))
        events = await kinds.events(source, ports.Request(tools=kinds.TOOLS, messages=conversation))
        body = json.dumps(server.requests[-1].body)
    assert kinds.text_of(events) == "Done."
    assert "I look." in body
    state = theirs.provider_state
    assert state
    kinds_of_parts = {"text", "reasoning", "function_call", "summary_text", "tool_use", "thinking"}
    hidden = strings_of(state.data) - kinds_of_parts - {"I look.", "Hm."}
    names = {call.name for call in kinds.CALLS} | {call.arguments for call in theirs.calls}
    assert not [text for text in hidden - names if text in body], "nothing of it is sent"


def strings_of(value: Any) -> set[str]:
    """Every string in some JSON."""
    match value:
        case str():
            return {value}
        case dict():
            return set().union(*map(strings_of, value.values()))
        case list():
            return set().union(*map(strings_of, value))
        case _:
            return set()


@pytest.mark.parametrize(
    "raw",
    ['{"namespace": "sh', "[1]", "", "no JSON", '"text"', "[" * 100_000, '{"a": "' + "x" * 100_000],
    ids=["cut", "a list", "empty", "no JSON", "a text", "deep", "long"],
)
async def test_arguments_that_are_no_object_come_through_and_do_not_spoil_the_next_request(
    kind: kinds.Kind, raw: str
) -> None:
    calls = (model.Call(name="kubernetes-server__pods_list", raw=raw), kinds.CALLS[1])
    async with (
        model.serve(model.answers(model.Answer(calls=calls), "Done.")) as server,
        kinds.opened(kind, server.url) as source,
    ):
        events: list[provider.StreamEvent] = []
        async with patience.limit():  # no part of the client tries to guess what it will be
            events = await kinds.events(source)
        answer = kinds.answered(events)
        assert [call.name for call in answer.calls] == [tool.name for tool in kinds.TOOLS]
        assert answer.calls[0].arguments == (raw or "{}")
        events = await kinds.events(
            source, ports.Request(tools=kinds.TOOLS, messages=(*kinds.PROMPT, answer, *kinds.results(answer)))
        )
    assert kinds.text_of(events) == "Done."


@pytest.mark.parametrize("name", ["no_such_tool", "other__tool", "two.dots.here", "a name!", "x" * 200, "ü"])
async def test_call_of_undeclared_tool_is_read_and_does_not_break_next_request(kind: kinds.Kind, name: str) -> None:
    replies = model.answers(model.Answer(calls=(model.Call(name=name),)), "Done.")
    async with model.serve(replies) as server, kinds.opened(kind, server.url) as source:
        answer = kinds.answered(await kinds.events(source))
        assert answer.calls[0].name == name.replace("__", ".")
        events = await kinds.events(
            source, ports.Request(tools=kinds.TOOLS, messages=(*kinds.PROMPT, answer, *kinds.results(answer)))
        )
    assert kinds.text_of(events) == "Done."


async def test_a_call_in_the_forced_conclusion_comes_through_and_does_not_spoil_the_next_request(
    kind: kinds.Kind,
) -> None:
    looks = model.Answer(text="I look.", thoughts="Hm.", calls=kinds.CALLS)
    async with model.serve(model.answers(looks, looks, "Done.")) as server, kinds.opened(kind, server.url) as source:
        conversation: tuple[messages.Message, ...] = kinds.PROMPT
        for call_number in range(2):
            request = ports.Request(tools=kinds.TOOLS if call_number == 0 else (), messages=conversation)
            answer = kinds.answered(await kinds.events(source, request), call_number=call_number)
            assert [call.name for call in answer.calls] == [tool.name for tool in kinds.TOOLS] or call_number == 1
            assert len(answer.calls) == 2
            more = messages.Message(role="user", text="Conclude now.")
            conversation = (*conversation, answer, *kinds.results(answer), more)
        events = await kinds.events(source, ports.Request(tools=(), messages=conversation))
        assert server.requests[-1].answered == "Answer", server.requests[-1].answered
    assert kinds.text_of(events) == "Done."


IDS = st.one_of(st.just("call_0"), st.text(max_size=8))
ARGUMENTS = st.one_of(st.text(max_size=12), st.dictionaries(st.text(max_size=3), st.integers()).map(json.dumps))
NAMES = st.one_of(st.sampled_from([tool.name for tool in kinds.TOOLS]), st.text(max_size=80).map(messages.storable))
STATES = st.one_of(
    st.none(),
    st.lists(IDS, max_size=3).map(lambda ids: {"calls": ids}),
    st.lists(IDS.map(lambda call_id: {"type": "function_call", "call_id": call_id, "name": "a b"}), max_size=3).map(
        lambda items: {"items": items}
    ),
)
SAID = st.text(max_size=20).map(messages.storable)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[messages.Message, ...]:
    """Any conversation that `messages.conversation` could give."""
    conversation = [*kinds.PROMPT]
    for step in range(draw(st.integers(0, 3))):
        calls = tuple(
            messages.ToolCall(id=f"{step}.{index}", name=name, arguments=messages.storable(arguments))
            for index, (name, arguments) in enumerate(draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3)))
        )
        state, whose = draw(STATES), draw(st.sampled_from(["mine", "theirs"]))
        answer = messages.Message(
            role="assistant",
            text=draw(SAID),
            thinking=draw(SAID),
            calls=calls,
            provider_state=messages.ProviderState(provider=whose, data=state) if state else None,
        )
        more = () if calls else (messages.Message(role="user", text=draw(SAID)),)
        conversation += [answer, *kinds.results(answer), *more] if answer.text or calls else []
    return tuple(conversation)


@pytest.fixture
async def lenient(kind: kinds.Kind) -> AsyncIterator[provider.Provider]:
    """A provider whose server answers whatever is no offence against the protocol."""
    async with model.serve(lambda _: model.Answer(text="Done.")) as server, kinds.opened(kind, server.url) as source:
        yield source


@hypothesis.settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(conversation=conversations())
async def test_any_conversation_is_a_request_that_the_provider_takes(
    lenient: provider.Provider, conversation: tuple[messages.Message, ...]
) -> None:
    assert (
        kinds.text_of(await kinds.events(lenient, ports.Request(tools=kinds.TOOLS, messages=conversation))) == "Done."
    )
