"""Vertex AI over real sockets: the SDK asks the scripted model, by tokens that we fetch for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.auth.compute_engine import _metadata
from support import leases, time_limits
from tarsy.config.model import platforms, providers
from tarsy.llm import limited_model, provider, registry, vertexai
from tarsy.transcript import messages, ports
from tarsy_dev import model
from tarsy_dev.model import tokens

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="Why is web-0 crashing?"),))
SAYS = model.answers("It is out of memory.")


@contextlib.asynccontextmanager
async def speaking(
    server: model.Server, key_file: Path | None, *, environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[provider.Provider]:
    """Vertex AI at the server, as the holder of a key file."""
    fields = {"type": "vertexai", "model": "gemini-2.5-flash", "base_url": server.url} | settings
    vertex = providers.VertexAIProvider.model_validate({**fields, "credentials_file": key_file})
    async with registry.session() as http:
        source = vertexai.build("vertex", vertex, key=None, session=http, environment=environment or {})
        try:
            yield source
        finally:
            await source.close()


@contextlib.asynccontextmanager
async def asking(
    server: model.Server,
    key_file: Path | None,
    *,
    environment: dict[str, str] | None = None,
    limits: Mapping[str, object] | None = None,
    **settings: Any,
) -> AsyncIterator[limited_model.LimitedModel]:
    """The same, within limits."""
    async with speaking(server, key_file, environment=environment, **settings) as source:
        yield limited_model.LimitedModel("vertex", source, limits=platforms.Limits.model_validate(limits or {}))


async def read_text(source: provider.Provider) -> str:
    return "".join([event.text async for event in source.stream(REQUEST) if isinstance(event, provider.Text)])


def key_of(server: model.Server, directory: Path, **fields: Any) -> Path:
    return tokens.account(directory / "key.json", **{"token_uri": f"{server.url}/token", **fields})


@pytest.mark.parametrize(
    ("settings", "environment", "path"),
    [
        ({}, {}, "projects/loopback-project/locations/global"),
        ({}, {"GOOGLE_CLOUD_PROJECT": "theirs"}, "projects/theirs/locations/global"),
        (
            {"project": "ours", "location": "europe-west4"},
            {"GOOGLE_CLOUD_PROJECT": "theirs"},
            "projects/ours/locations/europe-west4",
        ),
    ],
    ids=["of the key", "of the environment", "of the file"],
)
async def test_a_project_is_asked_by_a_token_that_is_fetched_once(
    tmp_path: Path, settings: dict[str, Any], environment: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "none of Vertex AI's business")
    async with (
        model.serve(SAYS) as server,
        asking(server, key_of(server, tmp_path), environment=environment, **settings) as asked,
    ):
        answers = await asyncio.gather(*(asked.ask(REQUEST, leases.SCOPE) for _ in range(3)))
        assert {answer.message.text for answer in answers} == {"It is out of memory."}
        assert {request.path for request in server.requests} == {
            f"/v1beta1/{path}/publishers/google/models/gemini-2.5-flash:streamGenerateContent"
        }
        assert not any("x-goog-api-key" in request.headers for request in server.requests)
        assert [entry.path for entry in server.tokens.log.entries] == ["/token"]


async def test_nearly_expired_token_is_fetched_again(tmp_path: Path) -> None:
    async with model.serve(SAYS) as server, asking(server, key_of(server, tmp_path)) as asked:
        server.tokens.lifetime = 60
        for _ in range(2):
            await asked.ask(REQUEST, leases.SCOPE)
        assert len(server.tokens.log.entries) == 2


async def failure(
    asked: limited_model.LimitedModel, kind: str = "fatal", *, attempts: int = 0
) -> tuple[messages.Failure, ports.ModelError]:
    with pytest.raises(ports.ModelError) as error:
        await asked.ask(REQUEST, leases.SCOPE)
    assert error.value.failure.kind == kind, error.value.failure.text
    assert len(error.value.call.attempts) >= attempts
    return error.value.failure, error.value


async def test_refused_key_is_reported_with_remedy_and_without_secret(tmp_path: Path) -> None:
    async with model.serve(SAYS) as server:
        key_file = key_of(server, tmp_path, client_email="")
        async with asking(server, key_file) as asked:
            failed, error = await failure(asked)
        assert (len(server.tokens.log.entries), len(error.call.attempts)) == (1, 0), "asked again in vain"
    assert "invalid_grant" in failed.text
    assert "check credentials_file of llm_providers.vertex" in failed.text
    assert not any(line in failed.text for line in json.loads(key_file.read_text())["private_key"].splitlines() if line)


async def test_text_quoted_by_token_server_is_not_shown(tmp_path: Path) -> None:
    quoted = json.dumps({"error": "invalid_grant", "error_description": "Not good: " + "eyJhbGciOi" * 50})
    async with model.serve(SAYS) as server, asking(server, key_of(server, tmp_path)) as asked:
        server.tokens.reply = model.HttpError(status=400, message=quoted)
        failed, error = await failure(asked)
    assert "Not good: [...]" in failed.text
    texts, cause = [failed.text], error.__cause__
    while cause is not None:
        texts.append(repr(cause))
        cause = cause.__cause__
    assert not any("eyJ" in text for text in texts)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (model.HttpError(status=503), "answers 503"),
        (model.Garbage(), "the token server's answer is none"),
        (model.Garbage(text='{"access_token": "a\\r\\nHost: b", "expires_in": 3600}'), "has no token"),
        (model.Garbage(text='{"access_token": 5, "expires_in": 3600}'), "has no token"),
        (model.Garbage(text='"' + "a" * 1024 * 1024 + '"'), "is longer than"),
    ],
    ids=["down", "half", "two lines", "a number", "long"],
)
async def test_a_token_server_that_is_not_itself_is_asked_again(tmp_path: Path, reply: tokens.Reply, why: str) -> None:
    async with model.serve(SAYS) as server, speaking(server, key_of(server, tmp_path)) as source:
        server.tokens.reply = reply
        with pytest.raises(provider.RetryableError, match=why) as error:
            await read_text(source)
        assert error.value.code == "token"
        assert len(server.tokens.log.entries) == 1, "asked again behind our back"
        server.tokens.reply = None
        assert await read_text(source) == "It is out of memory."


@pytest.mark.parametrize("status", [301, 307])
async def test_credentials_do_not_follow_a_redirect(tmp_path: Path, status: int) -> None:
    async with (
        model.serve(SAYS) as server,
        model.serve(SAYS) as other,
        asking(server, key_of(server, tmp_path)) as asked,
    ):
        server.tokens.reply = tokens.Redirect(location=f"{other.url}/token", status=status)
        failed, _ = await failure(asked)
        assert other.tokens.log.entries == []
    assert "redirects" in failed.text


async def test_a_token_server_that_hangs_is_left_at_the_limit_of_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_BACKOFF", "LONGEST_BACKOFF"):
        monkeypatch.setattr(limited_model, name, 3600.0)  # no retry
    passing = time_limits.TimeLimits(monkeypatch)
    limits = {"first_byte": "10m", "iteration": "15m"}
    async with model.serve(SAYS) as server, asking(server, key_of(server, tmp_path), limits=limits) as asked:
        server.tokens.reply = model.Hang()
        failing = asyncio.create_task(failure(asked, "timeout", attempts=1))
        await server.tokens.log.wait_for(lambda entries: entries or None)
        assert passing.expire(600.0) == 1
        _, error = await failing
        assert "was silent for 600 s" in error.call.attempts[0].error
        server.tokens.reply = None
        assert (await asked.ask(REQUEST, leases.SCOPE)).message.text == "It is out of memory."


async def test_cancelling_does_not_wait_for_a_token_server_and_leaves_no_thread_behind(tmp_path: Path) -> None:
    async with model.serve(SAYS) as server, asking(server, key_of(server, tmp_path)) as asked:
        server.tokens.reply = model.Hang()
        ask = asyncio.create_task(asked.ask(REQUEST, leases.SCOPE))
        await server.tokens.log.wait_for(lambda entries: entries or None)
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask
        entry = await server.tokens.log.wait_for(lambda requests: next((e for e in requests if e.ended), None))
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)
    assert entry.end == "client closed"


async def test_foreign_access_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    async with model.serve(SAYS) as server, asking(server, key_of(server, tmp_path)) as asked:
        server.tokens.reply = model.Garbage(text='{"access_token": "ya29.c3RvbGVu", "expires_in": 3600}')
        failed, _ = await failure(asked)
    assert "401" in failed.text
    assert "ya29" not in failed.text


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that offers no credentials, but for what a test adds."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", True)
    return monkeypatch


async def test_credentials_of_the_environment_are_used_without_a_file(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    async with model.serve(SAYS) as server, asking(server, None) as asked:
        bare.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_of(server, tmp_path)))
        assert (await asked.ask(REQUEST, leases.SCOPE)).message.text == "It is out of memory."
        assert [entry.path for entry in server.tokens.log.entries] == ["/token"]


async def test_metadata_of_a_google_machine_give_project_and_token(bare: pytest.MonkeyPatch) -> None:
    async with model.serve(SAYS) as server, asking(server, None) as asked:
        host = server.url.removeprefix("http://")
        bare.setattr(_metadata, "_NO_GCE_CHECK", False)
        bare.setattr(_metadata, "_GCE_METADATA_HOST", host)
        bare.setenv("GCE_METADATA_IP", host)
        bare.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        bare.setenv("NO_PROXY", "")
        bare.delenv("no_proxy", raising=False)
        for _ in range(2):
            await asked.ask(REQUEST, leases.SCOPE)
        (entry,) = server.tokens.log.entries
        assert {request.path.split("/")[3] for request in server.requests} == {tokens.PROJECT}
    assert entry.path.endswith("/token")
