"""`max_output_tokens` of a provider on the wire of each SDK, over loopback."""

from __future__ import annotations

from typing import Any

import pytest
from support import leases
from tarsy.config.model import platforms
from tarsy.llm import registry
from tarsy.masking import known_secrets
from tarsy.transcript import messages, ports
from tarsy_dev import model

REQUEST = ports.Request(messages=(messages.Message(role="user", text="Why?"),), tools=())
KEY = {"SOME_KEY": "k"}


async def body(fields: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to a provider with these settings."""
    async with model.serve(model.answers("Done.")) as server, registry.session() as http:
        address = {"base_url": server.url if fields["type"] in ("google", "anthropic") else f"{server.url}/v1"}
        where = {"options": address} if fields["type"] == "langchain" else address
        platform = platforms.Platform.model_validate(
            {
                "defaults": {"llm_provider": "mine"},
                "llm_providers": {"mine": {"api_key_env": "SOME_KEY", **where, **fields}},
            }
        )
        models = registry.build(platform, environment=KEY, http=http, secrets=known_secrets.KnownSecrets())
        answer = await models["mine"].ask(REQUEST, leases.SCOPE)
        assert answer.message.text == "Done."
        await models.shared["mine"].close()
    sent_body: dict[str, Any] = server.requests[0].body
    return sent_body


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"type": "google", "model": "gemini-2.5-flash"}, {"maxOutputTokens": 4000, "thinking_budget": 2000}),
        ({"type": "google", "model": "gemini-3-pro-preview"}, {"maxOutputTokens": 4000}),
        ({"type": "anthropic", "model": "claude-sonnet-4-5"}, {"max_tokens": 4000}),
        ({"type": "openai", "model": "gpt-5.1", "api": "responses"}, {"max_output_tokens": 4000}),
        ({"type": "openai", "model": "qwen3"}, {"max_tokens": 4000}),
        ({"type": "xai", "model": "grok-4"}, {"max_tokens": 4000}),
        ({"type": "langchain", "model_provider": "openai", "model": "m"}, {"max_completion_tokens": 4000}),
    ],
    ids=lambda value: "-".join(map(str, value.values())),
)
async def test_each_provider_states_its_limit_in_each_request(fields: dict[str, Any], sent: dict[str, int]) -> None:
    request_body = await body({**fields, "max_output_tokens": 4000})
    config = request_body.get("generationConfig", {})
    request_body |= config | config.get("thinkingConfig", {})
    names = ("maxOutputTokens", "max_tokens", "max_output_tokens", "max_completion_tokens", "thinking_budget")
    assert {name: request_body[name] for name in names if name in request_body} == sent
    without = await body(fields)
    assert fields["type"] == "anthropic" or not {"max_tokens", *sent} & {*without, *without.get("generationConfig", {})}


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "anthropic", "model": "claude-sonnet-4-5", "thinking": {"budget": 16_384}},
        {"type": "google", "model": "gemini-2.5-flash", "thinking": {"budget": 4000}, "max_output_tokens": 4000},
    ],
)
def test_thinking_budget_leaves_tokens_for_the_answer(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leaves no tokens for the answer"):
        platforms.Platform.model_validate({"llm_providers": {"mine": fields}})


async def test_integration_option_for_output_limit_is_refused_beside_max_output_tokens() -> None:
    options = {"max_tokens": 7, "base_url": "http://127.0.0.1:9"}
    settings = {"type": "langchain", "model": "m", "model_provider": "openai", "api_key_env": "SOME_KEY"}
    platform = platforms.Platform.model_validate(
        {"llm_providers": {"mine": {**settings, "options": options, "max_output_tokens": 4000}}}
    )
    async with registry.session() as http:
        models = registry.build(platform, environment=KEY, http=http, secrets=known_secrets.KnownSecrets())
        with pytest.raises(ports.ModelError, match=r"options\.max_tokens is the same setting"):
            await models["mine"].ask(REQUEST, leases.SCOPE)
