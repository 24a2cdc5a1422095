"""Answers of Gemini, chunk by chunk: native tools, and whatever else may come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, strategies
from tarsy.llm import gemini_answers, provider
from tarsy.transcript import messages

JSON = dict[str, Any]


def chunk(*parts: JSON, finish: str | None = None, **fields: Any) -> JSON:
    candidate = {"content": {"role": "model", "parts": list(parts)}, **fields}
    made = {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}
    types.GenerateContentResponse.model_validate(made)  # the SDK knows what we think that it sends
    return made


def read(chunks: Iterable[JSON]) -> list[provider.StreamEvent]:
    reading = gemini_answers.Answer({})
    events = [event for raw_chunk in chunks for event in reading.add(json.loads(json.dumps(raw_chunk)))]
    return [*events, *reading.end()]


def code(text: str) -> JSON:
    return {"executableCode": {"code": text, "language": "PYTHON"}}


def outcome(output: str | None, how: str = "OUTCOME_OK") -> JSON:
    return {"codeExecutionResult": {"outcome": how} | ({} if output is None else {"output": output})}


def searched(*queries: str, **titles: str) -> JSON:
    web = [{"web": {"title": title, "uri": f"https://{host}"}} for host, title in titles.items()]
    return {"groundingMetadata": {"webSearchQueries": list(queries), "groundingChunks": web}}


OK = {"language": "python", "outcome": "OUTCOME_OK"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([code("1+1"), outcome("2\n")], [provider.CodeExecution("1+1", "2\n", **OK)]),
        (
            [code("a"), outcome(None), {"text": "so"}, code("b"), outcome("no", "OUTCOME_FAILED")],
            [
                provider.CodeExecution("a", "", **OK),
                provider.Text("so"),
                provider.CodeExecution("b", "no", "python", "OUTCOME_FAILED"),
            ],
        ),
        (
            [code("a"), code("b"), outcome("2")],
            [provider.CodeExecution("a", "", "python"), provider.CodeExecution("b", "2", **OK)],
        ),
        ([code("a"), {"text": "so"}], [provider.Text("so"), provider.CodeExecution("a", "", "python")]),
        ([outcome("2")], [provider.CodeExecution("", "2", outcome="OUTCOME_OK")]),
    ],
    ids=["one", "two, one fails", "one without a result", "the last without a result", "a result without code"],
)
@pytest.mark.parametrize("together", [True, False])
def test_executed_code_and_its_result_form_one_event(
    parts: list[JSON], expected: list[provider.StreamEvent], together: bool
) -> None:
    chunks = [chunk(*parts)] if together else [chunk(part) for part in parts]
    *events, finish = read([*chunks, chunk(finish="STOP")])
    assert events == expected
    assert finish == provider.Finish(parts)


def test_repeated_search_results_appear_once() -> None:
    some, more = searched("oom"), searched("oom", "cgroup", a="A", b="B")
    chunks = [chunk({"text": "It "}, **some), chunk({"text": "is."}, **more), chunk(**more, finish="STOP")]
    _, _, grounding, finish = read(chunks)
    sources = (provider.Source("A", "https://a"), provider.Source("B", "https://b"))
    assert grounding == provider.Grounding("google_search", sources, ("oom", "cgroup"))
    assert finish == provider.Finish([{"text": "It "}, {"text": "is."}])


def test_unreadable_pages_are_reported_with_reason() -> None:
    urls = {"https://a": "SUCCESS", "https://b": "PAYWALL"}
    metadata = [{"retrievedUrl": url, "urlRetrievalStatus": f"URL_RETRIEVAL_STATUS_{how}"} for url, how in urls.items()]
    (grounding, _) = read([chunk(urlContextMetadata={"urlMetadata": metadata}, finish="STOP")])
    assert isinstance(grounding, provider.Grounding)
    assert grounding.tool == "url_context"
    assert grounding.sources == (
        provider.Source("", "https://a"),
        provider.Source("", "https://b", "URL_RETRIEVAL_STATUS_PAYWALL"),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        {"groundingMetadata": {}},
        {"groundingMetadata": {"groundingChunks": [{"retrievedContext": {"uri": "gs://a"}}, {"web": {"title": "A"}}]}},
        {"urlContextMetadata": {}},
        {"urlContextMetadata": {"urlMetadata": [{"urlRetrievalStatus": "URL_RETRIEVAL_STATUS_ERROR"}]}},
    ],
)
def test_metadata_that_say_nothing_tell_nothing(metadata: JSON) -> None:
    assert [type(event) for event in read([chunk({"text": "so"}, **metadata, finish="STOP")])] == [
        provider.Text,
        provider.Finish,
    ]


def test_results_of_server_side_tools_are_sent_back_unchanged() -> None:
    parts: list[JSON] = [
        {
            "toolCall": {"id": "1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["q"]}},
            "thoughtSignature": "cw==",
        },
        {"toolResponse": {"id": "1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"search_suggestions": "<p>"}}},
        code("a") | {"thoughtSignature": "cw=="},
        outcome("2"),
        {"functionCall": {"id": "2", "name": "k8s__get", "args": {}}, "thoughtSignature": "cw=="},
    ]
    assert read([chunk(part) for part in parts] + [chunk(finish="STOP")])[-1] == provider.Finish(parts)


def test_tokens_that_native_tools_read_are_input() -> None:
    usage = {"promptTokenCount": 10, "toolUsePromptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 17}
    assert read([{"usageMetadata": usage}]) == [
        provider.Usage(messages.Usage(input_tokens=15, output_tokens=2, total_tokens=17))
    ]


def test_response_model_and_id_are_reported_once_and_only_as_text() -> None:
    named = {"modelVersion": "gemini-2.5-flash-09-2025", "responseId": "Zx3k\x00"}
    events = read([named, named, {"modelVersion": ["x"], "responseId": 5}, named | {"responseId": "Y" * 1000}])
    assert events == [
        provider.Response("gemini-2.5-flash-09-2025", "Zx3k\ufffd"),
        provider.Response(),
        provider.Response("gemini-2.5-flash-09-2025", "Y" * provider.RESPONSE_NAME_MAX),
    ]


def test_uncounted_parts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemini_answers, "_SIZE_MAX", 1000)
    unknown = chunk({"thoughtSignature": "cw" * 100})
    with pytest.raises(provider.RejectedError, match="longer than 1000 characters"):
        read([unknown] * 100)


@pytest.mark.parametrize(
    "made",
    [
        lambda number: chunk({"text": "a"}, {"text": f"{number}"}),
        lambda number: chunk(**searched(**{f"a{number}": "A", f"b{number}": "B"})),
        lambda number: chunk(**searched(f"a{number}", f"b{number}")),
        lambda number: chunk(urlContextMetadata={"urlMetadata": [{"retrievedUrl": f"https://{number}"}]}),
    ],
    ids=["parts", "sources", "queries", "pages"],
)
def test_an_answer_of_many_parts_is_refused(made: Callable[[int], JSON], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemini_answers, "_PARTS_MAX", 100)
    with pytest.raises(provider.RejectedError, match="more than 100 parts"):
        read(map(made, range(101)))


EVERYTHING = chunk(
    {"text": "It", "thought": True},
    {"functionCall": {"name": "f", "args": {"a": 1}}},
    code("a"),
    outcome("2"),
    finish="STOP",
    **searched("oom", a="A"),
    urlContextMetadata={
        "urlMetadata": [{"retrievedUrl": "https://a", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_ERROR"}]
    },
) | {"usageMetadata": {"promptTokenCount": 1}, "promptFeedback": {}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


def with_odd(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """The value with something odd at the end of that way."""
    if not path:
        return odd
    copied = value.copy()
    copied[path[0]] = with_odd(value[path[0]], path[1:], odd)
    return copied


@pytest.mark.parametrize("odd", [None, True, 5, -1.5, "x", "", [], {}, [None], [[]], {"x": [5]}], ids=repr)
def test_any_value_in_an_answer_is_read_or_refused(odd: Any) -> None:
    for path in places(EVERYTHING):
        try:
            events = read([with_odd(EVERYTHING, path, odd)])
        except (provider.ProviderError, ValueError):  # pydantic's are ValueErrors, which the stream's reader expects
            continue
        assert all(isinstance(event, provider.StreamEvent) for event in events), path


@given(
    strategies.lists(strategies.sampled_from([{"text": "a"}, code("c"), outcome("r"), {"functionCall": {"name": "f"}}]))
)
def test_result_does_not_depend_on_the_parts_of_chunks(parts: list[JSON]) -> None:
    end = chunk(finish="STOP")
    assert read([chunk(*parts), end]) == read([*map(chunk, parts), end])
