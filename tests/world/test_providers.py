"""Every provider of LangChain's over a real socket, through its real SDK, against a server as strict as its own.

A row of `KINDS` is a provider; what is one provider's own has a file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import hypothesis
import pytest
from aiohttp import test_utils, web
from hypothesis import strategies as st
from tarsy.config import platform, providers
from tarsy.llm import names, provider, registry
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
    model.Call(name=names.taken("kubernetes-server__events.list"), args={}),
)


@dataclass(frozen=True)
class Kind:
    """A provider, as the platform file has it."""

    type: str
    fields: dict[str, Any]
    path: str = ""
    """What the SDK wants behind the server's address."""
    shows_thoughts: bool = True
    """Whether it shows what the scripted model thinks."""
    keeps_arguments: bool = True
    """Whether a call's arguments go back as the text that they came as."""

    def settings(self, url: str, **fields: Any) -> providers.Provider:
        """The provider at `url`."""
        base = f"{url}{self.path}"
        place = {"options": {"base_url": base}} if self.type == "langchain" else {"base_url": base}
        data = {"llm_providers": {"mine": {"type": self.type, "model": "m", **place, **self.fields, **fields}}}
        return platform.Platform.model_validate(data).llm_providers["mine"]


KINDS = {
    "openai chat": Kind("openai", {"model": "gpt-5.1"}, path="/v1", shows_thoughts=False),
    "openai responses": Kind(
        "openai", {"model": "gpt-5.1", "api": "responses", "thinking": {"level": "low"}}, path="/v1"
    ),
    "xai": Kind("xai", {"model": "grok-4-1-fast"}, path="/v1"),
    "langchain": Kind(
        "langchain",
        {"model": "gpt-5.1", "model_provider": "openai"},
        path="/v1",
        shows_thoughts=False,
        keeps_arguments=False,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """It would close sockets too, at some time."""
    gc.disable()
    yield
    gc.enable()


@contextlib.asynccontextmanager
async def asked(kind: Kind, url: str, name: str = "mine", **fields: Any) -> AsyncIterator[provider.Provider]:
    """The provider, asking the server at `url`."""
    settings = kind.settings(url, **fields)
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
    """What stands in the way of an answer: an error, or that it ends before it is whole, as `llm.model` has it."""
    try:
        found = await events(source)
    except provider.ProviderError as error:
        return error
    assert not any(isinstance(event, provider.Finish) for event in found), found
    return provider.RetryableError("ended before it was whole")


def text_of(found: Sequence[provider.StreamEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, provider.Text))


def thoughts_of(found: Sequence[provider.StreamEvent]) -> str:
    return "".join(event.text for event in found if isinstance(event, provider.Thinking))


def usage_of(found: Sequence[provider.StreamEvent]) -> messages.Usage | None:
    return next((event.usage for event in reversed(found) if isinstance(event, provider.Usage)), None)


def answered(found: Sequence[provider.StreamEvent], name: str = "mine", turn: int = 0) -> messages.Message:
    """The answer as it is stored and read back."""
    calls = [event for event in found if isinstance(event, provider.Call)]
    finish = found[-1]
    assert isinstance(finish, provider.Finish)
    state = json.loads(json.dumps(finish.state))
    return messages.Message(
        role="assistant",
        text=text_of(found),
        thinking=thoughts_of(found),
        calls=tuple(
            messages.ToolCall(id=f"{turn}.{index}", name=call.name, arguments=call.arguments)
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


async def test_an_answer_comes_whole_and_goes_back_as_it_was(kind: Kind) -> None:
    first = model.Answer(text="I look.", thoughts="Where to look?", calls=CALLS, chunk=3)
    usage = model.Usage(input=100, output=20, thinking=7)
    second = model.Answer(text="It is out of memory.", usage=usage)
    async with model.serve(model.answers(first, second)) as server, asked(kind, server.url) as source:
        found = await events(source)
        assert text_of(found) == "I look."
        assert thoughts_of(found) == ("Where to look?" if kind.shows_thoughts else "")
        calls = [event for event in found if isinstance(event, provider.Call)]
        assert [call.name for call in calls] == [tool.name for tool in TOOLS]
        assert [json.loads(call.arguments) for call in calls] == [dict(call.args) for call in CALLS]
        answer = answered(found)
        conversation = (*PROMPT, answer, *results(answer))
        found = await events(source, ports.Request(tools=TOOLS, messages=conversation))
        last = server.requests[-1]
    assert last.answered == "Answer", last.answered
    assert text_of(found) == "It is out of memory."
    assert usage_of(found) == messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=7, total_tokens=127)
    body = json.dumps(last.body, ensure_ascii=False)
    for call in calls if kind.keeps_arguments else ():
        assert json.dumps(call.arguments, ensure_ascii=False) in body
    for told in ("[tool 0.0]\\nwhat kubernetes-server.pods_list", "[tool 0.1] failed\\nwhat"):
        assert told in body


async def test_what_is_sent_back_is_what_came_whatever_was_called_and_however_it_was_stored(kind: Kind) -> None:
    """Ten turns in each of which the strict server checks ids, order and encrypted reasoning."""
    replies = [model.Answer(text=f"Step {n}.", thoughts="Hm.", calls=CALLS[: n % 3]) for n in range(1, 6)]
    async with model.serve(model.answers(*replies, "Done.")) as server, asked(kind, server.url) as source:
        conversation = PROMPT
        for turn in range(len(replies)):
            answer = answered(await events(source, ports.Request(tools=TOOLS, messages=conversation)), turn=turn)
            more = () if answer.calls else (messages.Message(role="user", text="Go on."),)
            conversation = (*conversation, answer, *results(answer), *more)
        found = await events(source, ports.Request(tools=TOOLS, messages=conversation))
        assert text_of(found) == "Done."
        states = [message.provider_state.data for message in conversation if message.provider_state]
        body = json.dumps(server.requests[-1].body)
    if kind is KINDS["openai responses"]:
        kept = [item for state in states for item in state["items"] if item["type"] != "text"]
        assert len(kept) == len(replies) + sum(len(reply.calls) for reply in replies)
        assert all(json.dumps(item) in body for item in kept), "byte for byte"


async def test_another_providers_state_is_dropped_and_its_answer_sent_all_the_same(kind: Kind) -> None:
    answer = model.Answer(text="I look.", thoughts="Hm.", calls=CALLS)
    async with model.serve(model.answers(answer, "Done.")) as server, asked(kind, server.url) as source:
        theirs = answered(await events(source), name="theirs")
        conversation = (*PROMPT, theirs, *results(theirs))
        found = await events(source, ports.Request(tools=TOOLS, messages=conversation))
        body = json.dumps(server.requests[-1].body)
    assert text_of(found) == "Done."
    assert "I look." in body
    state = theirs.provider_state
    assert state
    hidden = re_strings(state.data) - {"I look.", "text", "reasoning", "function_call", "summary_text", "Hm."}
    names = {call.name for call in CALLS} | {call.arguments for call in theirs.calls}
    assert not [one for one in hidden - names if one in body], "nothing of it is sent"


def re_strings(value: Any) -> set[str]:
    """Every string in some JSON."""
    match value:
        case str():
            return {value}
        case dict():
            return set().union(*map(re_strings, value.values()))
        case list():
            return set().union(*map(re_strings, value))
        case _:
            return set()


@pytest.mark.parametrize(
    "state",
    [
        [{"text": "Gemini's"}],
        {"items": [1]},
        {"items": []},
        {"items": [{"type": "function_call", "call_id": 7}] * 2},
        {"items": [{"type": "function_call", "call_id": "a"}] * 2},
        {"calls": ["a"]},
        {"calls": ["a", "a"]},
        {"calls": ["a", None]},
        {"calls": ["a b", "c"]},
        {"content": "x"},
        "text",
        7,
    ],
    ids=json.dumps,
)
async def test_state_of_another_shape_is_none(kind: Kind, state: Any) -> None:
    """A provider of that name may have had another type when it was stored."""
    calls = tuple(
        messages.ToolCall(id=f"0.{index}", name=tool.name, arguments="{}") for index, tool in enumerate(TOOLS)
    )
    data = messages.ProviderState(provider="mine", data=state)
    answer = messages.Message(role="assistant", text="I look.", calls=calls, provider_state=data)
    async with model.serve(lambda _: model.Answer(text="Done.")) as server, asked(kind, server.url) as source:
        found = await events(source, ports.Request(tools=TOOLS, messages=(*PROMPT, answer, *results(answer))))
    assert text_of(found) == "Done."


@pytest.mark.parametrize(
    ("fault", "raised", "code", "words"),
    [
        (model.HttpError(status=400), provider.FatalError, "400", "check model, thinking"),
        (model.HttpError(status=401), provider.FatalError, "401", "check api_key_env or api_key_file of"),
        (model.HttpError(status=403), provider.FatalError, "403", "check api_key_env or api_key_file of"),
        (model.HttpError(status=404), provider.FatalError, "404", "check model and base_url of llm_providers.mine"),
        (
            model.HttpError(status=400, code="context_length_exceeded"),
            provider.ContextOverflowError,
            messages.CONTEXT_OVERFLOW,
            "set context_tokens of llm_providers.mine",
        ),
        (model.HttpError(status=429, retry_after=7), provider.RetryableError, "429", ""),
        (model.HttpError(status=500), provider.RetryableError, "500", ""),
        (model.HttpError(status=503, retry_after=2), provider.RetryableError, "503", ""),
        (model.HttpError(status=529), provider.RetryableError, "529", ""),
    ],
    ids=["400", "401", "403", "404", "overflow", "429", "500", "503", "529"],
)
async def test_an_error_is_told_with_its_code_and_what_to_do(
    kind: Kind, fault: model.HttpError, raised: type[provider.ProviderError], code: str, words: str
) -> None:
    async with model.serve(lambda _: fault) as server, asked(kind, server.url) as source:
        with pytest.raises(provider.ProviderError) as error:
            await events(source)
    assert type(error.value) is raised, error.value
    assert error.value.code == code
    assert words in str(error.value)
    if isinstance(error.value, provider.RetryableError):
        assert error.value.after == fault.retry_after
    assert len(server.requests) == 1, "the SDK has not tried again"


async def test_the_key_is_in_no_message(kind: Kind) -> None:
    fault = model.HttpError(status=401, message="Incorrect API key provided: sk-secret.")
    async with model.serve(lambda _: fault) as server, asked(kind, server.url) as source:
        with pytest.raises(provider.FatalError, match=r"\*\*\*") as error:
            await events(source)
    assert "sk-secret" not in str(error.value)
    assert server.requests[0].api_key == model.digest("sk-secret")


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (model.Cut(after=None), provider.RetryableError),
        (model.Cut(after=3), provider.RetryableError),
        (model.StreamError(after=3), provider.RetryableError),
        (model.StreamError(error=model.HttpError(status=500), after=0), provider.RetryableError),
        (model.Garbage(), provider.RetryableError),
        (model.Garbage(text="[]"), provider.RetryableError),
        (model.Garbage(text='{"type": 7, "choices": 7}'), provider.RetryableError),
        (model.Garbage(text="[" * 100_000), provider.RetryableError),
        (model.Answer(text="no", finish="safety"), provider.RejectedError),
        (
            model.StreamError(error=model.HttpError(status=400, code="context_length_exceeded")),
            provider.ContextOverflowError,
        ),
    ],
    ids=["cut at once", "cut", "error", "first an error", "garbage", "a list", "wrong", "deep", "filtered", "overflow"],
)
async def test_a_stream_that_brings_no_answer_is_an_error_of_ours(
    kind: Kind, fault: model.Reply, raised: type[provider.ProviderError]
) -> None:
    async with model.serve(lambda _: fault) as server, asked(kind, server.url) as source:
        assert type(await refusal(source)) is raised
    assert len(server.requests) == 1


async def test_an_address_where_nobody_listens_is_a_broken_connection(kind: Kind) -> None:
    async with asked(kind, "http://127.0.0.1:1") as source:
        with pytest.raises(provider.RetryableError, match=r"the connection broke: .*\[Errno 111\]"):
            await events(source)


@pytest.mark.parametrize(
    "raw",
    ['{"namespace": "sh', "[1]", "", "no JSON", '"text"', "[" * 100_000, '{"a": "' + "x" * 100_000],
    ids=["cut", "a list", "empty", "no JSON", "a text", "deep", "long"],
)
async def test_arguments_that_are_no_object_come_through_and_do_not_spoil_the_next_request(
    kind: Kind, raw: str
) -> None:
    calls = (model.Call(name="kubernetes-server__pods_list", raw=raw), CALLS[1])
    async with (
        model.serve(model.answers(model.Answer(calls=calls), "Done.")) as server,
        asked(kind, server.url) as source,
    ):
        found: list[provider.StreamEvent] = []
        async with asyncio.timeout(5):  # nobody tries to guess what it will be
            found = await events(source)
        answer = answered(found)
        assert [call.name for call in answer.calls] == [tool.name for tool in TOOLS]
        assert answer.calls[0].arguments == (raw or "{}")
        found = await events(source, ports.Request(tools=TOOLS, messages=(*PROMPT, answer, *results(answer))))
    assert text_of(found) == "Done."


@pytest.mark.parametrize("name", ["no_such_tool", "other__tool", "two.dots.here", "a name!", "x" * 200, "ü"])
async def test_a_tool_that_nobody_declared_comes_through_and_does_not_spoil_the_next_request(
    kind: Kind, name: str
) -> None:
    replies = model.answers(model.Answer(calls=(model.Call(name=name),)), "Done.")
    async with model.serve(replies) as server, asked(kind, server.url) as source:
        answer = answered(await events(source))
        assert answer.calls[0].name == name.replace("__", ".")
        found = await events(source, ports.Request(tools=TOOLS, messages=(*PROMPT, answer, *results(answer))))
    assert text_of(found) == "Done."


async def test_white_space_alone_is_an_answer_like_any_other(kind: Kind) -> None:
    async with model.serve(lambda _: model.Answer(text=" \n\t")) as server, asked(kind, server.url) as source:
        assert text_of(await events(source)) == " \n\t"


async def test_ten_megabytes_of_text_are_read_to_the_end(kind: Kind) -> None:
    async with model.serve(lambda _: model.Flood(megabytes=10)) as server, asked(kind, server.url) as source:
        size = 0
        async for event in source.stream(REQUEST):
            size += len(event.text) if isinstance(event, provider.Text) else 0
    assert size > 9_000_000


@pytest.mark.parametrize(
    "fault",
    [model.Hang(), model.Hang(after=0), model.Hang(after=8), model.Flood()],
    ids=["before the headers", "before the first byte", "behind it", "in a flood"],
)
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_stream_that_is_left_closes_its_socket_at_once(kind: Kind, fault: model.Misbehaviour, how: str) -> None:
    async with model.serve(lambda _: fault) as server, asked(kind, server.url) as source:
        seen = asyncio.Event()

        async def consume() -> None:
            async with aclosing(source.stream(REQUEST)) as stream:
                async for event in stream:
                    if isinstance(event, provider.Text) and event.text:
                        seen.set()
                        if how == "closed":
                            return

        task = asyncio.create_task(consume())
        hangs = isinstance(fault, model.Hang) and fault.after in (None, 0)
        if hangs:
            await server.wait_for(lambda requests: requests[0].answered if requests else None)
            await asyncio.sleep(0.02)
        else:
            async with asyncio.timeout(10):
                await seen.wait()
        if hangs or how == "cancelled":
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        left = time.time()
        request = await server.wait_for(lambda requests: next((r for r in requests if r.ended), None), timeout=5)
    assert request.end == "client closed"
    assert request.ended is not None
    assert request.ended - left < 1


IDS = st.one_of(st.just("call_0"), st.text(max_size=8))
ARGUMENTS = st.one_of(st.text(max_size=12), st.dictionaries(st.text(max_size=3), st.integers()).map(json.dumps))
NAMES = st.one_of(st.sampled_from([tool.name for tool in TOOLS]), st.text(max_size=80).map(messages.storable))
STATES = st.one_of(
    st.none(),
    st.lists(IDS, max_size=3).map(lambda ids: {"calls": ids}),
    st.lists(IDS.map(lambda known: {"type": "function_call", "call_id": known, "name": "a b"}), max_size=3).map(
        lambda items: {"items": items}
    ),
)
SAID = st.text(max_size=20).map(messages.storable)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[messages.Message, ...]:
    """Any conversation that `messages.conversation` could give."""
    said = [*PROMPT]
    for turn in range(draw(st.integers(0, 3))):
        calls = tuple(
            messages.ToolCall(id=f"{turn}.{index}", name=name, arguments=messages.storable(arguments))
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
        said += [answer, *results(answer), *more] if answer.text or calls else []
    return tuple(said)


@pytest.fixture
async def lenient(kind: Kind) -> AsyncIterator[provider.Provider]:
    """A provider whose server answers whatever is no offence against the protocol."""
    async with model.serve(lambda _: model.Answer(text="Done.")) as server, asked(kind, server.url) as source:
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
    assert text_of(await events(lenient, ports.Request(tools=TOOLS, messages=conversation))) == "Done."


class Redirecting:
    """A server that sends whoever asks elsewhere, and there answers as the server at `behind` does."""

    def __init__(self, *, elsewhere: str = "", behind: str = "") -> None:
        self.elsewhere = elsewhere
        self.reached: list[str] = []
        self._behind = behind

    async def handle(self, request: web.Request) -> web.Response:
        self.reached.append(request.path)
        if not request.path.startswith("/elsewhere"):
            return web.Response(status=307, headers={"Location": f"{self.elsewhere}/elsewhere{request.path_qs}"})
        path = request.path_qs.removeprefix("/elsewhere")
        headers = {name: value for name, value in request.headers.items() if name not in ("Host", "Content-Length")}
        async with aiohttp.request("POST", self._behind + path, data=await request.read(), headers=headers) as answer:
            return web.Response(body=await answer.read(), headers={"Content-Type": answer.headers["Content-Type"]})

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        async with test_utils.TestServer(application, host="127.0.0.1") as server:
            yield str(server.make_url("")).rstrip("/")


async def test_key_and_conversation_do_not_follow_a_redirect_to_another_origin(kind: Kind) -> None:
    if kind.type == "langchain":
        pytest.skip("the HTTP of an integration is its own")
    first, other = Redirecting(), Redirecting()
    async with first.serve() as url, other.serve() as elsewhere, asked(kind, url) as source:
        first.elsewhere = elsewhere
        with pytest.raises(provider.FatalError, match="redirects to another origin"):
            await events(source)
    assert (len(first.reached), other.reached) == (1, [])


async def test_a_redirect_within_the_origin_is_followed(kind: Kind) -> None:
    async with model.serve(lambda _: model.Answer(text="There.")) as server:
        redirecting = Redirecting(behind=server.url)
        async with redirecting.serve() as url, asked(kind, url) as source:
            assert text_of(await events(source)) == "There."
    assert len(redirecting.reached) == 2


async def test_a_proxy_that_the_environment_names_is_gone_through(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    async with model.serve(lambda _: model.Answer(text="By the proxy.")) as server:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        async with asked(kind, "http://models.invalid") as source:
            assert text_of(await events(source)) == "By the proxy."


async def test_nobody_else_is_told_what_was_asked(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    async with model.serve(lambda _: model.Answer(text="Yes.")) as server, model.serve() as tracer:
        for variable in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2"):
            monkeypatch.setenv(variable, "true")
        for variable in ("LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT", "LANGSMITH_GATEWAY", "OPENAI_BASE_URL"):
            monkeypatch.setenv(variable, tracer.url)
        monkeypatch.setenv("LANGSMITH_API_KEY", "k")
        async with asked(kind, server.url) as source:
            assert text_of(await events(source)) == "Yes."
        await asyncio.sleep(0.1)
        assert len(server.requests) == 1
        assert tracer.requests == []
