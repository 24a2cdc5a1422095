"""The scripted model as the anthropic SDK sees it: the real SDK over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from tarsy_dev import model

SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'.\nBe brief."
ALERT = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
TOOLS = [
    {"name": f"kubernetes-server__{name}", "description": name, "input_schema": {"type": "object"}}
    for name in ("pods_list_in_namespace", "events_list")
]
THINKING = {"type": "enabled", "budget_tokens": 1024}
CALLS = (
    model.Call(name="kubernetes-server__pods_list_in_namespace", args={"namespace": "shop"}),
    model.Call(name="kubernetes-server__events_list"),
)
LOOKS = model.Answer(thoughts="**Looking**", text="I will look.", calls=CALLS, chunk=6)
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

    async def stream(self, *messages: JSON, **settings: Any) -> JSON:
        """The whole answer, as the SDK puts it together from the stream."""
        async with self.client.messages.stream(**self.request(*messages, **settings)) as stream:
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


async def test_turn_started_with_thoughts_can_continue_without_and_new_turn_cannot() -> None:
    async with talking(model.answers(LOOKS, model.Answer(calls=CALLS), "the end", "more")) as (_, sdk):
        first = to_message(await sdk.stream(user()))
        second = to_message(await sdk.stream(user(), first, results(first)))
        exchange = [user(), first, results(first), second, results(second)]
        end = to_message(await sdk.stream(*exchange))
        assert await sdk.stream(*exchange, end, user("and?"))
        with pytest.raises(anthropic.BadRequestError, match=r"messages\.1\.content\.0\.type: Expected `thinking`"):
            await sdk.stream(user(), second, results(second))


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (0, {"signature": EXPIRED}, r"messages\.1\.content\.0: Invalid `signature` in `thinking` block"),
        (0, {"thinking": "**Other**"}, r"messages\.1\.content\.0: Invalid `signature` in `thinking` block"),
        (0, {"signature": None}, r"thinking\.signature: Input should be a valid string"),
        (0, {"type": "redacted_thinking", "data": EXPIRED}, "Extra inputs are not permitted"),
        (2, {"id": "functions.x:0"}, r"tool_use\.id: String should match pattern"),
        (1, {"text": ""}, "text content blocks must be non-empty"),
        (1, {"index": 1}, r"content\.1\.text\.index: Extra inputs are not permitted"),
    ],
)
async def test_changed_turn_is_refused(index: int, fields: JSON, message: str) -> None:
    async with talking(model.answers(LOOKS, "the end")) as (server, sdk):
        reply = to_message(await sdk.stream(user()))
        with pytest.raises(anthropic.BadRequestError, match=message):
            await sdk.stream(user(), changed(reply, index, **fields), results(reply))
        assert server.requests[-1].answered.startswith("refused: ")
        assert await sdk.stream(user(), reply, results(reply))


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (lambda reply: [reply, results(reply)], 'first message must use the "user" role'),
        (lambda _: [user(), user()], "roles must alternate"),
        (lambda _: [user(), {"role": "assistant", "content": "and"}], "must end with a user message"),
        (lambda reply: [user(), reply, user("go on")], "ids were found without `tool_result` blocks immediately after"),
        (lambda reply: [user(results(reply)["content"])], "unexpected `tool_use_id` found in `tool_result` blocks"),
        (
            lambda reply: [user(), reply | {"content": reply["content"][1:]}, results(reply)],
            r"messages\.1\.content\.0\.type: Expected `thinking` or `redacted_thinking`, but found `text`",
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
        ({"temperature": 1.0}, "temperature: Extra inputs are not permitted"),
        ({"temperature": 0.5, "version": "2023-06-01"}, "`temperature` may only be set to 1 when thinking is enabled"),
        ({"tool_choice": {"type": "any"}}, "Thinking may not be enabled when tool_choice forces tool use"),
        ({"tools": [TOOLS[0] | {"name": "server.tool"}]}, r"tools\.0\.custom\.name: String should match pattern"),
        ({"tools": [TOOLS[0] | {"input_schema": {"type": "object", "anyOf": [{}]}}]}, "does not support oneOf, allOf"),
        ({"thinking": {"type": "adaptive"}}, "adaptive thinking is not supported on this model"),
        ({"model": "claude-opus-5"}, '"thinking.type.enabled" is not supported for this model'),
        ({"system": [MARKED] * 5}, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
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
