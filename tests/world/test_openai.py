"""OpenAI's two protocols: what the scripted model refuses, as the real SDK sees it, and what only our OpenAI has."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import openai
import pytest
from aiohttp import test_utils, web
from tarsy.config.model import providers
from tarsy.llm import http, provider, registry
from tarsy.llm import openai as ours
from tarsy.transcript import messages, ports
from tarsy_dev import model

ALERT = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text=ALERT),))
FUNCTION = {"name": "kubernetes-server__pods_list", "parameters": {"type": "object", "properties": {}}}
CALLS = (model.Call(name=str(FUNCTION["name"]), args={"namespace": "shop"}), model.Call(name="other"))
USER = {"role": "user", "content": ALERT}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "so"}


@contextlib.asynccontextmanager
async def talking(script: model.Script) -> AsyncIterator[tuple[model.Server, openai.AsyncOpenAI]]:
    async with (
        model.serve(script) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as sdk,
    ):
        yield server, sdk


def chat(sdk: openai.AsyncOpenAI, *conversation: Any, **more: Any) -> Any:
    return sdk.chat.completions.create(model="gpt-5.1", messages=list(conversation), **more)


def responses(sdk: openai.AsyncOpenAI, *items: Any, **more: Any) -> Any:
    encrypted: Any = ["reasoning.encrypted_content"]
    return sdk.responses.create(model="gpt-5.1", input=list(items), store=False, include=encrypted, **more)


def item(output: Any) -> dict[str, Any]:
    """An item of an answer, as it goes back."""
    return output.model_dump(exclude_none=True, exclude={"logprobs"})  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([], "empty array"),
        ([{"role": "user"}], "expected a string, got null"),
        ([USER, CALLED], "did not have response messages: call_1"),
        ([USER, CALLED, USER, RESULT], "did not have response messages: call_1"),
        ([USER, RESULT], "must be a response to a preceeding message with 'tool_calls'"),
        ([USER | {"reasoning_content": "x"}], "Unknown parameter: 'messages[0].reasoning_content'"),
        ([{"role": "assistant", "content": "x", "tool_calls": CALLED["tool_calls"] * 2}, RESULT], "Duplicate value"),
    ],
    ids=["nothing", "null", "no result", "too late", "no call", "unknown field", "twice"],
)
async def test_a_chat_that_openai_refuses_is_refused(conversation: list[Any], message: str) -> None:
    async with talking(model.answers("Done.")) as (_, sdk):
        with pytest.raises(openai.BadRequestError) as error:
            await chat(sdk, *conversation)
    assert message in error.value.message


def forget_reasoning(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items[1:]


def corrupt(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    content = items[0]["encrypted_content"]
    return [items[0] | {"encrypted_content": ("A" if content[0] != "A" else "B") + content[1:]}, *items[1:]]


def no_encryption(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in items[0].items() if key != "encrypted_content"}, *items[1:]]


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (forget_reasoning, "was provided without its required 'reasoning' item"),
        (corrupt, "could not be verified"),
        (no_encryption, "Items are not persisted"),
    ],
)
async def test_incompletely_returned_reasoning_is_refused(done: Any, message: str) -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "Done.")) as (_, sdk):
        items = [item(output) for output in (await responses(sdk, USER)).output]
        sent = done(items)
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "so"}
            for call in {part["call_id"]: part for part in sent if part["type"] == "function_call"}.values()
        ]
        with pytest.raises(openai.BadRequestError) as error:
            await responses(sdk, USER, *sent, *outputs)
        assert message in error.value.message
        outputs = [{"type": "function_call_output", "call_id": part["call_id"], "output": "so"} for part in items[1:]]
        assert (await responses(sdk, USER, *items, *outputs)).output_text == "Done."
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
            await responses(sdk, USER, *items, *outputs[1:])
        with pytest.raises(openai.BadRequestError, match="No tool call found for function call output"):
            await responses(sdk, USER, *outputs)


@contextlib.asynccontextmanager
async def opened(url: str, **fields: Any) -> AsyncIterator[provider.Provider]:
    raw_settings = {"type": "openai", "model": "gpt-5.1", "base_url": f"{url}/v1", **fields}
    settings = providers.OpenAIProvider.model_validate(raw_settings)
    async with registry.session() as session:
        yield ours.build("mine", settings, key=None, session=session)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_model_server_configured_without_key_receives_no_real_key(api: str) -> None:
    async with model.serve(model.answers("Done.")) as server, opened(server.url, api=api, api_key_env=None) as source:
        assert [event async for event in source.stream(REQUEST)]
    assert server.requests[0].api_key == model.digest(ours.NO_KEY)


@pytest.mark.parametrize(
    ("name", "fields", "sent"),
    [
        ("gpt-5.1", {}, {"include": ["reasoning.encrypted_content"]}),
        (
            "gpt-5.1",
            {"thinking": {"level": "high"}},
            {"reasoning": {"effort": "high", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
        ),
        ("gpt-4.1", {}, {}),
        ("gpt-5-chat-latest", {}, {}),
    ],
)
async def test_model_is_asked_for_the_reasoning_that_it_takes(name: str, fields: Any, sent: Any) -> None:
    async with (
        model.serve(model.answers("Done.")) as server,
        opened(server.url, api="responses", model=name, **fields) as source,
    ):
        assert [event async for event in source.stream(REQUEST)]
    body = server.requests[0].body
    assert {key: body[key] for key in ("reasoning", "include") if key in body} == sent
    assert (body["store"], body["stream"]) == (False, True)


async def test_the_schema_of_a_tool_is_not_made_into_another() -> None:
    """The responses API would do that to tools that do not say whether they are strict."""
    tools = (messages.ToolSpec(name="a.b", parameters={"type": "object"}),)
    request = ports.Request(tools=tools, messages=REQUEST.messages)
    async with model.serve(model.answers("Done.")) as server, opened(server.url, api="responses") as source:
        assert [event async for event in source.stream(request)]
    assert [tool["strict"] for tool in server.requests[0].body["tools"]] == [False]


async def test_thoughts_sent_by_compatible_server_are_shown() -> None:
    answer = model.Answer(text="So.", thoughts="Hm, why?", chunk=3)
    async with model.serve(lambda _: answer) as server, opened(server.url, model="grok-by-another") as source:
        events = [event async for event in source.stream(REQUEST)]
    assert "".join(event.text for event in events if isinstance(event, provider.Thinking)) == "Hm, why?"


def stream(events: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps({'sequence_number': number, **event})}\n\n".encode()
        for number, event in enumerate(events)
    )


@contextlib.asynccontextmanager
async def saying(body: bytes, **headers: str) -> AsyncIterator[str]:
    """A server that answers everything so."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": "text/event-stream", **headers})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with test_utils.TestServer(application, host="127.0.0.1") as server:
        yield str(server.make_url("")).rstrip("/")


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "OOM"}}
CITED = {"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 0, "end_index": 2}
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []} | {
    "parallel_tool_calls": True,
    "tool_choice": "auto",
}
OF = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
SEARCHED: list[dict[str, Any]] = [
    {"type": "response.created", "response": RESPONSE},
    {"type": "response.output_item.added", "output_index": 0, "item": SEARCH | {"status": "in_progress"}},
    {"type": "response.output_item.done", "output_index": 0, "item": SEARCH},
    {"type": "response.output_item.added", "output_index": 1, "item": MESSAGE},
    {"type": "response.output_text.delta", **OF, "delta": "So.", "logprobs": []},
    {"type": "response.output_text.annotation.added", **OF, "annotation_index": 0, "annotation": CITED},
    {"type": "response.output_text.done", **OF, "text": "So.", "logprobs": []},
    {"type": "response.completed", "response": RESPONSE | {"status": "completed"}},
]


async def test_search_results_are_reported_and_go_back_with_the_answer() -> None:
    async with saying(stream(SEARCHED)) as url, opened(url, api="responses", native_tools=["web_search"]) as source:
        request = ports.Request(tools=(), messages=REQUEST.messages, native_tools=("web_search",))
        events = [event async for event in source.stream(request)]
    *_, grounding, finish = events
    assert grounding == provider.Grounding(
        "web_search", sources=[provider.Source("A", "https://a.test")], queries=["OOM"]
    )
    assert isinstance(finish, provider.Finish)
    state = json.loads(json.dumps(finish.state))
    answer = messages.Message(
        role="assistant", text="So.", provider_state=messages.ProviderState(provider="mine", data=state)
    )
    again = ports.Request(
        tools=(), messages=(*REQUEST.messages, answer, *REQUEST.messages), native_tools=("web_search",)
    )
    async with (
        model.serve(lambda _: model.Answer(text="Done.")) as server,
        opened(server.url, api="responses") as source,
    ):
        assert [event async for event in source.stream(again)]
    sent = server.requests[0].body
    assert sent["tools"] == [{"type": "web_search"}]
    assert sent["input"][1] == SEARCH
    assert sent["input"][2]["content"] == [{"type": "output_text", "text": "So.", "annotations": [CITED]}]


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("rate_limit_exceeded", provider.RetryableError),
        ("invalid_prompt", provider.FatalError),
        ("context_length_exceeded", provider.ContextOverflowError),
    ],
)
@pytest.mark.parametrize("kind", ["error", "response.failed"])
async def test_failure_within_a_response_is_raised_by_its_code(
    kind: str, code: str, raised: type[provider.ProviderError]
) -> None:
    error = {"code": code, "message": "No."}
    failed = {"type": kind, **error} if kind == "error" else {"type": kind, "response": RESPONSE | {"error": error}}
    async with saying(stream([SEARCHED[0], failed])) as url, opened(url, api="responses") as source:
        with pytest.raises(provider.ProviderError) as caught:
            assert [event async for event in source.stream(REQUEST)]
    assert type(caught.value) is raised
    assert caught.value.code == (messages.CONTEXT_OVERFLOW if raised is provider.ContextOverflowError else code)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_event_without_end_is_not_read_to_it(api: str) -> None:
    body = b"data: " + b"x" * (http.EVENT_MAX + 1)
    async with saying(body) as url, opened(url, api=api) as source:
        with pytest.raises(provider.RejectedError, match="more than 8 MiB in one event"):
            assert [event async for event in source.stream(REQUEST)]


async def test_a_body_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_MAX", 1024 * 1024)
    async with saying(b": nothing yet\n\n" * 100_000) as url, opened(url) as source:
        with pytest.raises(provider.RejectedError, match="the server sent more than 1 MiB"):
            assert [event async for event in source.stream(REQUEST)]


async def test_calls_without_end_are_not_read_to_it() -> None:
    piece = {"index": 0, "function": {"arguments": "x" * 100_000}}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = [{"index": 0, "delta": {"role": "assistant", "tool_calls": [piece]}, "finish_reason": None}]
    body = f"data: {json.dumps(chunk | {'choices': delta})}\n\n".encode() * 50
    async with saying(body) as url, opened(url) as source:
        with pytest.raises(provider.RejectedError, match="the answer's calls are longer than"):
            assert [event async for event in source.stream(REQUEST)]


async def test_fields_that_some_servers_leave_out_of_a_chunk_are_not_missed() -> None:
    """Azure tells of its filters without a delta, Gemini's own server of calls without their place."""
    piece = {"id": "call_1", "function": {"name": "a", "arguments": "{}"}}
    choices: list[list[dict[str, Any]] | None] = [
        None,
        [{"index": 0, "content_filter_results": {}}],
        [{"index": 0, "delta": None}],
        [{"index": 0, "delta": {"tool_calls": [piece]}}],
        [{"index": 0, "delta": {"tool_calls": None}, "finish_reason": "tool_calls"}],
    ]
    body = b"".join(f"data: {json.dumps({'choices': chunk})}\n\n".encode() for chunk in choices)
    async with saying(body) as url, opened(url) as source:
        events = [event async for event in source.stream(REQUEST)]
    assert [event for event in events if isinstance(event, provider.Call)] == [provider.Call("a", "{}")]


async def test_a_packed_answer_is_not_unpacked() -> None:
    """It was not asked for, and may stand for any number of bytes."""
    packed = gzip.compress(stream(SEARCHED))
    async with saying(packed, **{"Content-Encoding": "gzip"}) as url, opened(url, api="responses") as source:
        with pytest.raises(provider.FatalError, match="compressed answer"):
            assert [event async for event in source.stream(REQUEST)]
