"""Providers that cannot be used: known before any run, and told to whoever asks them all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import leases
from tarsy.config import platform as platforms
from tarsy.llm import registry
from tarsy.transcript import messages, ports

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="alert"),))
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


def settings(**fields: Any) -> platforms.Platform:
    google = {"type": "google", "model": "gemini-2.5-flash", **fields}
    return platforms.Platform.model_validate({"llm_providers": {"google": google}})


@pytest.mark.parametrize(
    ("fields", "environment", "content", "why"),
    [
        ({}, {"GOOGLE_API_KEY": "k"}, None, None),
        ({}, {}, None, "environment variable GOOGLE_API_KEY is not set"),
        ({}, {"GOOGLE_API_KEY": ""}, None, "environment variable GOOGLE_API_KEY is not set"),
        ({"api_key_env": "MINE"}, {"GOOGLE_API_KEY": "k"}, None, "environment variable MINE is not set"),
        ({"api_key_file": "key"}, {}, b"k\n", None),
        ({"api_key_file": "key"}, {"GOOGLE_API_KEY": "k"}, None, "api_key_file: No such file or directory"),
        ({"api_key_file": "key"}, {}, b" \n", "api_key_file: the file is empty"),
        ({"api_key_file": "key"}, {}, b"\xff", "api_key_file: no file of UTF-8 text"),
        ({"api_key_file": "\0"}, {}, None, "api_key_file: no file of UTF-8 text"),
        ({"api_key_env": "AKIAIOSFODNN7EXAMPLE"}, {}, None, "environment variable that api_key_env names is not set"),
    ],
    ids=["env", "no env", "empty env", "other env", "file", "no file", "empty file", "not UTF-8", "NUL", "key"],
)
def test_a_provider_without_a_key_is_unusable_and_says_which(
    tmp_path: Path, fields: dict[str, str], environment: dict[str, str], content: bytes | None, why: str | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    found = settings(
        **{name: str(tmp_path / value) if name == "api_key_file" else value for name, value in fields.items()}
    )
    problems = registry.unusable(found, environment=environment)
    assert problems.keys() == ({"google"} if why else set())
    assert problems.get("google") == why


async def test_an_unusable_provider_answers_every_question_with_why() -> None:
    async with registry.session() as http:
        models = registry.build(settings(), environment={}, http=http)
        with pytest.raises(ports.ModelError) as error:
            await models["google"].ask(REQUEST, SCOPE)
        await models.close()
    why = "the provider cannot be used: environment variable GOOGLE_API_KEY is not set"
    assert error.value.failure.kind == "fatal"
    assert why in error.value.failure.text
    assert (error.value.call.provider, error.value.call.model) == ("google", "gemini-2.5-flash")
    assert len(error.value.call.attempts) == 0, "asked again in vain"


async def test_a_provider_that_the_platform_file_has_lost_says_so() -> None:
    models = registry.Models({}, limits=platforms.Limits())
    with pytest.raises(ports.ModelError, match="the platform file has it no longer") as error:
        await models["gone"].ask(REQUEST, SCOPE)
    assert (error.value.failure.kind, error.value.call.provider) == ("fatal", "gone")


def test_nothing_heavy_is_imported_to_judge_providers() -> None:
    program = (
        "import sys; from tarsy.config import load; from tarsy.llm import registry;"
        "registry.unusable(load.platform_file(None), environment={'GOOGLE_API_KEY': 'k'});"
        "sys.exit('google.genai' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
