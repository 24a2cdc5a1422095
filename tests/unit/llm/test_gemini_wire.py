"""Requests to Gemini, byte for byte as recorded. The SDK is the real one; only its HTTP is replaced."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from google.genai import _api_client, errors, types
from support import leases
from tarsy.config.model import platforms, providers
from tarsy.llm import gemini, limited_model, provider, registry
from tarsy.transcript import messages, ports

JSON = dict[str, Any]
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
STOP: JSON = {"candidates": [{"content": {"parts": [{"text": "so"}], "role": "model"}, "finishReason": "STOP"}]}


@dataclass
class Wire:
    """The SDK's HTTP: what would have been sent, and what comes back, an answer a request."""

    answers: list[list[JSON] | Exception] = field(default_factory=list)
    sent: list[JSON] = field(default_factory=list)


@dataclass
class Response:
    chunks: list[JSON]
    headers: dict[str, str] = field(default_factory=dict)

    async def __aiter__(self) -> AsyncIterator[JSON]:
        for chunk in self.chunks:
            yield chunk


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()

    async def request(_client: object, http_request: Any, *_: object, **__: object) -> Response:
        made.sent.append(json.loads(json.dumps(http_request.data)))
        answer = made.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Response(answer)

    monkeypatch.setattr(_api_client.BaseApiClient, "_async_request", request)
    return made


@pytest.fixture
def recorded(captures: Path) -> tuple[JSON, JSON]:
    """The bodies of two requests: the first, and the one that brought the results back."""
    first, second = json.loads((captures / "gemini/gemini-requests-recorded.json").read_bytes())
    return first["body"], second["body"]


@pytest.fixture
def chunks(captures: Path) -> list[JSON]:
    """Chunks that came in between: thoughts, a text, two calls and an empty text."""
    lines = (captures / "gemini/gemini-sse-sample.txt").read_text().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


class Source(Protocol):
    """Makes Gemini of that model, with these settings."""

    def __call__(self, name: str, **settings: object) -> gemini.Gemini: ...


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made: list[gemini.Gemini] = []
    http = registry.session()

    def make(name: str, **settings: object) -> gemini.Gemini:
        provider_settings = providers.GoogleProvider.model_validate({"type": "google", "model": name} | settings)
        made.append(gemini.Gemini("google-default", provider_settings, api_key="AIza-secret", http=http))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    await http.close()


def request(*conversation: messages.Message, tools: tuple[messages.ToolSpec, ...] = ()) -> ports.Request:
    return ports.Request(tools=tools, messages=(messages.Message(role="user", text="q"), *conversation))


def result(call_id: str, name: str, *, text: str = "...", failed: bool = False) -> messages.Message:
    return messages.Message(role="tool", call_id=call_id, tool_name=name, text=text, failed=failed)


async def events(source: gemini.Gemini, asked: ports.Request) -> list[provider.StreamEvent]:
    return [event async for event in source.stream(asked)]


def referring(content: JSON) -> JSON:
    """A recorded content, with what we add since to its results: how the model may name each of them."""
    responses = [part["functionResponse"]["response"] for part in content["parts"] if "functionResponse" in part]
    for index, response in enumerate(responses):
        response["reference"] = f"[tool 0.{index}]"
    return content


async def test_an_answer_goes_back_byte_for_byte_as_it_was_recorded(
    wire: Wire, source: Source, recorded: tuple[JSON, JSON], chunks: list[JSON]
) -> None:
    first, second = recorded
    *_, results_of = (referring(content) for content in second["contents"])
    assert json.dumps(results_of).count("reference") == 2
    tools = tuple(
        messages.ToolSpec(name=f["name"], description=f["description"], parameters=f["parameters_json_schema"])
        for f in first["tools"][0]["functionDeclarations"]
    )
    opening = (
        messages.Message(role="system", text="You are an SRE."),
        messages.Message(role="user", text="Why is web-0 crashing?"),
    )
    asked = limited_model.LimitedModel("google-default", source("gemini-3-pro"), limits=platforms.Limits())
    wire.answers = [chunks, [STOP]]
    answer = await asked.ask(ports.Request(tools=tools, messages=opening), SCOPE)
    assert (answer.message.thinking, answer.message.text) == ("**Looking at the pod**\n", "I will check the pod.")
    assert answer.call.usage == messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=9, total_tokens=129)
    stored = json.loads(json.dumps(answer.message.provider_state and answer.message.provider_state.data))
    sent_answer = replace(
        answer.message,
        calls=tuple(replace(call, id=f"0.{index}") for index, call in enumerate(answer.message.calls)),
        provider_state=messages.ProviderState(provider="google-default", data=stored),
    )
    results = (result("0.0", "pods_get"), result("0.1", "events_list"))
    await asked.ask(ports.Request(tools=tools, messages=(*opening, sent_answer, *results)), SCOPE)
    for sent, body in zip(wire.sent, recorded, strict=True):
        for part in ("contents", "systemInstruction", "tools"):
            assert json.dumps(sent[part], sort_keys=True) == json.dumps(body[part], sort_keys=True)
    assert len(second["contents"]) == 3


@pytest.mark.parametrize("signature", [b"\xfb\xff\xfe", b"\xff" * 7, b"opaque"])
async def test_a_signature_outlives_both_alphabets_of_base64(wire: Wire, source: Source, signature: bytes) -> None:
    sent = base64.b64encode(signature).decode()
    part = {"text": "", "thoughtSignature": sent}
    wire.answers = [[{"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}], [STOP]]
    asked = source("gemini-3-pro")
    *_, finish = await events(asked, request())
    assert isinstance(finish, provider.Finish)
    state = messages.ProviderState(provider="google-default", data=json.loads(json.dumps(finish.state)))
    answer = messages.Message(role="assistant", text="so", provider_state=state)
    await events(asked, request(answer, messages.Message(role="user", text="and?")))
    (back,) = wire.sent[1]["contents"][1]["parts"]
    assert base64.urlsafe_b64decode(back["thoughtSignature"].replace("+", "-").replace("/", "_")) == signature


def responses(first: str, second: str) -> JSON:
    """An error and a result as Gemini gets them, of calls with these ids."""
    failed = {"error": "gone", "reference": "[tool 0.0]"}
    answered = {"output": "web-0", "reference": "[tool 0.1]"}
    parts = [
        {"functionResponse": {"id": first, "name": "k8s__get", "response": failed}},
        {"functionResponse": {"id": second, "name": "k8s__list", "response": answered}},
    ]
    return {"role": "user", "parts": parts}


async def test_results_of_one_answer_stay_together_and_errors_are_marked(wire: Wire, source: Source) -> None:
    names = ("k8s.get", "k8s.list")
    parts = [{"functionCall": {"id": f"g{n}", "name": name.replace(".", "__")}} for n, name in enumerate(names)]
    answer = messages.Message(
        role="assistant",
        calls=tuple(messages.ToolCall(id=f"0.{n}", name=name, arguments="{}") for n, name in enumerate(names)),
        provider_state=messages.ProviderState(provider="google-default", data=parts),
    )
    results = (result("0.0", "k8s.get", text="gone", failed=True), result("0.1", "k8s.list", text="web-0"))
    wire.answers = [[STOP]]
    await events(source("gemini-2.5-flash"), request(answer, *results, messages.Message(role="user", text="and?")))
    assert wire.sent[0]["contents"][1:] == [
        {"role": "model", "parts": parts},
        responses("g0", "g1"),
        {"role": "user", "parts": [{"text": "and?"}]},
    ]


FOREIGN = messages.ProviderState(provider="other", data={"signature": "of another alphabet"})


def own(state: object) -> messages.ProviderState:
    return messages.ProviderState(provider="google-default", data=state)


@pytest.mark.parametrize(
    "state",
    [
        None,
        FOREIGN,
        own({"reasoning": "encrypted"}),
        own("text"),
        own(["text"]),
        own([{"type": "thinking", "signature": "s"}, {"type": "tool_use"}, {"type": "tool_use"}]),
        own([{"text": "I look."}]),
        own([{"functionCall": "k8s__get"}, {"functionCall": "k8s__list"}]),
    ],
)
async def test_answer_without_own_provider_state_is_sent_as_text_and_calls(
    wire: Wire, source: Source, state: messages.ProviderState | None
) -> None:
    names, texts = ("k8s.get", "k8s.list"), ('{"name": "web-0"}', "")
    answer = messages.Message(
        role="assistant",
        text="I look.",
        thinking="nobody else's business",
        calls=tuple(
            messages.ToolCall(id=f"0.{n}", name=name, arguments=text)
            for n, (name, text) in enumerate(zip(names, texts, strict=True))
        ),
        provider_state=state,
    )
    results = (result("0.0", "k8s.get", text="gone", failed=True), result("0.1", "k8s.list", text="web-0"))
    wire.answers = [[STOP]]
    await events(source("gemini-3-pro"), request(answer, *results))
    unsigned = {"functionCall": {"id": "0.1", "name": "k8s__list", "args": {}}}
    signed = {
        "functionCall": {"id": "0.0", "name": "k8s__get", "args": {"name": "web-0"}},
        "thoughtSignature": base64.b64encode(b"skip_thought_signature_validator").decode(),
    }
    assert wire.sent[0]["contents"][1:] == [
        {"role": "model", "parts": [{"text": "I look."}, signed, unsigned]},
        responses("0.0", "0.1"),
    ]


@pytest.mark.parametrize("name", ["k8s.get", "k8s.typed.get", "k8s.pods__get", "k8s-2.get"])
async def test_a_tools_dot_does_not_reach_the_wire_and_comes_back(wire: Wire, source: Source, name: str) -> None:
    tools = (messages.ToolSpec(name=name), messages.ToolSpec(name="other.get"))
    called = name.replace(".", "__", 1)
    call: JSON = {"functionCall": {"name": called, "args": {}}}
    wire.answers = [[{"candidates": [{"content": {"parts": [call]}, "finishReason": "STOP"}]}]]
    received = await events(source("gemini-2.5-flash"), request(tools=tools))
    assert received[0] == provider.Call(name, "{}")
    (declared,) = wire.sent[0]["tools"]
    assert [function["name"] for function in declared["functionDeclarations"]] == [called, "other__get"]


@pytest.mark.parametrize("wire_name", ["k8s__get", "k8s.get", "made.up", "made_up", "k8s__\x00", "\ud83d"])
async def test_a_result_carries_the_name_that_the_model_called(wire: Wire, source: Source, wire_name: str) -> None:
    tools = (messages.ToolSpec(name="k8s.get"),)
    part: JSON = {"functionCall": {"name": wire_name, "args": {}}}
    wire.answers = [[{"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}], [STOP]]
    asked = limited_model.LimitedModel("google-default", source("gemini-2.5-flash"), limits=platforms.Limits())
    message = (await asked.ask(request(tools=tools), SCOPE)).message
    assert message.calls[0].name == messages.storable(message.calls[0].name)
    answer = replace(message, calls=(replace(message.calls[0], id="0.0"),))
    await asked.ask(request(answer, result("0.0", answer.calls[0].name), tools=tools), SCOPE)
    _, called, results = wire.sent[1]["contents"]
    assert called["parts"][0]["functionCall"]["name"] == wire_name
    assert results["parts"][0]["functionResponse"]["name"] == wire_name


def thought(**wanted: object) -> JSON:
    return {"thinkingConfig": {"include_thoughts": True, **wanted}}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("gemini-2.5-pro", None, thought(thinking_budget=32768)),
        ("gemini-2.5-pro-preview-06-05", None, thought(thinking_budget=32768)),
        ("gemini-2.5-flash", None, thought(thinking_budget=24576)),
        ("gemini-flash-latest", None, thought(thinking_budget=24576)),
        ("gemini-3-pro", None, thought(thinking_level="HIGH")),
        ("gemini-10-pro", None, thought(thinking_level="HIGH")),
        ("gemini-2.0-flash", None, {}),
        ("gemini-2.5-flash", {"budget": 1024}, thought(thinking_budget=1024)),
        ("gemini-2.5-flash", {"budget": 0}, {"thinkingConfig": {"thinking_budget": 0}}),
        ("gemini-3-pro", {"budget": 1024}, thought(thinking_budget=1024)),
        ("gemini-3-pro", {"level": "low"}, thought(thinking_level="LOW")),
        ("gemini-flash-latest", {"level": "minimal"}, thought(thinking_level="MINIMAL")),
    ],
)
async def test_thinking_is_asked_for_in_the_models_own_words(
    wire: Wire, source: Source, name: str, settings: JSON | None, expected: JSON
) -> None:
    wire.answers = [[STOP]]
    await events(source(name, thinking=settings), request())
    assert wire.sent[0]["generationConfig"] == expected
    assert "tools" not in wire.sent[0]


@pytest.mark.parametrize("variant", ["think25", "think3"])
def test_thinking_has_the_names_that_were_recorded(captures: Path, variant: str) -> None:
    recorded = json.loads((captures / "gemini/gemini-requests-variants.json").read_bytes())[variant]
    assert recorded["generationConfig"]["thinkingConfig"].keys() <= {
        *thought(thinking_budget=1)["thinkingConfig"],
        *thought(thinking_level="LOW")["thinkingConfig"],
    }


async def test_native_tools_are_offered_as_they_were_recorded(wire: Wire, source: Source, captures: Path) -> None:
    variants = json.loads((captures / "gemini/gemini-requests-variants.json").read_bytes())
    wire.answers = [[STOP], [STOP]]
    asked = source("gemini-3-pro")
    await events(asked, replace(request(), native_tools=("google_search", "url_context", "code_execution")))
    await events(asked, replace(request(tools=(messages.ToolSpec(name="f"),)), native_tools=("google_search",)))
    alone, beside = variants["native_tools"], variants["native_plus_functions"]
    beside["tools"][1]["functionDeclarations"][0]["description"] = ""  # which we always send
    assert wire.sent[0]["tools"] == alone["tools"]
    assert "toolConfig" not in wire.sent[0]
    assert {key: wire.sent[1][key] for key in ("tools", "toolConfig")} == {
        key: beside[key] for key in ("tools", "toolConfig")
    }


@pytest.mark.parametrize("reason", [reason for reason in types.FinishReason if "UNSPECIFIED" not in reason.value])
async def test_answer_is_complete_only_if_ended_by_the_model(
    wire: Wire, source: Source, reason: types.FinishReason
) -> None:
    wire.answers = [[{"candidates": [{"content": {"parts": [{"text": "It"}]}, "finishReason": reason.value}]}]]
    if reason in (types.FinishReason.STOP, types.FinishReason.MAX_TOKENS):
        assert isinstance((await events(source("gemini-2.5-flash"), request()))[-1], provider.Finish)
    else:
        with pytest.raises(provider.RejectedError, match=reason.value):
            await events(source("gemini-2.5-flash"), request())


RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}]


def refusal(
    code: int, *, message: str = "no", details: Sequence[JSON] = (), headers: dict[str, str] | None = None
) -> errors.APIError:
    body = {"error": {"code": code, "status": "S", "message": message, "details": list(details)}}
    return errors.APIError(code, body, Response([], headers or {}))


@pytest.mark.parametrize(
    ("answer", "raised", "after"),
    [
        (refusal(429, headers={"Retry-After": "7"}), provider.RetryableError, 7.0),
        (refusal(429, details=RETRY_INFO), provider.RetryableError, 7.5),
        (refusal(429, details=RETRY_INFO, headers={"Retry-After": "1"}), provider.RetryableError, 1.0),
        (refusal(503, headers={"Retry-After": "Sat, 21 Nov 2026 20:00:00 GMT"}), provider.RetryableError, None),
        (refusal(500), provider.RetryableError, None),
        (errors.APIError(500, {"error": "overloaded"}, Response([])), provider.RetryableError, None),
        (errors.APIError(429, {"error": {"details": None}}, Response([])), provider.RetryableError, None),
        (json.JSONDecodeError("Expecting value", "{", 1), provider.RetryableError, None),
        ([{"error": "overloaded"}], provider.RetryableError, None),
        (errors.UnknownApiResponseError("half"), provider.RetryableError, None),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), provider.RetryableError, None),
        ([STOP, {"error": {"code": 503, "message": "overloaded"}}], provider.RetryableError, None),
        ([{"candidates": [{"content": {"parts": [{"text": 5}]}}]}], provider.RetryableError, None),
    ],
    ids=lambda value: None if isinstance(value, float) else str(value)[:40],
)
async def test_every_failure_is_raised_as_a_provider_error(
    wire: Wire,
    source: Source,
    answer: list[JSON] | Exception,
    raised: type[provider.ProviderError],
    after: float | None,
) -> None:
    wire.answers = [answer]
    with pytest.raises(raised) as error:
        await events(source("gemini-2.5-flash"), request())
    if isinstance(error.value, provider.RetryableError):
        assert error.value.after == after


def api_error(code: int, message: str, *, reason: str = "") -> errors.APIError:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    status = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}.get(code, "UNKNOWN")
    body = {"error": {"code": code, "status": status, "message": message, "details": details}}
    return errors.APIError(code, body, Response([]))


MAY = "check api_key_env of llm_providers.google-default, and what the key may do"


@pytest.mark.parametrize(
    ("answer", "raised", "code", "what_to_do"),
    [
        (api_error(400, "API key not valid.", reason="API_KEY_INVALID"), provider.FatalError, "400", MAY),
        (
            api_error(403, "Consumer 'api_key:AIza-secret' has been suspended."),
            provider.FatalError,
            "403",
            f"'api_key:***' has been suspended.; {MAY}",
        ),
        (
            api_error(404, "models/gemini-9 is not found"),
            provider.FatalError,
            "404",
            "check model of llm_providers.google-default: 'gemini-2.5-flash'",
        ),
        (api_error(400, "Please use a valid role: user, model."), provider.FatalError, "400", "valid role"),
        (
            api_error(400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
            provider.ContextOverflowError,
            "context_overflow",
            "set context_tokens of llm_providers.google-default",
        ),
        (
            api_error(400, "the input token count is 1200000 but model only supports up to 1048576."),
            provider.ContextOverflowError,
            "context_overflow",
            "set context_tokens of llm_providers.google-default",
        ),
        (api_error(429, "quota"), provider.RetryableError, "429", "quota"),
        (ConnectionResetError("reset"), provider.RetryableError, "connection", "reset"),
        ([5], provider.RetryableError, "protocol", "not the API's"),
        ([{"promptFeedback": {"blockReason": "SAFETY"}}], provider.FatalError, "SAFETY", "blocked"),
        ([{"candidates": [{"finishReason": "RECITATION"}]}], provider.RejectedError, "RECITATION", "stopped"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:40],
)
async def test_error_has_a_code_and_a_remedy(
    wire: Wire,
    source: Source,
    answer: list[Any] | Exception,
    raised: type[provider.ProviderError],
    code: str,
    what_to_do: str,
) -> None:
    wire.answers = [answer]
    with pytest.raises(provider.ProviderError) as error:
        await events(source("gemini-2.5-flash"), request())
    assert type(error.value) is raised
    assert error.value.code == code
    assert what_to_do in str(error.value)


async def test_parts_that_say_nothing_do_not_go_back(wire: Wire, source: Source) -> None:
    call = {"functionCall": {"name": "s__look", "args": {}}}
    parts = [{}, {"text": ""}, {"thought": True}, {"text": "", **call}, call]
    wire.answers = [[{"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}]]
    *_, finish = await events(source("gemini-2.5-flash"), request())
    assert isinstance(finish, provider.Finish)
    assert [part["functionCall"] for part in finish.state] == [call["functionCall"]] * 2


async def test_a_stream_that_is_cut_has_no_finish(wire: Wire, source: Source, chunks: list[JSON]) -> None:
    wire.answers = [chunks[:-1]]
    received = await events(source("gemini-3-pro"), request())
    assert not any(isinstance(event, provider.Finish) for event in received)
