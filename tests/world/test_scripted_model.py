"""The scripted model as google-genai sees it: the real SDK over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types
from tarsy_dev import model

SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'.\nBe brief."
ALERT = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
TOOLS = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name=f"kubernetes-server__{name}",
            parameters_json_schema={"type": "object", "properties": {"namespace": {"type": "string"}}},
        )
        for name in ("pods_list_in_namespace", "events_list")
    ]
)
CALLS = (
    model.Call(name="kubernetes-server__pods_list_in_namespace", args={"namespace": "shop"}),
    model.Call(name="kubernetes-server__events_list", args={"namespace": "shop"}),
)


class Sdk:
    """google-genai as tarsy uses it: retries off, the loop ours."""

    def __init__(self, url: str, *, model: str = "gemini-3-pro", api_key: str = "secret-key") -> None:
        options = types.HttpOptions(base_url=url, retry_options=types.HttpRetryOptions(attempts=1))
        self.client = genai.Client(api_key=api_key, http_options=options)
        self.model = model

    def request(self, contents: list[types.Content], **settings: Any) -> dict[str, Any]:
        config = types.GenerateContentConfig(
            system_instruction=settings.pop("system", SYSTEM),
            tools=[TOOLS],
            thinking_config=types.ThinkingConfig(include_thoughts=True),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            **settings,
        )
        return {"model": self.model, "contents": contents, "config": config}

    async def stream(self, *contents: types.Content, **settings: Any) -> list[types.GenerateContentResponse]:
        request = self.request(list(contents), **settings)
        return [chunk async for chunk in await self.client.aio.models.generate_content_stream(**request)]


@contextlib.asynccontextmanager
async def talking(script: model.Script, **options: Any) -> AsyncIterator[tuple[model.Server, Sdk]]:
    async with model.serve(script) as server:
        sdk = Sdk(server.url, **options)
        try:
            yield server, sdk
        finally:
            await sdk.client.aio.aclose()
            sdk.client.close()


def user(text: str = ALERT) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def parts(chunks: list[types.GenerateContentResponse]) -> list[types.Part]:
    all_parts: list[types.Part] = []
    for chunk in chunks:
        assert chunk.candidates
        content = chunk.candidates[0].content
        all_parts += (content.parts or []) if content else []
    return all_parts


def to_content(chunks: list[types.GenerateContentResponse]) -> types.Content:
    """The model's turn as it has to be sent back: in order, without the empty parts that carry nothing."""
    filled = [part for part in parts(chunks) if part.text != "" or part.thought_signature]
    return types.Content(role="model", parts=filled)


def results(content: types.Content, *, names: list[str] | None = None) -> types.Content:
    calls = [part.function_call for part in content.parts or [] if part.function_call]
    return types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=name, response={"output": f"result of {call.name}"}
                )
            )
            for call, name in zip(calls, names or [str(call.name) for call in calls], strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("signature", "message"),
    [(None, "Function call is missing a thought_signature"), (b"0" * 44, "Corrupted thought signature")],
    ids=["lost", "changed"],
)
async def test_a_signature_that_does_not_come_back_as_it_was_is_refused(signature: bytes | None, message: str) -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end")) as (server, sdk):
        content = to_content(await sdk.stream(user()))
        with pytest.raises(errors.ClientError, match=message) as refused:
            await sdk.stream(user(), signed(content, signature), results(content))
        assert refused.value.code == 400
        assert server.requests[-1].answered.startswith(f"refused: {message}")
        assert await sdk.stream(user(), content, results(content))


def signed(content: types.Content, signature: bytes | None) -> types.Content:
    """The turn with another signature on its first part."""
    first, *others = content.parts or []
    return types.Content(role="model", parts=[first.model_copy(update={"thought_signature": signature}), *others])


async def test_calls_of_an_earlier_exchange_need_no_signature() -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end", "and more")) as (_, sdk):
        content = to_content(await sdk.stream(user()))
        bare = signed(content, None)
        end = to_content(await sdk.stream(user(), content, results(content)))
        assert await sdk.stream(user(), bare, results(bare), end, user("and why?"))


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (lambda content: [user(), content], "end with a user role"),
        (lambda content: [user(), results(content)], "immediately after a function call turn"),
        (lambda content: [user(), content, user("go on")], "number of function response parts"),
        (lambda content: [user(), content, results(content, names=["a", "b"])], "answer the calls of their turn"),
    ],
    ids=["ends with the model", "no calls", "no responses", "other names"],
)
async def test_a_conversation_that_gemini_refuses_is_refused(conversation: Any, message: str) -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end")) as (_, sdk):
        content = to_content(await sdk.stream(user()))
        with pytest.raises(errors.ClientError, match=message):
            await sdk.stream(*conversation(content))
