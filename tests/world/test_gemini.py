"""Our Gemini provider over a real socket, by a key and by the tokens of Vertex AI: what only a socket can show."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from support import leases, redirects
from tarsy.config.model import platforms, providers
from tarsy.llm import gemini, limited_model, provider, registry, vertexai
from tarsy.resources import chains
from tarsy.transcript import entries, entry_versions, messages, ports
from tarsy_dev import loopback, model
from tarsy_dev.model import tokens

TASK = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'."
REQUEST = ports.Request(
    tools=(), messages=(messages.Message(role="system", text=SYSTEM), messages.Message(role="user", text=TASK))
)
ONCE = replace(leases.SCOPE, may_retry=lambda: False)


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """It would close sockets too, at some time."""
    gc.disable()
    yield
    gc.enable()


class Limited(Protocol):
    """Gemini at an address, within limits."""

    def __call__(
        self, url: str, **limits: object
    ) -> contextlib.AbstractAsyncContextManager[limited_model.LimitedModel]: ...


@pytest.fixture(scope="module")
def token_uri() -> Iterator[str]:
    with loopback.background(model.serve()) as running:
        yield f"{running.server.url}/token"


@pytest.fixture(params=["google", "vertexai"])
def limited(request: pytest.FixtureRequest, tmp_path: Path, token_uri: str) -> Limited:
    """By the parameter: a type, or type, model and thinking."""
    parameters = request.param if isinstance(request.param, tuple) else (request.param,)
    kind, name, thinking = (*parameters, None, None)[:3]
    settings = {"type": kind, "model": name or "gemini-2.5-flash", "thinking": thinking}

    @contextlib.asynccontextmanager
    async def open_model(url: str, **limits: object) -> AsyncIterator[limited_model.LimitedModel]:
        http = registry.session()
        source: provider.Provider
        if kind == "google":
            google = providers.GoogleProvider.model_validate(settings | {"base_url": url})
            source = gemini.Gemini("ours", google, api_key="k", http=http)
        else:
            key_file = tokens.account(tmp_path / "key.json", token_uri=token_uri)
            fields = settings | {"base_url": url, "credentials_file": key_file}
            vertex = providers.VertexAIProvider.model_validate(fields)
            source = vertexai.build("ours", vertex, key=None, session=http, environment={})
        try:
            yield limited_model.LimitedModel("ours", source, limits=platforms.Limits.model_validate(limits))
        finally:
            await source.close()
            await http.close()

    return open_model


@pytest.mark.parametrize(
    ("fault", "limits", "kind"),
    [
        (model.Flood(), {"answer": 1024}, "rejected"),
        (model.Hang(after=2), {"idle": "50ms", "iteration": "10s"}, "timeout"),
        (model.Hang(), {"iteration": "2s"}, "timeout"),
    ],
    ids=["a flood over its limit", "silence in the middle", "silence"],
)
async def test_a_stream_that_is_left_early_closes_its_socket(
    limited: Limited, fault: model.Misbehaviour, limits: dict[str, object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", limited_model.LONGEST_BACKOFF)  # 10 s at least: no retry
    async with model.serve(model.answers(fault)) as server, limited(server.url, **limits) as asked:
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(REQUEST, leases.SCOPE)
        assert error.value.failure.kind == kind
        request = await server.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"


@pytest.mark.parametrize(
    ("limited", "status"),
    [*(("google", status) for status in (301, 302, 303, 307, 308)), ("vertexai", 307)],
    indirect=["limited"],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["another port", "another name"])
async def test_key_and_conversation_do_not_follow_a_redirect_to_another_origin(
    limited: Limited, status: int, host: str
) -> None:
    first, other = redirects.Redirecting(status=status), redirects.Redirecting(status=status)
    async with first.serve() as url, other.serve(host) as elsewhere, limited(url) as asked:
        first.elsewhere = elsewhere
        with pytest.raises(ports.ModelError, match="redirects to another origin") as error:
            await asked.ask(REQUEST, leases.SCOPE)
    assert error.value.failure.kind == "fatal"
    assert (len(first.reached), other.reached) == (1, [])


@pytest.mark.parametrize(("limited", "status"), [("google", 307), ("google", 308)], indirect=["limited"])
async def test_a_redirect_within_the_origin_is_followed(limited: Limited, status: int) -> None:
    async with model.serve(model.answers("There.")) as behind:
        server = redirects.Redirecting(status=status, behind=behind.url)
        async with server.serve() as url, limited(url) as asked:
            answer = await asked.ask(REQUEST, leases.SCOPE)
    assert (answer.message.text, len(server.reached)) == ("There.", 2)


@pytest.mark.parametrize("limited", ["google"], indirect=True)
async def test_api_key_is_used_for_gemini_api_regardless_of_environment(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "somebody's")
    async with model.serve(model.answers("so")) as server, limited(server.url) as asked:
        await asked.ask(REQUEST, leases.SCOPE)
    assert server.requests[0].path == "/v1/models/gemini-2.5-flash:streamGenerateContent"


SEARCH = model.Search(query="oom kill", pages=(model.Page(title="OOM", url="https://oom"),))
NATIVE = model.Answer(
    text="It is out of memory.",
    thoughts="Let me see.",
    code=(model.CodeRun(code="print(2)", output="2\n"),),
    searches=(SEARCH,),
    read={"https://a": True},
    chunk=7,
)
RESULTS = (
    messages.NativeResult(
        tool="code_execution",
        content="2\n",
        details={"code": "print(2)", "language": "python", "outcome": "OUTCOME_OK"},
    ),
    messages.NativeResult(
        tool="google_search",
        content="OOM https://oom",
        details={"queries": ["oom kill"], "sources": [{"title": "OOM", "url": "https://oom"}]},
    ),
    messages.NativeResult(
        tool="url_context",
        content="https://a",
        details={
            "queries": [],
            "sources": [{"title": "", "url": "https://a"}],
        },
    ),
)
ALL: tuple[chains.NativeTool, ...] = ("google_search", "code_execution", "url_context")


def followed(request: ports.Request, answer: ports.Answer, *, result: str = "") -> ports.Request:
    """The request behind an answer, which goes through the log in between."""
    stored = entry_versions.encode(
        entries.Answered(execution="e", turn=0, messages=(answer.message,), call=answer.call)
    )
    entry = entry_versions.decode(stored, run=0, stage="", execution="e")
    assert isinstance(entry, entries.Answered)
    reply = entry.messages[0]
    reply = replace(reply, calls=tuple(replace(call, id=f"0.{index}") for index, call in enumerate(reply.calls)))
    results = [messages.Message(role="tool", call_id=call.id, tool_name=call.name, text=result) for call in reply.calls]
    then = results or [messages.Message(role="user", text="and?")]
    return replace(request, messages=(*request.messages, reply, *then))


async def test_native_tool_results_are_kept_and_sent_back_unchanged(limited: Limited) -> None:
    request = replace(REQUEST, native_tools=ALL)
    async with model.serve(model.answers(NATIVE, "As I said.")) as server, limited(server.url) as asked:
        answer = await asked.ask(request, leases.SCOPE)
        assert answer.message.native == RESULTS
        assert answer.message.text == "It is out of memory."
        assert (await asked.ask(followed(request, answer), leases.SCOPE)).message.text == "As I said."
    _, content, _ = server.requests[1].body["contents"]
    ran = [part for part in content["parts"] if "executableCode" in part or "codeExecutionResult" in part]
    assert [next(iter(part.values())) for part in ran] == [
        {"language": "PYTHON", "code": "print(2)"},
        {"outcome": "OUTCOME_OK", "output": "2\n"},
    ]


TOOLS = (messages.ToolSpec(name="k8s.get", description="Get it."),)


@pytest.mark.parametrize("limited", [("google", "gemini-3-pro")], indirect=True)
async def test_gemini_3_shows_what_it_searched_for_beside_functions_and_wants_it_back(limited: Limited) -> None:
    request = replace(REQUEST, tools=TOOLS, native_tools=("google_search",))
    looks = model.Answer(searches=(SEARCH,), calls=(model.Call(name="k8s__get", args={"name": "web-0"}),))
    async with model.serve(model.answers(looks, "Out of memory.")) as server, limited(server.url) as asked:
        answer = await asked.ask(request, leases.SCOPE)
        assert [call.name for call in answer.message.calls] == ["k8s.get"]
        await asked.ask(followed(request, answer, result="OOMKilled"), leases.SCOPE)
    _, content, _ = server.requests[1].body["contents"]
    assert [sorted(part) for part in content["parts"]] == [
        ["thoughtSignature", "toolCall"],
        ["toolResponse"],
        ["functionCall", "thoughtSignature"],
    ]
    assert answer.message.provider_state
    assert content["parts"] == answer.message.provider_state.data


@pytest.mark.parametrize(
    ("limited", "why"),
    [
        ("google", "Tool use with function calling is unsupported"),
        (("vertexai", "gemini-3-pro"), 'Unknown name "includeServerSideToolInvocations"'),
    ],
    indirect=["limited"],
)
async def test_model_without_support_for_native_tools_beside_functions_refuses_at_once(
    limited: Limited, why: str
) -> None:
    request = replace(REQUEST, tools=TOOLS, native_tools=("google_search",))
    async with model.serve(model.answers("never said")) as server, limited(server.url) as asked:
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(request, leases.SCOPE)
    assert (error.value.failure.kind, len(server.requests)) == ("fatal", 1)
    assert why in error.value.failure.text


@pytest.mark.parametrize(
    ("limited", "thinks"),
    [
        (("vertexai", "gemini-2.5-flash-lite"), True),
        (("google", "gemini-2.0-flash"), False),
        (("google", "gemini-2.5-flash", {"budget": 0}), False),
        (("vertexai", "gemini-3-flash", {"level": "minimal"}), True),
    ],
    indirect=["limited"],
    ids=str,
)
async def test_each_model_takes_the_thinking_that_it_is_asked_for(limited: Limited, thinks: bool) -> None:
    async with (
        model.serve(model.answers(model.Answer(thoughts="hm", text="so"))) as server,
        limited(server.url) as asked,
    ):
        answer = await asked.ask(REQUEST, leases.SCOPE)
    assert (answer.message.text, answer.message.thinking) == ("so", "hm" if thinks else "")


async def test_too_large_request_is_reported_as_too_large(limited: Limited) -> None:
    refusal = model.HttpError(
        status=400, message="The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."
    )
    async with model.serve(model.answers(refusal)) as server, limited(server.url) as asked:
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(REQUEST, leases.SCOPE)
    failure = error.value.failure
    assert (failure.kind, failure.code, len(server.requests)) == ("fatal", messages.CONTEXT_OVERFLOW, 1)
    assert "set context_tokens of llm_providers.ours" in failure.text


async def test_unreachable_server_is_reported_by_its_address_only(limited: Limited) -> None:
    async with limited("http://127.0.0.1:1") as asked:
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(REQUEST, ONCE)
    (attempt,) = error.value.call.attempts
    assert (attempt.error, attempt.code) == (
        "the connection broke: cannot connect to 127.0.0.1:1: Connection refused",
        "connection",
    )
