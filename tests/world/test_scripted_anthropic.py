"""The scripted model as the anthropic SDK sees it: the real SDK over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from tarsy_dev import keys, model

SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'.\nBe brief."
ALERT = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
TOOLS = [
    {"name": f"kubernetes-server__{name}", "description": name, "input_schema": {"type": "object"}}
    for name in ("pods_list_in_namespace", "events_list")
]
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
THINKING = {"type": "enabled", "budget_tokens": 1024}
CALLS = (
    model.Call(name="kubernetes-server__pods_list_in_namespace", args={"namespace": "shop"}),
    model.Call(name="kubernetes-server__events_list"),
)
LOOKS = model.Answer(thoughts="**Looking**", text="I will look.", calls=CALLS, chunk=6)
FOUND = model.Search(query="exit code 137", pages=(model.Page(title="Exit codes", url="https://pages.test/137"),))
EXPIRED = "0" * 60

JSON = dict[str, Any]


class Sdk:
    """The anthropic SDK without retries; its answers as JSON."""

    def __init__(self, url: str) -> None:
        self.client = anthropic.AsyncAnthropic(api_key="secret-key", base_url=url, max_retries=0)

    def request(self, *messages: JSON, **settings: Any) -> JSON:
        usual: JSON = {
            "model": "claude-haiku-4-5",
            "max_tokens": 4096,
            "system": SYSTEM,
            "tools": TOOLS,
            "thinking": THINKING,
        }
        asked = usual | {"messages": list(messages)} | settings
        return {name: value for name, value in asked.items() if value is not None}

    async def stream(self, *messages: JSON, into: list[JSON] | None = None, **settings: Any) -> JSON:
        """The whole answer, as the SDK puts it together from the stream."""
        events = [] if into is None else into
        async with self.client.messages.stream(**self.request(*messages, **settings)) as stream:
            async for event in stream:
                events.append(event.to_dict())
            return (await stream.get_final_message()).to_dict()

    async def ask(self, *messages: JSON, **settings: Any) -> JSON:
        answer: anthropic.types.Message = await self.client.messages.create(**self.request(*messages, **settings))
        return answer.to_dict()


@contextlib.asynccontextmanager
async def talking(script: model.Script) -> AsyncIterator[tuple[model.Server, Sdk]]:
    async with model.serve(script) as server:
        sdk = Sdk(server.url)
        try:
            yield server, sdk
        finally:
            await sdk.client.close()


def user(content: str | list[JSON] = ALERT) -> JSON:
    return {"role": "user", "content": content}


def to_message(answer: JSON) -> JSON:
    """The model's turn, as it has to be sent back."""
    return {"role": "assistant", "content": [without(block, "parsed_output") for block in answer["content"]]}


def without(block: JSON, *names: str) -> JSON:
    return {name: value for name, value in block.items() if name not in names}


def results(reply: JSON, *, failed: bool = False, text: str = "ok") -> JSON:
    return user(
        [
            {"type": "tool_result", "tool_use_id": block["id"], "content": text, "is_error": failed}
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
    )


def changed(reply: JSON, position: int, **fields: Any) -> JSON:
    """The turn with other fields in one of its blocks."""
    blocks = [block | fields if index == position else block for index, block in enumerate(reply["content"])]
    return reply | {"content": blocks}


async def test_an_answer_arrives_in_order_as_thoughts_text_and_parallel_calls() -> None:
    async with talking(model.answers(LOOKS)) as (server, sdk):
        events: list[JSON] = []
        answer = await sdk.stream(user(), into=events)
    thinking, text, *calls = answer["content"]
    assert (thinking["thinking"], text["text"]) == ("**Looking**", "I will look.")
    assert thinking["signature"]
    assert [(call["name"], call["input"]) for call in calls] == [(call.name, dict(call.args)) for call in CALLS]
    assert answer["stop_reason"] == "tool_use"
    assert [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("partial_json")] == [
        '{"name',
        'space"',
        ': "sho',
        'p"}',
    ]
    assert server.requests[0].key == keys.Key("tarsy/web-crash", "analysis", "KubernetesAgent")


async def test_the_events_are_those_of_the_real_server() -> None:
    async with talking(model.answers(model.Answer(thoughts="hm", text="ok"))) as (server, sdk):
        response = await sdk.client.messages.with_raw_response.create(**sdk.request(user(), stream=True))
        lines = [line async for line in response.http_response.aiter_lines()]
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [
        "message_start",
        *("content_block_start", "ping", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events[0]["message"]["usage"]["output_tokens"] == 1
    assert events[-2]["usage"] == {
        "input_tokens": events[0]["message"]["usage"]["input_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 1},
    }
    assert server.requests[0].end == "completed"


async def test_thoughts_make_the_round_trip_over_two_turns() -> None:
    hidden = model.Answer(redacted=True, calls=CALLS)
    async with talking(model.answers(LOOKS, hidden, "the end")) as (server, sdk):
        first = to_message(await sdk.stream(user()))
        second = to_message(await sdk.stream(user(), first, results(first)))
        last = await sdk.ask(user(), first, results(first), second, results(second))
    assert [block["type"] for block in second["content"]] == ["redacted_thinking", "tool_use", "tool_use"]
    assert last["content"][0]["text"] == "the end"
    assert [request.iteration for request in server.requests] == [0, 1, 2]


async def test_a_turn_that_began_with_thoughts_may_go_on_without_and_a_new_one_may_not() -> None:
    async with talking(model.answers(LOOKS, model.Answer(calls=CALLS), "the end", "more")) as (_, sdk):
        first = to_message(await sdk.stream(user()))
        second = to_message(await sdk.stream(user(), first, results(first)))
        exchange = [user(), first, results(first), second, results(second)]
        end = to_message(await sdk.stream(*exchange))
        assert await sdk.stream(*exchange, end, user("and?"))
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.1\.content\.0\.type: Expected `thinking`"):
            await sdk.stream(user(), second, results(second))


async def test_an_answer_that_is_not_streamed_has_the_same_blocks() -> None:
    async with talking(model.answers(LOOKS)) as (_, sdk):
        answers = [await sdk.ask(user()), await sdk.stream(user())]
    sealed = ("id", "signature", "parsed_output")
    unstreamed, streamed = ([without(block, *sealed) for block in answer["content"]] for answer in answers)
    assert unstreamed == streamed
    assert answers[0]["usage"]["output_tokens"] == answers[1]["usage"]["output_tokens"]


async def test_content_marked_to_be_cached_is_counted_apart() -> None:
    text = {"type": "text", "text": ALERT, "cache_control": {"type": "ephemeral"}}
    async with talking(model.answers(LOOKS, "the end")) as (_, sdk):
        plain = (await sdk.stream(user()))["usage"]
        reply = to_message(await sdk.stream(user([text])))
        usage = (await sdk.stream(user([text]), reply, results(reply)))["usage"]
    assert (plain["cache_creation_input_tokens"], plain["cache_read_input_tokens"]) == (0, 0)
    assert usage["cache_creation_input_tokens"] > 0
    assert usage["cache_read_input_tokens"] > usage["cache_creation_input_tokens"]


async def test_a_search_comes_with_its_pages_and_citations_and_goes_back() -> None:
    searched = model.Answer(searches=(FOUND,), text="It was killed.", calls=CALLS)
    async with talking(model.answers(searched, "the end")) as (_, sdk):
        answer = await sdk.stream(user(), tools=[*TOOLS, SEARCH], thinking=None)
        reply = to_message(answer)
        call, hits, text, *_ = reply["content"]
        assert (call["type"], call["input"]) == ("server_tool_use", {"query": "exit code 137"})
        assert [(page["title"], page["url"]) for page in hits["content"]] == [("Exit codes", "https://pages.test/137")]
        assert text["citations"][0]["url"] == "https://pages.test/137"
        assert answer["usage"]["server_tool_use"]["web_search_requests"] == 1
        assert await sdk.stream(user(), reply, results(reply), tools=[*TOOLS, SEARCH], thinking=None)
        pages = [hits["content"][0] | {"encrypted_content": EXPIRED}]
        with pytest.raises(anthropic.BadRequestError, match="Invalid `encrypted_content`"):
            await sdk.stream(user(), changed(reply, 1, content=pages), results(reply), tools=[*TOOLS, SEARCH])
        without_tool = await sdk.stream(user("no search is allowed"))
    assert [block["type"] for block in without_tool["content"]] == ["text", "tool_use", "tool_use"]


async def test_a_paused_turn_goes_on_where_it_is_sent_back() -> None:
    paused = model.Answer(searches=(FOUND,), finish="paused")
    async with talking(model.answers(paused, "the end")) as (_, sdk):
        answer = await sdk.stream(user(), tools=[SEARCH], thinking=None)
        assert answer["stop_reason"] == "pause_turn"
        rest = await sdk.stream(user(), to_message(answer), tools=[SEARCH], thinking=None)
    assert rest["content"][0]["text"] == "the end"


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (0, {"signature": EXPIRED}, r"messages\.1\.content\.0: Invalid `signature` in `thinking` block"),
        (0, {"thinking": "**Other**"}, r"messages\.1\.content\.0: Invalid `signature` in `thinking` block"),
        (0, {"signature": None}, r"thinking\.signature: Input should be a valid string"),
        (0, {"type": "redacted_thinking", "data": EXPIRED}, "Extra inputs are not permitted"),
        (2, {"id": "functions.x:0"}, r"tool_use\.id: String should match pattern"),
        (1, {"text": ""}, "text content blocks must be non-empty"),
        (1, {"text": " \n"}, "text content blocks must contain non-whitespace text"),
        (1, {"index": 1}, r"content\.1\.text\.index: Extra inputs are not permitted"),
    ],
)
async def test_a_turn_that_does_not_come_back_as_it_was_is_refused(index: int, fields: JSON, message: str) -> None:
    async with talking(model.answers(LOOKS, "the end")) as (server, sdk):
        reply = to_message(await sdk.stream(user()))
        with pytest.raises(anthropic.BadRequestError, match=message):
            await sdk.stream(user(), changed(reply, index, **fields), results(reply))
        assert server.requests[-1].answered.startswith("refused: ")
        assert await sdk.stream(user(), reply, results(reply))


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (lambda _: [], "at least one message is required"),
        (lambda reply: [reply, results(reply)], 'first message must use the "user" role'),
        (lambda _: [user(), user()], "roles must alternate"),
        (lambda _: [user(), {"role": "assistant", "content": "and"}], "must end with a user message"),
        (lambda _: [user(" ")], "must contain non-whitespace text"),
        (lambda _: [user([])], "all messages must have non-empty content"),
        (lambda _: [{"role": "system", "content": "x"}], "Input should be 'user' or 'assistant'"),
        (lambda reply: [user(), reply, user("go on")], "ids were found without `tool_result` blocks immediately after"),
        (lambda reply: [user(), reply, user(results(reply)["content"][:1])], "were found without `tool_result` blocks"),
        (lambda reply: [user(results(reply)["content"])], "unexpected `tool_use_id` found in `tool_result` blocks"),
        (lambda reply: [user(), reply, user([*results(reply)["content"] * 2])], "must have a single result"),
        (lambda reply: [user(), reply, results(reply, failed=True, text="")], "cannot be empty if `is_error` is true"),
        (
            lambda reply: [user(), reply, user([{"type": "text", "text": "so"}, *results(reply)["content"]])],
            "must come before any other content",
        ),
        (lambda reply: [user(reply["content"])], "blocks can only be in `assistant` messages"),
        (
            lambda reply: [user(), reply | {"content": reply["content"][1:]}, results(reply)],
            r"messages\.1\.content\.0\.type: Expected `thinking` or `redacted_thinking`, but found `text`",
        ),
        (
            lambda reply: [user(), reply | {"content": reply["content"][1::-1]}, user("go on")],
            "the first block must be `thinking` or `redacted_thinking`. Found `text`",
        ),
        (
            lambda reply: [user(), reply, results(reply), reply, results(reply)],
            "`tool_use` ids must be unique",
        ),
    ],
)
async def test_a_conversation_that_anthropic_refuses_is_refused(
    conversation: Callable[[JSON], list[JSON]], message: str
) -> None:
    async with talking(model.answers(LOOKS, "the end")) as (_, sdk):
        reply = to_message(await sdk.stream(user()))
        with pytest.raises(anthropic.BadRequestError, match=message):
            await sdk.stream(*conversation(reply))


MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 1024}, "`max_tokens` must be greater than `thinking.budget_tokens`"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "greater than or equal to 1024"),
        ({"temperature": 1.0}, "temperature: Extra inputs are not permitted"),
        ({"temperature": 0.5, "version": "2023-06-01"}, "`temperature` may only be set to 1 when thinking is enabled"),
        ({"version": "2024-01-01"}, "is not a valid version"),
        ({"tool_choice": {"type": "any"}}, "Thinking may not be enabled when tool_choice forces tool use"),
        ({"tools": None, "tool_choice": {"type": "auto"}}, "tool_choice may only be specified while providing tools"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "Tool names must be unique"),
        ({"tools": [TOOLS[0] | {"name": "server.tool"}]}, r"tools\.0\.custom\.name: String should match pattern"),
        ({"tools": [TOOLS[0] | {"input_schema": {}}]}, r"input_schema\.type: Field required"),
        ({"tools": [TOOLS[0] | {"input_schema": {"type": "object", "anyOf": [{}]}}]}, "does not support oneOf, allOf"),
        (
            {"tools": [TOOLS[0] | {"input_schema": {"type": "object", "properties": {"@type": {}}}}]},
            "Property keys should match pattern",
        ),
        ({"thinking": {"type": "adaptive"}}, "adaptive thinking is not supported on this model"),
        ({"model": "claude-opus-5"}, '"thinking.type.enabled" is not supported for this model'),
        ({"system": [{"type": "text", "text": ""}]}, "system: text content blocks must be non-empty"),
        ({"system": [MARKED] * 5}, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
        ({"prompt": "x"}, "prompt: Extra inputs are not permitted"),
    ],
)
async def test_a_setting_that_anthropic_refuses_is_refused(settings: JSON, message: str) -> None:
    async with talking(model.answers("the end")) as (_, sdk):
        version = settings.get("version", "2026-10-21")
        body = without(sdk.request(user(), **settings), "version")
        with pytest.raises(anthropic.BadRequestError, match=message):
            await sdk.client.with_options(default_headers={"anthropic-version": version}).post(
                "/v1/messages", body=body, cast_to=object
            )


@pytest.mark.parametrize(
    ("header", "status", "kind"),
    [("Authorization", 401, "authentication_error"), ("anthropic-version", 400, "invalid")],
)
async def test_key_and_version_have_to_be_told(header: str, status: int, kind: str) -> None:
    async with talking(model.answers("the end")) as (server, sdk):
        with pytest.raises(anthropic.APIStatusError, match=kind) as refused:
            await sdk.client.messages.create(**sdk.request(user()), extra_headers={header: anthropic.Omit()})
        assert refused.value.status_code == status
        await sdk.ask(user())
        assert "secret-key" not in str(server.requests)
        assert server.requests[-1].api_key == model.digest("secret-key")


async def test_an_error_has_its_type_message_and_time_to_wait() -> None:
    async with talking(model.answers(model.HttpError(status=429, retry_after=7))) as (_, sdk):
        with pytest.raises(anthropic.RateLimitError) as raised:
            await sdk.stream(user())
    assert (raised.value.type, raised.value.response.headers["retry-after"]) == ("rate_limit_error", "7")
    assert str(raised.value.body).count("request_id") == 1
