"""Refusals of the scripted model, which are Gemini's: of thoughts, native tools and credentials."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from tarsy_dev import model
from tarsy_dev.model import gemini_settings

QUESTION: dict[str, Any] = {"role": "user", "parts": [{"text": "q"}]}
SEARCH: dict[str, Any] = {"googleSearch": {}}
FUNCTION: dict[str, Any] = {"functionDeclarations": [{"name": "f"}]}


@pytest.mark.parametrize(
    ("name", "thinking", "refused"),
    [
        ("gemini-2.0-flash", {"include_thoughts": True}, "Thinking is not enabled for models/gemini-2.0-flash"),
        ("gemini-2.5-pro", {"thinkingBudget": 0}, "Budget 0 is invalid. This model only works in thinking mode."),
        ("gemini-2.5-flash", {"thinking_budget": 24577}, "choose a value between 1 and 24576."),
        ("gemini-2.5-flash", {"thinking_budget": -1, "include_thoughts": True}, None),
        ("gemini-2.5-flash", {"thinking_budget": 0}, None),
        ("gemini-2.5-flash", {"thinking_budget": 0, "include_thoughts": True}, "only enabled when thinking is enabled"),
        ("gemini-2.5-flash", {"thinking_level": "HIGH"}, "Thinking level is not supported for this model."),
        ("gemini-3-pro", {"thinkingLevel": "HIGH", "includeThoughts": True}, None),
        ("gemini-3-pro", {"thinking_budget": 100, "thinking_level": "LOW"}, "only one of thinking budget and"),
    ],
)
def test_each_model_refuses_thoughts_that_it_cannot_have(
    name: str, thinking: dict[str, Any], refused: str | None
) -> None:
    request = gemini_settings.Request.model_validate({"generationConfig": {"thinkingConfig": thinking}})
    refusal = gemini_settings.refusal(name, request, is_vertex=False)
    assert refusal is None if refused is None else refused in (refusal or "")


@pytest.mark.parametrize(
    ("name", "is_vertex", "shows", "refused"),
    [
        ("gemini-2.5-flash", False, True, "Tool use with function calling is unsupported"),
        ("gemini-3-pro", False, False, "Please enable tool_config.include_server_side_tool_invocations"),
        ("gemini-3-pro", False, True, None),
        ("gemini-3-pro", True, True, "Cannot find field."),
        ("gemini-3-pro", True, False, "Multiple tools are supported only when they are all search tools."),
    ],
)
def test_native_tools_beside_functions_are_for_gemini_3_which_may_show_its_calls(
    name: str, is_vertex: bool, shows: bool, refused: str | None
) -> None:
    config = {"includeServerSideToolInvocations": True} if shows else {}
    request = gemini_settings.Request.model_validate({"tools": [SEARCH, FUNCTION], "toolConfig": config})
    refusal = gemini_settings.refusal(name, request, is_vertex=is_vertex)
    assert refusal is None if refused is None else refused in (refusal or "")
    for alone in ([SEARCH, {"codeExecution": {}}], [FUNCTION]):
        assert gemini_settings.refusal(name, gemini_settings.Request(tools=alone), is_vertex=is_vertex) is None


CALLED = {"toolCall": {"id": "1", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}}
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}}


@pytest.mark.parametrize(
    ("parts", "refused"),
    [
        ([CALLED], "each tool call is followed"),
        ([CALLED | {"thoughtSignature": "AAAA"}, {"toolResponse": CALLED["toolCall"]}], "Corrupted thought signature."),
        ([CALLED, {"toolResponse": CALLED["toolCall"]}], None),
        ([CODE], "each executable code is followed"),
        ([{"codeExecutionResult": {"outcome": "OUTCOME_OK"}}, CODE], "each executable code is followed"),
        ([CODE, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}], None),
    ],
)
async def test_content_executed_by_server_must_be_sent_back_complete(
    parts: list[dict[str, Any]], refused: str | None
) -> None:
    body = {"contents": [QUESTION, {"role": "model", "parts": parts}, QUESTION]}
    async with (
        model.serve(model.answers("never", "a")) as server,
        aiohttp.ClientSession(headers={"x-goog-api-key": "k"}) as session,
        session.post(f"{server.url}/v1/models/gemini-3-pro:generateContent", json=body) as response,
    ):
        answer = await response.json()
        status = response.status
    assert (status, refused in answer["error"]["message"] if refused else None) == (
        (400, True) if refused else (200, None)
    )
