"""Requests to Gemini in their wire format.

The raw parts of each answer are its provider state: thought signatures hold only if parts go back whole, unchanged and
in one content. The text and calls that are stored beside them are for people, and for other providers.

Results of native tools are not passed to other providers: the text of an answer already contains their conclusion, and
a note of ours within it, in the model's own voice, would teach the next model to write such notes itself.

Source: Gemini API documentation, "Function calling", "Thought signatures" and "Thinking".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tarsy.config.model import providers
from tarsy.llm import names
from tarsy.resources import chains
from tarsy.transcript import messages, ports

_NO_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Source: Gemini API documentation, "Thought signatures", on calls that another model made."""
_NATIVE: dict[chains.NativeTool, str] = {
    "google_search": "googleSearch",
    "code_execution": "codeExecution",
    "url_context": "urlContext",
}
_MIXED = {"functionCallingConfig": {"mode": "VALIDATED"}, "includeServerSideToolInvocations": True}
"""The settings for native tools beside functions: the server then shows its own calls, and needs them back."""
_MOST_THOUGHT = {"gemini-2.5-pro": 32_768}
_USUAL_THOUGHT = 24_576
"""Tokens: the most that Gemini 2.5 Flash takes, and what a model that we do not know is asked for."""


def body(
    request: ports.Request,
    *,
    provider: str,
    model: str,
    thinking: providers.Thinking | None,
    wire_names: Mapping[str, str],
) -> dict[str, Any]:
    """One request, as the SDK's models would put it on the wire; `thinking` as the file has it."""
    declarations = [
        {
            "name": wire_names[spec.name],
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
        **({"toolConfig": _MIXED} if is_mixed else {}),
        "generationConfig": _generation_config(model, thinking),
    }


def _generation_config(model: str, thinking: providers.Thinking | None) -> dict[str, Any]:
    """Gemini 2.5 takes a budget, 3 and newer a level; earlier ones do not think."""
    generation = providers.gemini_generation(model)
    if generation is not None and generation < providers.THINKING_SINCE:
        return {}
    if thinking is not None and thinking.budget == 0:  # and then there are no thoughts to include
        return {"thinkingConfig": {"thinking_budget": 0}}
    config: dict[str, Any] = {"include_thoughts": True}
    if thinking is not None and thinking.level is not None:
        config["thinking_level"] = thinking.level.upper()
    elif thinking is not None:
        config["thinking_budget"] = thinking.budget
    elif generation is not None and generation >= providers.LEVELS_SINCE:
        config["thinking_level"] = "HIGH"
    else:
        most = (tokens for prefix, tokens in _MOST_THOUGHT.items() if model.startswith(prefix))
        config["thinking_budget"] = next(most, _USUAL_THOUGHT)
    return {"thinkingConfig": config}


def _contents(conversation: Sequence[messages.Message], *, provider: str) -> Iterator[dict[str, Any]]:
    """The conversation as contents: one for each message, the results of one answer's calls together."""
    results: list[dict[str, Any]] = []
    made: dict[str, dict[str, Any]] = {}
    for message in conversation:
        if message.role == "tool":
            results.append(_result(message, made[message.call_id]))
            continue
        if results:
            yield {"role": "user", "parts": results}
            results = []
        match message.role:
            case "user":
                yield {"role": "user", "parts": [{"text": message.text}]}
            case "assistant":
                parts = _parts(message, provider=provider)
                called = [part["functionCall"] for part in parts if "functionCall" in part]
                made = {ours.id: call for ours, call in zip(message.calls, called, strict=True)}
                yield {"role": "model", "parts": parts}
    if results:
        yield {"role": "user", "parts": results}


def _parts(message: messages.Message, *, provider: str) -> list[dict[str, Any]]:
    """An answer as parts: the provider's own where it gave them, else its text and its calls.

    A call of another provider's has no signature, and Gemini refuses one without: the documented stand-in says so.
    """
    state = message.provider_state
    if state is not None and state.provider == provider and _are_parts_of(message, state.data):
        own: list[dict[str, Any]] = state.data
        return own
    parts: list[dict[str, Any]] = [{"text": message.text}] if message.text else []
    for index, call in enumerate(message.calls):
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": names.wire(call.name), "args": _args(call)}}
        parts.append(part if index else part | {"thoughtSignature": _NO_SIGNATURE})
    return parts


def _are_parts_of(message: messages.Message, state: Any) -> bool:
    """Whether `state` are the parts of that answer: a provider of this name may have had another type then.

    Blocks of other protocols are objects too, and say their type.
    """
    if not isinstance(state, list) or not all(isinstance(part, dict) and "type" not in part for part in state):
        return False
    called = [part["functionCall"] for part in state if "functionCall" in part]
    return len(called) == len(message.calls) and all(isinstance(call, dict) for call in called)


def _args(call: messages.ToolCall) -> dict[str, Any]:
    """Its arguments as an object; {} where they are none, as its result will have told."""
    try:
        loaded = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _result(message: messages.Message, call: Mapping[str, Any]) -> dict[str, Any]:
    response = {"error" if message.failed else "output": message.text, "reference": f"[tool {message.call_id}]"}
    # An answer may leave its calls without ids; their results have none then.
    named = {key: call[key] for key in ("id", "name") if key in call}
    return {"functionResponse": {**named, "response": response}}
