"""Behaviour that all chat models of LangChain share: names, pieces of answers, counts and errors."""

from __future__ import annotations

import email.utils
import re
import time
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core import exceptions
from support import steps
from tarsy.llm import answers, langchain_answers, langchain_failures, provider, tool_calls
from tarsy.transcript import messages, ports


@given(st.text(max_size=100))
def test_every_tool_name_is_sent_in_form_accepted_by_every_provider(name: str) -> None:
    sent = tool_calls.accepted_name(tool_calls.wire_name(name))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", sent)
    assert tool_calls.accepted_name(sent) == sent
    assert tool_calls.tools_by_sent_name([name]) == {sent: name}


@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_two_names_are_sent_as_two(first: str, other: str) -> None:
    same = tool_calls.accepted_name(tool_calls.wire_name(first)) == tool_calls.accepted_name(
        tool_calls.wire_name(other)
    )
    assert same == (tool_calls.wire_name(first) == tool_calls.wire_name(other))


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"input_tokens": 32, "output_tokens": 103, "total_tokens": 135}, (32, 103, 0, 135)),
        ({"input_tokens": 32, "output_tokens": 103, "total_tokens": 135, "reasoning": 94}, (32, 9, 94, 135)),
        ({"input_tokens": 32, "output_tokens": 197, "total_tokens": 135, "reasoning": 94}, (32, 9, 94, 135)),
        ({"input_tokens": 32, "output_tokens": 103, "total_tokens": 0, "reasoning": 94}, (32, 9, 94, 135)),
        ({"input_tokens": 5, "output_tokens": 0, "total_tokens": 5, "reasoning": None}, (5, 0, 0, 5)),
    ],
    ids=["no thoughts", "thoughts within", "thoughts counted twice, as LangChain does for xAI", "no total", "nothing"],
)
def test_thoughts_are_counted_apart_and_once(reported: dict[str, Any], usage: tuple[int, ...]) -> None:
    reported["output_token_details"] = {"reasoning": reported.pop("reasoning", 0)}
    counted = langchain_answers.usage(reported)
    assert (counted.input_tokens, counted.output_tokens, counted.thinking_tokens, counted.total_tokens) == usage


def test_a_block_is_put_together_from_its_pieces() -> None:
    block = langchain_answers.Block()
    for piece in (
        {"type": "reasoning", "id": "rs", "summary": [], "index": 0},
        {"type": "reasoning", "summary": [{"index": 0, "type": "summary_text", "text": "Wh"}], "index": 0},
        {"type": "reasoning", "summary": [{"index": 0, "type": "summary_text", "text": "y"}], "index": 0},
        {"type": "reasoning", "summary": [{"index": 1, "type": "summary_text", "text": "So"}], "index": 0},
        {"type": "reasoning", "id": "rs", "encrypted_content": "xyz", "status": None, "index": 0},
    ):
        block.add(piece)
    assert block.to_json() == {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": "Why"}, {"type": "summary_text", "text": "So"}],
        "encrypted_content": "xyz",
    }


def calls_of(*chunks: dict[str, Any]) -> list[tuple[str, str, str]]:
    answer = langchain_answers.Answer()
    for chunk in chunks:
        answer.add_calls([chunk])
    return [(call.name, call.id, "".join(call.pieces)) for call in answer.calls.values()]


def test_call_fragments_are_joined_by_index_or_else_appended_to_last_call() -> None:
    by_turns = [
        {"index": 0, "name": "a", "id": "1", "args": ""},
        {"index": 1, "name": "b", "id": "2", "args": None},
        {"index": 0, "args": '{"x":'},
        {"index": 1, "args": "{}"},
        {"index": 0, "args": "1}"},
    ]
    assert calls_of(*by_turns) == [("a", "1", '{"x":1}'), ("b", "2", "{}")]
    without = [{"name": "a", "id": "1", "args": "{"}, {"args": "}"}, {"name": "b", "args": "{}"}, {"name": "b"}]
    assert calls_of(*without) == [("a", "1", "{}"), ("b", "", "{}"), ("b", "", "")]


def test_lines_of_an_answer_grow_with_the_number_of_its_pieces() -> None:
    def put_together(count: int) -> None:
        answer = langchain_answers.Answer()
        for _ in range(count):
            answer.add_blocks([{"type": "text", "text": "abcd", "index": 0}])
            answer.add_calls([{"index": 0, "args": "abcd"}])
        assert len(answer.blocks[0].to_json()["text"]) == 4 * count

    assert steps.grow_linearly(put_together, 2_000, 4_000)


def test_broken_arguments_do_not_stop_the_loop() -> None:
    """LangChain alone would parse this piece again for each of its characters, in 16 s of an idle core."""
    from langchain_core import messages as lc

    piece: Any = {"type": "tool_call_chunk", "name": "a", "args": "x" * 64_000, "id": "1", "index": 0}
    packages = ("langchain_core", "tarsy")
    assert steps.count(lambda: lc.AIMessageChunk(content="", tool_call_chunks=[piece]), packages=packages) < 1_000


class StatusError(Exception):
    """An SDK's error, as OpenAI's and Anthropic's are."""

    def __init__(self, status: int, body: object = None, **headers: str) -> None:
        super().__init__("it said no")
        self.status_code = status
        self.body = body
        self.response = httpx2.Response(status, headers={key.replace("_", "-"): v for key, v in headers.items()})


def body(message: str = "No.", **fields: str) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("error", "raised", "code", "words"),
    [
        (StatusError(200, body(type="overloaded_error")), provider.RetryableError, "overloaded_error", "No."),
        (StatusError(200, body(type="invalid_request_error")), provider.FatalError, "invalid_request_error", "check"),
        (StatusError(402), provider.FatalError, "402", "check the account behind the key of llm_providers.mine"),
        (StatusError(413, body(type="request_too_large")), provider.ContextOverflowError, "context_overflow", "set"),
        (StatusError(400, body("prompt is too long: 2 tokens > 1 maximum")), provider.ContextOverflowError, None, ""),
        (StatusError(400, body("maximum context length is 4096")), provider.ContextOverflowError, None, ""),
        (StatusError(429, body("tokens of the context window a minute")), provider.RetryableError, "429", ""),
        (StatusError(503, body("maximum context length")), provider.RetryableError, "503", ""),
        (StatusError(409), provider.RetryableError, "409", ""),
        (exceptions.ModelRateLimitError("slowly"), provider.RetryableError, "429", "slowly"),
        (exceptions.ModelAuthenticationError("who?"), provider.FatalError, "401", "check api_key_env"),
        (exceptions.ContextOverflowError("much"), provider.ContextOverflowError, None, "much"),
        (exceptions.ModelTimeoutError("late"), provider.RetryableError, "connection", "the connection broke: late"),
        (httpx2.ReadError("cut"), provider.RetryableError, "connection", "the connection broke: cut"),
        (ConnectionResetError("reset"), provider.RetryableError, "connection", "the connection broke: reset"),
        (KeyError("choices"), provider.RetryableError, "protocol", "the stream is not the API's: KeyError: 'choices'"),
        (RuntimeError(), provider.RetryableError, "", "RuntimeError"),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else None,
)
def test_errors_are_distinguished(error: Exception, raised: type, code: str | None, words: str) -> None:
    failure = langchain_failures.translated(error, name="mine")
    assert type(failure) is raised
    assert failure.code == (messages.CONTEXT_OVERFLOW if code is None else code)
    assert words in str(failure)


def test_provider_error_is_found_inside_wrapped_errors() -> None:
    ours = provider.FatalError("to another origin")
    error = RuntimeError("Connection error.")
    error.__cause__ = ours
    assert langchain_failures.translated(error, name="mine") is ours


@pytest.mark.parametrize(
    ("headers", "after"),
    [
        ({}, None),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "7", "retry_after_ms": "250"}, 0.25),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "9" * 400}, None),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "Fri, 31 Dec 99999 23:59:59 GMT"}, None),
    ],
)
def test_wait_is_read_from_the_headers(headers: dict[str, str], after: float | None) -> None:
    failure = langchain_failures.translated(StatusError(429, **headers), name="mine")
    assert isinstance(failure, provider.RetryableError)
    assert failure.after == after


def test_a_date_to_wait_for_is_so_many_seconds_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    failure = langchain_failures.translated(StatusError(503, retry_after=email.utils.formatdate(now + 60)), name="mine")
    assert isinstance(failure, provider.RetryableError)
    assert failure.after == 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", None),
        ("{", None),
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": ' * 200 + "1" + "}" * 200, None),
        (r'{"a\ud800": "\ud800"}', {"a\ufffd": "\ufffd"}),
        (r'{"a\u0000": ["\u0000"]}', {"a\x00": ["\x00"]}),
    ],
)
def test_arguments_are_an_object_that_can_be_sent(text: str, expected: dict[str, Any] | None) -> None:
    assert tool_calls.arguments(text) == expected


@pytest.mark.parametrize("finish", ["error", "failed", "cancelled", "content_filter", "SAFETY"])
def test_a_stream_that_ends_with_a_failure_is_no_answer(finish: str) -> None:
    with pytest.raises(provider.RejectedError, match=f"the model stopped with {finish}"):
        langchain_answers.Answer(finish=finish).is_complete()


def test_an_integrations_client_is_guarded_where_only_a_private_name_shows_it() -> None:
    import langchain_anthropic
    from tarsy.llm import http, integrations

    chat = langchain_anthropic.ChatAnthropic(model="claude-haiku-4-5", api_key="k")
    integrations._guard_clients(chat)
    assert http.bounded in chat._async_client._client.event_hooks["response"]


async def test_integration_without_tool_support_refuses_tools_at_once_and_answers_without() -> None:
    from langchain_core.language_models import fake_chat_models
    from tarsy.llm import integrations

    chat = fake_chat_models.FakeListChatModel(responses=["It is memory."])
    source = integrations.Integration("mine", chat, model="m")
    prompt = (messages.Message(role="user", text="alert"),)
    asked = ports.Request(tools=(messages.ToolSpec(name="k8s.get"),), messages=prompt)
    with pytest.raises(provider.FatalError, match="FakeListChatModel takes no tools"):
        await anext(source.stream(asked))
    received = [event async for event in source.stream(ports.Request(tools=(), messages=prompt))]
    assert "".join(event.text for event in received if isinstance(event, provider.Text)) == "It is memory."
    assert isinstance(received[-1], provider.Finish)


def test_citation_with_non_text_url_is_kept() -> None:
    from tarsy.llm import openai

    answer = langchain_answers.Answer()
    answer.add_blocks([{"type": "text", "text": "so", "annotations": [{"url": 123, "title": None}], "index": 0}])
    responses = openai.Responses("mine", None, model="m")  # type: ignore[arg-type]
    (grounding,) = responses.native_results(answer)
    assert isinstance(grounding, provider.Grounding)
    assert answers.native_result(grounding).content == "123"


def test_answer_with_too_many_short_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langchain_answers, "_BLOCKS_MAX", 10_000)
    answer = langchain_answers.Answer()
    with pytest.raises(provider.RejectedError, match="longer than 10000 characters"):
        answer.add_blocks([{"index": number, "type": "text"} for number in range(1000)])
    with pytest.raises(provider.RejectedError, match="longer than 10000 characters"):
        langchain_answers.Answer().add_blocks([{"type": "text", "annotations": ["x" * 10_000]}])


def test_answer_with_too_many_short_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langchain_answers, "_ARGUMENTS_MAX", 10_000)
    with pytest.raises(provider.RejectedError, match="longer than 10000 characters"):
        langchain_answers.Answer().add_calls([{"index": number} for number in range(1000)])
