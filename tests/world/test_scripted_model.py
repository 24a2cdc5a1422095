"""The scripted model as google-genai sees it: the real SDK over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from google import genai
from google.genai import errors, types
from tarsy_dev import keys, loopback, model, oracle

SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'.\nBe brief."
ALERT = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
KEY = keys.Key("tarsy/web-crash", "analysis", "KubernetesAgent")
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

    async def stream(
        self,
        *contents: types.Content,
        into: list[types.GenerateContentResponse] | None = None,
        **settings: Any,
    ) -> list[types.GenerateContentResponse]:
        """All pieces; `into` has those that came before an error too."""
        chunks = [] if into is None else into
        async for chunk in await self.client.aio.models.generate_content_stream(
            **self.request(list(contents), **settings)
        ):
            chunks.append(chunk)  # a comprehension would keep nothing when the stream breaks
        return chunks

    async def ask(self, *contents: types.Content, **settings: Any) -> types.GenerateContentResponse:
        return await self.client.aio.models.generate_content(**self.request(list(contents), **settings))


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
    found: list[types.Part] = []
    for chunk in chunks:
        assert chunk.candidates
        content = chunk.candidates[0].content
        found += (content.parts or []) if content else []
    return found


def said(chunks: list[types.GenerateContentResponse]) -> types.Content:
    """The model's turn as it has to be sent back: in order, without the empty parts that carry nothing."""
    kept = [part for part in parts(chunks) if part.text != "" or part.thought_signature]
    return types.Content(role="model", parts=kept)


def results(turn: types.Content, *, names: list[str] | None = None) -> types.Content:
    calls = [part.function_call for part in turn.parts or [] if part.function_call]
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


async def test_an_answer_arrives_in_order_as_thoughts_text_and_parallel_calls() -> None:
    answer = model.Answer(thoughts="**Looking**", text="I will look.", calls=CALLS, chunk=6)
    async with talking(model.answers(answer)) as (_, sdk):
        got = parts(await sdk.stream(user()))
    assert "".join(part.text or "" for part in got if part.thought) == "**Looking**"
    assert [part.text for part in got if part.text and not part.thought] == ["I will", " look."]
    calls = [part for part in got if part.function_call]
    assert [(c.function_call.name, c.function_call.args) for c in calls if c.function_call] == [
        (call.name, call.args) for call in CALLS
    ]
    assert calls[0].thought_signature is not None
    assert calls[1].thought_signature is None


async def test_signatures_make_the_round_trip_over_two_turns_and_through_json() -> None:
    looks = model.Answer(calls=CALLS)
    async with talking(model.answers(looks, looks, "the end")) as (server, sdk):
        first = said(await sdk.stream(user()))
        stored = types.Content.model_validate(json.loads(json.dumps(first.model_dump(mode="json", exclude_none=True))))
        second = said(await sdk.stream(user(), stored, results(stored)))
        last = await sdk.stream(user(), stored, results(stored), second, results(second))
    assert [request.iteration for request in server.of(investigation="tarsy/web-crash")] == [0, 1, 2]
    final = parts(last)
    assert "".join(part.text or "" for part in final) == "the end"
    assert final[-1].text == "", "the signature of a text arrives as Gemini 3 sends it"
    assert final[-1].thought_signature


async def test_usage_is_derived_from_the_request_and_the_last_counts_are_the_whole() -> None:
    answer = model.Answer(thoughts="so many thoughts", text="root cause", chunk=3)
    async with talking(model.answers(answer)) as (_, sdk):
        runs = [await sdk.stream(user()), await sdk.stream(user())]
    last, again = (run[-1].usage_metadata for run in runs)
    assert last == again
    assert last is not None
    assert last.thoughts_token_count == 4
    assert last.candidates_token_count == 3
    assert last.total_token_count == 4 + 3 + (last.prompt_token_count or 0)
    first = runs[0][0].usage_metadata
    assert first is not None
    assert first.candidates_token_count is None, "counts of earlier pieces are not the whole"


async def test_an_answer_that_is_not_streamed_has_the_same_parts() -> None:
    async with talking(model.answers(model.Answer(thoughts="hm", text="look", calls=CALLS))) as (_, sdk):
        answer = await sdk.ask(user())
    kinds = ["call" if part.function_call else "thought" if part.thought else "text" for part in parts([answer])]
    assert kinds == ["thought", "text", "call", "call"]


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (None, "Function call is missing a thought_signature"),
        (b"0" * 44, "Corrupted thought signature"),
    ],
    ids=["lost", "changed"],
)
async def test_a_signature_that_does_not_come_back_as_it_was_is_refused(signature: bytes | None, message: str) -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end")) as (server, sdk):
        turn = said(await sdk.stream(user()))
        with pytest.raises(errors.ClientError, match=message) as refused:
            await sdk.stream(user(), signed(turn, signature), results(turn))
        assert refused.value.code == 400
        assert server.requests[-1].answered.startswith(f"refused: {message}")
        assert await sdk.stream(user(), turn, results(turn))


def signed(turn: types.Content, signature: bytes | None) -> types.Content:
    """The turn with another signature on its first part."""
    first, *others = turn.parts or []
    return types.Content(role="model", parts=[first.model_copy(update={"thought_signature": signature}), *others])


async def test_calls_of_an_earlier_exchange_need_no_signature() -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end", "and more")) as (_, sdk):
        turn = said(await sdk.stream(user()))
        bare = signed(turn, None)
        end = said(await sdk.stream(user(), turn, results(turn)))
        assert await sdk.stream(user(), bare, results(bare), end, user("and why?"))


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (lambda turn: [user(), turn], "end with a user role"),
        (lambda turn: [user(), results(turn)], "immediately after a function call turn"),
        (lambda turn: [user(), turn, user("go on")], "number of function response parts"),
        (lambda turn: [user(), turn, results(turn, names=["a", "b"])], "answer the calls of their turn"),
        (lambda _: [types.Content(role="tool", parts=[types.Part(text="x")])], "valid role: user, model"),
        (lambda _: [types.Content(role="user", parts=[])], "parts must not be empty"),
    ],
    ids=["ends with the model", "no calls", "no responses", "other names", "role", "no parts"],
)
async def test_a_conversation_that_gemini_refuses_is_refused(conversation: Any, message: str) -> None:
    async with talking(model.answers(model.Answer(calls=CALLS), "the end")) as (_, sdk):
        turn = said(await sdk.stream(user()))
        with pytest.raises(errors.ClientError, match=message):
            await sdk.stream(*conversation(turn))


async def post(url: str, body: dict[str, Any] | str) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, str) else json.dumps(body)
    async with (
        aiohttp.ClientSession(headers={"x-goog-api-key": "k"}) as session,
        session.post(f"{url}/v1beta/models/gemini-3-pro:generateContent", data=text) as response,
    ):
        return response.status, await response.json()


async def test_fields_are_known_in_camel_and_snake_case_and_others_are_refused() -> None:
    contents = [{"role": "user", "parts": [{"text": "q"}]}]
    async with model.serve(model.answers("a")) as server:
        both = {"contents": contents, "system_instruction": {"parts": [{"text": "s"}]}, "generationConfig": {}}
        assert (await post(server.url, both))[0] == 200
        status, refused = await post(server.url, {"contents": contents, "systemPrompt": "s"})
        assert (status, refused["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert refused["error"]["message"].endswith('Unknown name "systemPrompt": Cannot find field.')
        assert (await post(server.url, "{"))[0] == 400
        assert (await post(server.url, {"contents": []}))[1]["error"]["message"].endswith("is not specified\n")


async def test_an_error_shows_its_code_message_and_both_ways_of_retry_after() -> None:
    async with talking(model.answers(model.HttpError(status=429, retry_after=7))) as (_, sdk):
        with pytest.raises(errors.ClientError) as raised:
            await sdk.stream(user())
    assert (raised.value.code, raised.value.status) == (429, "RESOURCE_EXHAUSTED")
    assert raised.value.response is not None
    assert raised.value.response.headers["Retry-After"] == "7"
    assert raised.value.details["error"]["details"][0]["retryDelay"] == "7s"


@pytest.mark.parametrize("status", [500, 503])
async def test_misbehaviour_gives_way_after_the_first_requests_of_each_key(status: int) -> None:
    script = model.first(2, model.HttpError(status=status), then=model.answers("root cause"))
    async with talking(script) as (server, sdk):
        for _ in range(2):
            with pytest.raises(errors.ServerError):
                await sdk.stream(user())
        assert "".join(part.text or "" for part in parts(await sdk.stream(user()))) == "root cause"
        with pytest.raises(errors.ServerError):
            await sdk.stream(user(ALERT.replace("web-crash", "another")))
    assert [request.repeats for request in server.of(investigation="tarsy/web-crash")] == [0, 1, 2]


async def test_misbehaviour_can_wait_for_its_iteration() -> None:
    script = model.first(
        1, model.HttpError(status=503), then=model.answers(model.Answer(calls=CALLS), "x"), iteration=1
    )
    async with talking(script) as (_, sdk):
        turn = said(await sdk.stream(user()))
        with pytest.raises(errors.ServerError):
            await sdk.stream(user(), turn, results(turn))
        assert await sdk.stream(user(), turn, results(turn))


async def test_a_key_that_is_not_sent_is_refused_and_one_that_is_is_not_logged_in_clear(tmp_path: Path) -> None:
    async with model.serve(model.answers("a"), log=tmp_path / "log") as server:
        sdk = Sdk(server.url, api_key="very-secret")
        await sdk.stream(user())
        await sdk.client.aio.aclose()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/v1/models/m:generateContent", json={"contents": []}) as response,
        ):
            assert response.status == 403
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/log") as response:
            shown = await response.text()
        assert server.requests[0].api_key == model.digest("very-secret")
    assert "very-secret" not in shown + (tmp_path / "log").read_text()


async def test_an_empty_answer_has_no_parts_at_all() -> None:
    async with talking(model.answers(model.Answer())) as (_, sdk):
        [only] = await sdk.stream(user())
    assert only.candidates
    assert only.candidates[0].finish_reason is types.FinishReason.STOP
    assert parts([only]) == []


async def test_a_cut_stream_breaks_after_its_pieces() -> None:
    async with talking(model.answers(model.Cut(after=2))) as (server, sdk):
        got: list[types.GenerateContentResponse] = []
        with pytest.raises(aiohttp.ClientPayloadError):
            await sdk.stream(user(), into=got)
    assert [part.text for part in parts(got)] == ["This", " ans"]
    [request] = server.requests
    assert (request.answered, request.end, request.pieces) == ("Cut", "cut by us", 2)


async def test_a_connection_can_close_before_its_headers() -> None:
    async with talking(model.answers(model.Cut(after=None))) as (server, sdk):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await sdk.stream(user())
    assert server.requests[0].status is None


async def test_an_error_object_within_the_stream_follows_its_pieces() -> None:
    fault = model.StreamError(error=model.HttpError(status=503, message="overloaded in the middle"), after=2)
    async with talking(model.answers(fault)) as (_, sdk):
        got: list[types.GenerateContentResponse] = []
        with pytest.raises(errors.ServerError, match="overloaded in the middle"):
            await sdk.stream(user(), into=got)
    assert len(got) == 2


async def test_garbage_is_no_json() -> None:
    async with talking(model.answers(model.Garbage())) as (_, sdk):
        with pytest.raises(errors.UnknownApiResponseError):
            await sdk.stream(user())


async def test_a_flood_can_end() -> None:
    async with talking(model.answers(model.Flood(megabytes=2))) as (server, sdk):
        text = "".join(part.text or "" for part in parts(await sdk.stream(user())))
    assert 1.9e6 < len(text) < 2.2e6
    assert server.requests[0].end == "completed"


@pytest.mark.parametrize(
    "fault", [model.Hang(), model.Hang(after=2), model.Flood()], ids=["headers", "middle", "flood"]
)
async def test_what_never_ends_ends_when_the_client_leaves(fault: model.Hang | model.Flood) -> None:
    async with talking(model.answers(fault)) as (server, sdk):
        task = asyncio.create_task(sdk.stream(user()))
        pieces = 9 if isinstance(fault, model.Flood) else fault.after or 0
        await server.wait_for(lambda requests: requests and requests[0].answered and requests[0].pieces >= pieces)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        request = await server.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"


async def test_a_server_that_ends_lets_nothing_hang() -> None:
    async with model.serve(model.answers(model.Hang())) as server:
        sdk = Sdk(server.url)
        task = asyncio.create_task(sdk.stream(user()))
        await server.wait_for(lambda requests: requests and requests[0].answered)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await task
    await sdk.client.aio.aclose()
    assert server.requests[0].end == "cut by us"


async def test_an_answer_can_be_held_back_until_the_test_says_so() -> None:
    go = asyncio.Event()

    async def script(turn: model.Turn) -> model.Reply:
        await go.wait()
        return model.Answer(text=f"for {turn.key.investigation}")

    async with talking(script) as (server, sdk):
        task = asyncio.create_task(sdk.stream(user()))
        await server.wait_for(lambda requests: len(requests) >= 1)
        assert not task.done()
        go.set()
        assert parts(await task)[0].text == "for tarsy/web-crash"


async def test_what_a_script_raises_reaches_the_test() -> None:
    async def out_of_script() -> None:
        async with talking(model.answers()) as (_, sdk):
            with contextlib.suppress(errors.ServerError):
                await sdk.stream(user())

    with pytest.raises(model.ScriptError, match="asked for iteration 0 of a script of 0 replies"):
        await out_of_script()


async def test_the_log_tells_a_request_by_its_content_and_survives_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    during: list[dict[str, Any]] = []

    def script(turn: model.Turn) -> model.Reply:
        during.extend(oracle.read(path))
        return model.Answer(text="a")

    async with model.serve(script, log=path) as server:
        sdk = Sdk(server.url)
        await sdk.stream(user())
        await sdk.stream(user(), system="You are nobody in particular.")
        await sdk.client.aio.aclose()
        assert [request.key for request in server.requests] == [KEY, keys.Key("tarsy/web-crash")]
        assert server.of(stage="analysis", agent="KubernetesAgent", iteration=0) == server.requests[:1]
        assert server.requests[0].body["contents"][0]["parts"][0]["text"] == ALERT
    assert during[0]["end"] is None, "it is written before the answer starts"
    first, _ = oracle.read(path)
    assert (keys.Key(*first["key"]), first["answered"], first["end"]) == (KEY, "Answer", "completed")
    assert first["arrived"] <= first["ended"]


async def test_waiting_in_vain_says_what_there_was() -> None:
    async with talking(model.answers("a")) as (server, sdk):
        await sdk.stream(user())
        with pytest.raises(TimeoutError, match=r"1 entries.*tarsy/web-crash"):
            await server.wait_for(lambda requests: len(requests) >= 2, timeout=0)


async def test_calls_can_carry_a_key_that_tells_them_apart() -> None:
    def script(turn: model.Turn) -> model.Reply:
        return model.Answer(calls=model.keyed(turn, CALLS))

    async with talking(script) as (_, sdk):
        calls = [part.function_call for part in parts(await sdk.stream(user())) if part.function_call]
    told = [keys.CallKey.parse((call.args or {})["key"]) for call in calls]
    assert [(key.execution, key.iteration, key.call) for key in told] == [(KEY, 0, 0), (KEY, 0, 1)]


def test_a_script_of_answers_says_the_same_again_to_who_asks_it_to_look_and_nothing_else_unasked() -> None:
    script = model.answers("the end", summary="in short")
    asked = model.Turn(model="m", messages=(model.Message(role="user", text="x"),))
    concluded = (*asked.messages, model.Message(role="model", text="the end"))

    def then(text: str) -> model.Turn:
        return dataclasses.replace(asked, iteration=1, messages=(*concluded, model.Message(role="user", text=text)))

    assert script(asked) == script(then(model.LOOK)) == model.Answer(text="the end")
    with pytest.raises(model.ScriptError, match="iteration 1 of a script of 1 replies"):
        script(then("go on"))
    explicit = model.answers("I shall look", model.Answer(calls=CALLS))
    assert explicit(then(model.LOOK)) == model.Answer(calls=CALLS)
    assert script(dataclasses.replace(asked, kind="summary")) == model.Answer(text="in short")
    assert script(dataclasses.replace(asked, kind="synthesis")) == model.Answer(text="synthesis")


@pytest.mark.parametrize(("kind", "hit"), [("agent", True), ("summary", False)])
def test_misbehaviour_can_be_for_one_kind_of_request(kind: keys.Kind, *, hit: bool) -> None:
    script = model.first(1, model.Cut(), then=model.answers("the end"), kind="agent")
    asked = model.Turn(model="m", messages=(model.Message(role="user", text="x"),), kind=kind)
    assert (script(asked) == model.Cut()) is hit


async def test_results_are_read_with_their_references() -> None:
    heard: list[model.Turn] = []

    def script(turn: model.Turn) -> model.Reply:
        heard.append(turn)
        return model.Answer(calls=CALLS) if turn.iteration == 0 else model.Answer(text="the end")

    async with talking(script) as (_, sdk):
        first = said(await sdk.stream(user()))
        calls = [part.function_call for part in first.parts or [] if part.function_call]
        answered = [
            types.Part(
                function_response=types.FunctionResponse(
                    name=call.name, id=call.id, response={"output": "ok", "reference": f"[tool 0.{index}]"}
                )
            )
            for index, call in enumerate(calls)
        ]
        await sdk.stream(user(), first, types.Content(role="user", parts=answered))
    assert [(result.text, result.reference) for result in heard[1].messages[-1].results] == [
        ("ok", "[tool 0.0]"),
        ("ok", "[tool 0.1]"),
    ]


def test_it_serves_those_without_a_loop_from_a_thread() -> None:
    with loopback.background(model.serve(model.answers("a"))) as running:
        sdk = Sdk(running.server.url)
        assert sdk.client.models.generate_content(**sdk.request([user()])).text == "a"
        sdk.client.close()
        assert running.call(running.server.wait_for(lambda requests: len(requests) >= 1))


async def test_as_a_process_it_investigates_and_ends_at_sigterm(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tarsy_dev.model", "--log", str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        sdk = Sdk((await process.stdout.readline()).decode().strip())
        turn = said(await sdk.stream(user()))
        await sdk.client.aio.aclose()
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    calls = [part.function_call for part in turn.parts or [] if part.function_call]
    assert [(call.name, call.args) for call in calls] == [(call.name, dict(call.args)) for call in CALLS]
    assert [entry["end"] for entry in oracle.read(tmp_path / "log")] == ["completed"]


def test_a_line_that_was_being_written_at_a_kill_is_left_out(tmp_path: Path) -> None:
    log: oracle.Log[oracle.Entry] = oracle.Log(path=tmp_path / "log")
    log.finish(log.add(oracle.Entry()), "completed")
    log.close()
    whole = oracle.read(tmp_path / "log")
    with (tmp_path / "log").open("a") as file:
        file.write('{"server": "x", "numb')
    assert oracle.read(tmp_path / "log") == whole
    assert [(entry["number"], entry["end"]) for entry in whole] == [(0, "completed")]
