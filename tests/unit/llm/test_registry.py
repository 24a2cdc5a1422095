"""Unusable providers: known before any run, and reported to every caller that asks them all the same."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest
from support import leases
from support.masking import NO_SECRETS
from tarsy.config.load import loader
from tarsy.config.model import platforms
from tarsy.llm import credentials, provider, registry
from tarsy.process.runtime import versions
from tarsy.telemetry import component_states
from tarsy.transcript import messages, ports
from tarsy_dev.model import tokens

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="alert"),))
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


def settings(**fields: Any) -> platforms.Platform:
    google = {"type": "google", "model": "gemini-2.5-flash", **fields}
    return platforms.Platform.model_validate({"llm_providers": {"google": google}})


def platform_with(kind: str, **fields: Any) -> platforms.Platform:
    return platforms.Platform.model_validate({"llm_providers": {"mine": {"type": kind, **fields}}})


@pytest.mark.parametrize(
    ("fields", "environment", "content", "why"),
    [
        ({}, {"GOOGLE_API_KEY": "k"}, None, None),
        ({}, {}, None, "environment variable GOOGLE_API_KEY is not set"),
        ({"api_key_env": "MINE"}, {"GOOGLE_API_KEY": "k"}, None, "environment variable MINE is not set"),
        ({"api_key_file": "key"}, {}, b"k\n", None),
        ({"api_key_file": "key"}, {"GOOGLE_API_KEY": "k"}, None, "api_key_file: No such file or directory"),
        ({"api_key_file": "key"}, {}, b" \n", "api_key_file: the file is empty"),
        ({"api_key_file": "key"}, {}, b"\xff", "api_key_file: no file of UTF-8 text"),
        ({}, {"GOOGLE_API_KEY": " k\n"}, None, None),
        ({}, {"GOOGLE_API_KEY": "k\ny"}, None, "api_key_env: the key has characters that no key has"),
        ({}, {"GOOGLE_API_KEY": "k\u2011y"}, None, "api_key_env: the key has characters that no key has"),
        ({"api_key_file": "\0"}, {}, None, "api_key_file: no name of a file"),
        ({"api_key_env": "AKIAIOSFODNN7EXAMPLE"}, {}, None, "environment variable that api_key_env names is not set"),
    ],
)
def test_provider_without_key_is_unusable_and_names_the_missing_key(
    tmp_path: Path, fields: dict[str, str], environment: dict[str, str], content: bytes | None, why: str | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    platform = settings(
        **{name: str(tmp_path / value) if name == "api_key_file" else value for name, value in fields.items()}
    )
    problems = registry.unusable(platform, environment=environment)
    assert problems.keys() == ({"google"} if why else set())
    assert problems.get("google") == why


async def failure(platform: platforms.Platform, name: str, **environment: str) -> ports.ModelError:
    """The error that a provider brings when it is asked."""
    async with registry.session() as http:
        models = registry.build(platform, environment=environment, http=http, secrets=NO_SECRETS)
        with pytest.raises(ports.ModelError) as error:
            await models[name].ask(REQUEST, SCOPE)
        for model in models.shared.values():
            await model.close()
    return error.value


async def test_an_unusable_provider_answers_every_question_with_why() -> None:
    error = await failure(settings(), "google")
    why = "the provider cannot be used: environment variable GOOGLE_API_KEY is not set"
    assert error.failure.kind == "fatal"
    assert why in error.failure.text
    assert (error.call.provider, error.call.model) == ("google", "gemini-2.5-flash")
    assert len(error.call.attempts) == 0, "asked again in vain"


async def test_provider_removed_from_platform_file_is_reported_as_removed() -> None:
    models = registry.Models({}, settings=platforms.Platform())
    with pytest.raises(ports.ModelError, match="the platform file has it no longer") as error:
        await models["gone"].ask(REQUEST, SCOPE)
    assert (error.value.failure.kind, error.value.call.provider) == ("fatal", "gone")


@pytest.mark.parametrize("kind", registry.TYPES)
def test_missing_package_is_reported_before_any_run(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    provider_type = registry.TYPES[kind]
    monkeypatch.setitem(registry.TYPES, kind, replace(provider_type, requires="not_there.at_all"))
    platform = platform_with(kind, model="m", **({"model_provider": "openai"} if kind == "langchain" else {}))
    why = f"the package not-there-at-all is not installed: install tarsy[{provider_type.extra}]"
    assert registry.unusable(platform, environment={}) == {"mine": why}


@pytest.mark.parametrize(
    ("model_provider", "package"),
    [
        ("mistralai", "langchain-mistralai"),
        ("bedrock_converse", "langchain-aws"),
        ("no such", "langchain-no such"),
    ],
)
def test_the_package_of_an_integration_is_missed_too(model_provider: str, package: str) -> None:
    problems = registry.unusable(platform_with("langchain", model="m", model_provider=model_provider), environment={})
    assert problems == {"mine": f"the package {package} of model_provider is not installed: install it"}


def test_a_server_that_wants_no_key_is_usable_without() -> None:
    assert registry.unusable(platform_with("openai", model="m", api_key_env=None), environment={}) == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"no_such_option": 1}, "options: ChatOpenAI has no no_such_option"),
        ({"temperature": "hot-secret"}, "temperature: Input should be a valid number"),
        ({"n": 0}, "n must be at least 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:WARNING! no_such_option is not default parameter")  # LangChain's, before we say no
async def test_options_that_an_integration_does_not_take_make_it_unusable(options: dict[str, Any], why: str) -> None:
    platform = platform_with("langchain", model="m", model_provider="openai", api_key_env="KEY", options=options)
    error = await failure(platform, "mine", KEY="k")
    assert error.failure.kind == "fatal"
    assert why in error.failure.text
    assert "hot-secret" not in error.failure.text


def test_unused_built_in_providers_are_not_logged(tmp_path: Path) -> None:
    def unusable_configured(text: str) -> set[str]:
        file = tmp_path / "platform.yaml"
        file.write_text(text)
        loaded = loader.platform_file(file)
        unusable = registry.unusable(loaded, environment={})
        assert {"google-default", "openai-default", "anthropic-default", "xai-default"} <= unusable.keys()
        return {name for name in unusable if registry.is_configured(name, loaded)}

    assert unusable_configured("") == {"google-default"}
    assert unusable_configured("defaults: {fallback_providers: [xai-default]}") == {"google-default", "xai-default"}
    assert unusable_configured("agents: {A: {llm_provider: openai-default}}") == {"google-default", "openai-default"}
    assert unusable_configured("defaults: {llm_provider: openai-default}") == {"openai-default"}
    changed = "llm_providers: {anthropic-default: {type: anthropic, model: other}, mine: {type: xai, model: m}}"
    assert unusable_configured(changed) == {"google-default", "anthropic-default", "mine"}


class Source:
    """A provider that answers."""

    model = "m"

    def __init__(self) -> None:
        self.closings = 0

    async def stream(self, _: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        yield provider.Text("Yes.")
        yield provider.Finish(None)

    async def close(self) -> None:
        self.closings += 1


async def test_a_provider_that_a_chain_names_is_built_once_when_it_is_first_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[tuple[str, str]] = []
    source = Source()
    go_on = threading.Event()

    def build(name: str, *_: object, **__: object) -> Source:
        go_on.wait(60)
        built.append((name, threading.current_thread().name))
        return source

    monkeypatch.setattr("tarsy.llm.openai.build", build)
    platform = platform_with("openai", model="m", api_key_env=None)
    async with registry.session() as http:
        models = registry.build(platform, environment={}, http=http, secrets=NO_SECRETS)
        assert built == []
        impatient, *others = [asyncio.create_task(models["mine"].ask(REQUEST, SCOPE)) for _ in range(3)]
        await asyncio.sleep(0)
        impatient.cancel()
        go_on.set()
        assert [answer.message.text for answer in await asyncio.gather(*others)] == ["Yes.", "Yes."]
        for model in models.shared.values():
            await model.close()
    ((name, thread),) = built
    assert (name, thread == threading.main_thread().name) == ("mine", False)
    assert source.closings == 1


def test_unnamed_integration_is_not_imported() -> None:
    program = (
        "import asyncio, sys; from tarsy.config.load import loader; from tarsy.llm import registry; "
        "from tarsy.masking import known_secrets\n"
        "async def main():\n"
        "    async with registry.session() as http:\n"
        "        models = registry.build(loader.platform_file(None), environment={'GOOGLE_API_KEY': 'k'}, http=http,\n"
        "            secrets=known_secrets.KnownSecrets())\n"
        "        for one in models.shared.values():\n"
        "            await one.close()\n"
        "asyncio.run(main())\n"
        "assert 'google.genai' in sys.modules\n"
        "sys.exit(', '.join({'langchain_core', 'langchain', 'openai', 'anthropic'} & sys.modules.keys()) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_checking_providers_imports_no_sdk() -> None:
    program = (
        "import sys; from tarsy.config.load import loader; from tarsy.llm import registry; from tarsy.cli import main;"
        "keys = dict.fromkeys(['GOOGLE_API_KEY', 'OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'XAI_API_KEY'], 'k');"
        "registry.unusable(loader.platform_file(None), environment=keys);"
        "sys.exit(len({'google.genai', 'langchain_core', 'openai', 'anthropic'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


ACCOUNT = "a key file"
"""Stands for a good one."""


UNKNOWN = "-----BEGIN PRIVATE KEY-----\nMBICAQAwBQYDKgMEBAYEBGFiY2Q=\n-----END PRIVATE KEY-----\n"
"""Key of an algorithm that no library knows."""
BROKEN = "-----BEGIN PRIVATE KEY-----\nMBICAQAwBQYDK2VxBAYEBGFiY2Q=\n-----END PRIVATE KEY-----\n"
"""Said to be of Ed448, and too short for it: OpenSSL has no word for that."""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (ACCOUNT, None),
        (None, "credentials_file: No such file or directory"),
        ("{", "credentials_file: no file of JSON"),
        (b"\xff", "credentials_file: no file of JSON"),
        ("[]", "credentials_file: not an object of JSON"),
        (
            {"type": "authorized_user"},
            "credentials_file: not the key of a service account, whose type is service_account",
        ),
        ({"client_email": None}, "credentials_file: it has no client_email"),
        (
            {"private_key": "-----BEGIN PRIVATE KEY-----\nsecret"},
            "credentials_file: its private_key is not an RSA key in PEM",
        ),
        ({"private_key": UNKNOWN}, "credentials_file: its private_key is not an RSA key in PEM"),
        ({"private_key": BROKEN}, "credentials_file: its private_key is not an RSA key in PEM"),
        ({"token_uri": None}, "credentials_file: it has no token_uri"),
        ({"token_uri": "file:///secret"}, "credentials_file: its token_uri is not an http or https URL"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_key_file_makes_vertex_ai_unusable_and_its_content_is_not_shown(
    tmp_path: Path, content: str | bytes | dict[str, Any] | None, why: str | None
) -> None:
    path = tmp_path / "key.json"
    if isinstance(content, dict) or content is ACCOUNT:
        tokens.account(
            path, **{"token_uri": "http://127.0.0.1:1/token", **(content if isinstance(content, dict) else {})}
        )
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    platform = vertex(credentials_file=str(path))
    assert registry.unusable(platform, environment={}) == ({} if why is None else {"vertex": why})


def vertex(**fields: Any) -> platforms.Platform:
    described = {"type": "vertexai", "model": "gemini-2.5-flash", **fields}
    return platforms.Platform.model_validate({"llm_providers": {"vertex": described}})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "GOOGLE_APPLICATION_CREDENTIALS: No such file or directory"),
        ("{", "GOOGLE_APPLICATION_CREDENTIALS: no file of JSON"),
        ('{"type": "external_account"}', None),
    ],
)
def test_the_environments_own_file_is_looked_at_where_none_is_set(
    tmp_path: Path, content: str | None, why: str | None
) -> None:
    path = tmp_path / "adc.json"
    if content is not None:
        path.write_text(content)
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    assert registry.unusable(vertex(), environment=environment) == ({} if why is None else {"vertex": why})
    assert registry.unusable(vertex(), environment={}) == {}, "the machine may give tokens"
    tokens.account(tmp_path / "key.json", token_uri="http://127.0.0.1:1/token")
    named = vertex(credentials_file=str(tmp_path / "key.json"))
    assert registry.unusable(named, environment=environment) == {}


async def test_a_proxy_that_only_openais_sdk_knows_of_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_PROXY", "http://me:hunter2@127.0.0.1:9")
    async with registry.session() as http:
        for kind in ("openai", "xai"):
            provider_settings = platform_with(kind, model="m", base_url="http://127.0.0.1:9/v1").llm_providers["mine"]
            made = importlib.import_module(f"tarsy.llm.{kind}").build("mine", provider_settings, key="k", session=http)
            assert made.chat.openai_proxy is None


async def test_a_provider_that_could_not_be_built_is_tried_again_with_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, key = Source(), tmp_path / "key"
    monkeypatch.setattr("tarsy.llm.openai.build", lambda *_, **__: source)
    async with registry.session() as http:
        models = registry.build(
            platform_with("openai", model="m", api_key_file=str(key)), environment={}, http=http, secrets=NO_SECRETS
        )
        with pytest.raises(ports.ModelError, match="api_key_file: No such file"):
            await models["mine"].ask(REQUEST, SCOPE)
        key.write_text("k")
        assert (await models["mine"].ask(REQUEST, SCOPE)).message.text == "Yes."
        monkeypatch.setattr("tarsy.llm.xai.build", lambda *_, **__: 1 // 0)
        models = registry.build(
            platform_with("xai", model="m", api_key_file=str(key)), environment={}, http=http, secrets=NO_SECRETS
        )
        with pytest.raises(ports.ModelError, match="by zero"):
            await models["mine"].ask(REQUEST, SCOPE)
    (message,) = caplog.messages
    assert message.startswith("llm_providers.mine cannot be used: ZeroDivisionError: ")


async def test_sdk_error_about_settings_is_reported_without_the_given_values(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(pydantic.BaseModel):
        proxy: str

        @pydantic.field_validator("proxy")
        @classmethod
        def _refuse(cls, value: str) -> str:
            raise ValueError(f"not both.\nReceived: {value}")

    monkeypatch.setattr("tarsy.llm.xai.build", lambda *_, **__: Settings(proxy="http://me:hunter2@proxy"))
    error = await failure(platform_with("xai", model="m"), "mine", XAI_API_KEY="k")
    assert error.failure.text.endswith("proxy: Value error, not both.")


async def test_provider_facts_have_usage_and_no_outside_text() -> None:
    own_address = "https://llm.example/v1?key=canary"
    paid: dict[str, Any] = {"price": {"input": 1, "output": 2}, "requests_per_minute": 9}
    settings = platforms.Platform.model_validate(
        {
            "llm_providers": {
                "own": {"type": "openai", "model": "m", "base_url": own_address, **paid},
                "lost": {"type": "google", "model": "g"},
            }
        }
    )
    models = registry.Models(
        {name: registry.SharedProvider(provider=provider.Unusable("m", "no key")) for name in ("own", "lost")},
        settings=settings,
    )
    codes = {"429": "429", "rate_limit_error": "rate_limit_error", "https://x.example/?key=canary": "", "x" * 65: ""}
    for code, reported_code in codes.items():
        models["own"].state.change("failing")
        models["own"].state.failure = messages.Failure(kind="fatal", text="canary", code=code)
        own, lost = models.facts({"lost": "environment variable GOOGLE_API_KEY is not set"})
        assert isinstance(own.detail, component_states.Provider)
        assert (own.name, own.state) == ("own", "failing")
        assert own.detail.failure == component_states.Failure(kind="fatal", code=reported_code)
    assert isinstance(own.detail, component_states.Provider)
    assert isinstance(lost.detail, component_states.Provider)
    assert own.detail.base_url == "https://llm.example/v1?[MASKED]"
    assert (own.detail.price, own.detail.limits["requests_per_minute"]) == ({"input": 1.0, "output": 2.0}, 9)
    assert (lost.state, lost.detail.problem) == ("unusable", "environment variable GOOGLE_API_KEY is not set")
    assert "canary" not in f"{own} {lost}"
    models["lost"].state.change("answering")  # the key came later
    assert [fact.state for fact in models.facts({"lost": "no key"})] == ["failing", "answering"]


def no_tools(*_: object) -> ports.Toolbox:
    raise NotImplementedError


async def test_new_file_keeps_unchanged_clients_and_closes_others_after_their_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Source] = []

    def build(*_: Any, **__: Any) -> Source:
        made.append(Source())
        return made[-1]

    monkeypatch.setattr("tarsy.llm.xai.build", build)
    (tmp_path / "key").write_text("one")

    def file(*, calls: int = 2, **models: str) -> platforms.Platform:
        own = {
            name: {"type": "xai", "model": model, "api_key_file": str(tmp_path / "key")}
            for name, model in models.items()
        }
        agents = {name: {"llm_provider": name} for name in own}  # so that all are built at once
        return platforms.Platform.model_validate(
            {"llm_providers": own, "agents": agents, "limits": {"provider_calls": calls}}
        )

    async with registry.session() as http:
        first = registry.build(file(same="m", other="m"), environment={}, http=http, secrets=NO_SECRETS)
        same, other = made
        await first["same"].ask(REQUEST, SCOPE)
        second = registry.build(
            file(same="m", other="n", calls=1), environment={}, http=http, secrets=NO_SECRETS, before=first
        )
        second.apply_limits()
        assert len(made) == 3, "what is as before is not built again"
        assert second["same"].slots is first["same"].slots
        assert (first["other"].slots.limit, second["other"].slots is first["other"].slots) == (1, True)
        assert (second["same"].state.state, second["other"].state.state) == ("answering", "usable")
        platform_versions = versions.Versions(
            ports.Runtime(platform=file(), model=first.__getitem__, toolbox=no_tools), first.shared.values()
        )

        async def exchange(models: registry.Models) -> None:
            former = platform_versions._in_force
            platform_versions.exchange(
                platform_versions.prepared(models.shared.values()), replace(former.runtime, model=models.__getitem__)
            )
            await platform_versions._end(platform_versions._unused.get_nowait())

        await exchange(second)
        assert (same.closings, other.closings) == (0, 1)
        await second["same"].ask(REQUEST, SCOPE)

        (tmp_path / "key").write_text("two")
        third = registry.build(file(same="m", other="n"), environment={}, http=http, secrets=NO_SECRETS, before=second)
        assert len(made) == 5, "another key is another client"
        await exchange(third)
        await platform_versions.close()
    assert [client.closings for client in made] == [1] * len(made)


def test_all_key_files_of_providers_are_listed(tmp_path: Path) -> None:
    platform = platforms.Platform.model_validate(
        {
            "llm_providers": {
                "a": {"type": "xai", "model": "m", "api_key_file": "/run/a"},
                "b": {"type": "vertexai", "model": "gemini-2.5-flash"},
                "c": {"type": "vertexai", "model": "gemini-2.5-flash", "credentials_file": "/run/c"},
                "d": {"type": "openai", "model": "m"},
            }
        }
    )
    assert credentials.key_files(platform, {}) == {Path("/run/a"), Path("/run/c")}
    offered = {"GOOGLE_APPLICATION_CREDENTIALS": "/run/b"}
    assert credentials.key_files(platform, offered) == {Path("/run/a"), Path("/run/b"), Path("/run/c")}


class Failing(Source):
    """An SDK's client that cannot be closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def close(self) -> None:
        await super().close()
        raise self.error


async def test_clients_that_cannot_be_closed_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """One that was built late, and whose building failed in a way of its own, among them."""
    platform = settings()
    google = platform.llm_providers["google"]
    first, second = Failing(RuntimeError("of key-7f3a")), Failing(OSError("it is closed"))

    def build() -> provider.Provider:
        raise LookupError("what nobody expected")

    later = registry._LazyProvider("m", build)
    with pytest.raises(LookupError):
        await anext(later.stream(REQUEST))
    sources = {
        "a": registry.SharedProvider(provider=first),
        "b": registry.SharedProvider(provider=later),
        "c": registry.SharedProvider(provider=second),
    }
    everything = platforms.Platform(llm_providers=dict.fromkeys(sources, google))
    models = registry.Models(sources, settings=everything)
    for model in models.shared.values():
        await model.close()
    assert (first.closings, second.closings) == (1, 1)
    reports = [
        log_record.getMessage()
        for log_record in caplog.records
        if getattr(log_record, "action", "") == "provider_not_closed"
    ]
    assert reports == [f"a client was not closed: {name}" for name in ("RuntimeError", "LookupError", "OSError")]
    assert "key-7f3a" not in caplog.text
