"""Requests to Gemini in their wire format.

The raw parts of each answer are its provider state: thought signatures are valid only if parts go back complete,
unchanged and in one content. The stored text and calls are for people and for other providers.

Results of native tools are not passed to other providers: the text of an answer already contains their conclusion, and
a note of ours within it, as if the model had written it, would teach the next model to write such notes itself.

Source: Gemini API documentation, "Function calling", "Thought signatures" and "Thinking".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tarsy.config.model import providers
from tarsy.llm import tool_calls
from tarsy.resources import chains
from tarsy.transcript import messages, ports

_NO_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Source: Gemini API documentation, "Thought signatures", on calls that another model made."""
_NATIVE: dict[chains.NativeTool, str] = {
    "google_search": "googleSearch",
    "code_execution": "codeExecution",
    "url_context": "urlContext",
}
_MIXED_TOOLS = {"functionCallingConfig": {"mode": "VALIDATED"}, "includeServerSideToolInvocations": True}
"""The settings for native tools together with functions: the server then returns its own calls, and needs them back."""
_THINKING_MAX = {"gemini-2.5-pro": 32_768}
_THINKING_DEFAULT = 24_576
"""Tokens for thinking: the limit of Gemini 2.5 Flash, and the budget for unknown models."""


def body(
    request: ports.Request,
    *,
    provider: str,
    model: str,
    thinking: providers.Thinking | None,
    max_output_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the body of a request as the SDK's models would write it.

    `thinking` and `max_output_tokens` are settings of the platform file.
    """
    declarations = [
        {
            "name": tool_calls.wire_name(spec.name),
            "description": spec.description,
            **({"parameters_json_schema": spec.parameters} if spec.parameters else {}),
        }
        for spec in request.tools
    ]
    tools: list[dict[str, Any]] = [{_NATIVE[tool]: {}} for tool in request.native_tools]
    is_mixed = bool(tools and declarations)
    if declarations:
        tools.append({"functionDeclarations": declarations})
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    return {
        "contents": list(_contents(request.messages, provider=provider)),
        **({"systemInstruction": {"parts": [{"text": system}], "role": "user"}} if system else {}),
        **({"tools": tools} if tools else {}),
        **({"toolConfig": _MIXED_TOOLS} if is_mixed else {}),
        "generationConfig": {
            **_thinking_config(model, thinking, max_output_tokens),
            **({} if max_output_tokens is None else {"maxOutputTokens": max_output_tokens}),
        },
    }


def _thinking_config(model: str, thinking: providers.Thinking | None, max_output_tokens: int | None) -> dict[str, Any]:
    """Return the settings for thinking: Gemini 2.5 takes a budget, 3 and newer a level; earlier models do not think.

    A budget that the platform file does not set leaves at least half of `max_output_tokens` for the answer.
    """
    generation = providers.gemini_generation(model)
    if generation is not None and generation < providers.THINKING_SINCE:
        return {}
    if thinking is not None and thinking.budget == 0:  # without thoughts to include
        return {"thinkingConfig": {"thinking_budget": 0}}
    config: dict[str, Any] = {"include_thoughts": True}
    if thinking is not None and thinking.level is not None:
        config["thinking_level"] = thinking.level.upper()
    elif thinking is not None:
        config["thinking_budget"] = thinking.budget
    elif generation is not None and generation >= providers.LEVELS_SINCE:
        config["thinking_level"] = "HIGH"
    else:
        most = (tokens for prefix, tokens in _THINKING_MAX.items() if model.startswith(prefix))
        budget = next(most, _THINKING_DEFAULT)
        config["thinking_budget"] = budget if max_output_tokens is None else min(budget, max_output_tokens // 2)
    return {"thinkingConfig": config}


def _contents(conversation: Sequence[messages.Message], *, provider: str) -> Iterator[dict[str, Any]]:
    """Yield the conversation as contents: one for each message, with the results of one answer's calls together."""
    results: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for message in conversation:
        if message.role == "tool":
            results.append(_result(message, calls[message.call_id]))
            continue
        if results:
            yield {"role": "user", "parts": results}
            results = []
        match message.role:
            case "user":
                yield {"role": "user", "parts": [{"text": message.text}]}
            case "assistant":
                parts = _parts(message, provider=provider)
                sent = [part["functionCall"] for part in parts if "functionCall" in part]
                calls = {call.id: part for call, part in zip(message.calls, sent, strict=True)}
                yield {"role": "model", "parts": parts}
    if results:
        yield {"role": "user", "parts": results}


def _parts(message: messages.Message, *, provider: str) -> list[dict[str, Any]]:
    """Return an answer as parts: the provider's own if it gave them, else its text and its calls.

    A call of another provider has no signature. Gemini refuses calls without one, so it gets the documented stand-in.
    """
    state = message.provider_state
    if state is not None and state.provider == provider and _are_parts_of(message, state.data):
        own: list[dict[str, Any]] = state.data
        return own
    parts: list[dict[str, Any]] = [{"text": message.text}] if message.text else []
    for index, call in enumerate(message.calls):
        function = {
            "id": call.id,
            "name": tool_calls.wire_name(call.name),
            "args": tool_calls.json_object(call.arguments) or {},
        }
        part: dict[str, Any] = {"functionCall": function}
        parts.append(part if index else part | {"thoughtSignature": _NO_SIGNATURE})
    return parts


def _are_parts_of(message: messages.Message, state: Any) -> bool:
    """Return whether `state` are the parts of that answer: a provider of this name may have had another type before.

    Blocks of other protocols are objects too, with a `type`.
    """
    if not isinstance(state, list) or not all(isinstance(part, dict) and "type" not in part for part in state):
        return False
    called = [part["functionCall"] for part in state if "functionCall" in part]
    return len(called) == len(message.calls) and all(isinstance(call, dict) for call in called)


def _result(message: messages.Message, call: Mapping[str, Any]) -> dict[str, Any]:
    response = {"error" if message.failed else "output": message.text, "reference": f"[tool {message.call_id}]"}
    # Calls may have no ids; then their results have none either.
    named = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**named, "response": response}}
