"""Builds the models of the platform file. An SDK is imported only where a provider needs it: they are heavy."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.util
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pydantic

from tarsy.config.load import loader, secret_files
from tarsy.config.model import platforms, providers
from tarsy.config.redact import view
from tarsy.llm import keyfiles, model, provider
from tarsy.telemetry import details, standing
from tarsy.transcript import ports

LIKE_A_KEY = 16
"""Characters from which capitals and digits without an underscore may be a key (AWS has such) and are not shown."""


@dataclass(frozen=True, kw_only=True)
class Type:
    """A `type` of provider."""

    module: str
    """Where its `build(name, settings, key, session)` is."""
    packages: Mapping[str, str]
    """The package of each module that has to be installed."""
    extra: str
    """By which extra of ours."""


TYPES = {
    "google": Type(module="tarsy.llm.gemini", packages={"google.genai": "google-genai"}, extra="google"),
    "vertexai": Type(module="tarsy.llm.vertexai", packages={"google.genai": "google-genai"}, extra="google"),
    "openai": Type(module="tarsy.llm.openai", packages={"langchain_openai": "langchain-openai"}, extra="openai"),
    "anthropic": Type(
        module="tarsy.llm.anthropic", packages={"langchain_anthropic": "langchain-anthropic"}, extra="anthropic"
    ),
    "xai": Type(module="tarsy.llm.xai", packages={"langchain_xai": "langchain-xai"}, extra="xai"),
    "langchain": Type(module="tarsy.llm.integrations", packages={"langchain": "langchain"}, extra="langchain"),
}
INTEGRATIONS = {
    "anthropic_bedrock": "langchain_aws",
    "azure_openai": "langchain_openai",
    "bedrock": "langchain_aws",
    "bedrock_converse": "langchain_aws",
    "bedrock_mantle_anthropic": "langchain_aws",
    "bedrock_mantle_openai": "langchain_aws",
    "google_anthropic_vertex": "langchain_google_vertexai",
    "langsmith": "langchain_openai",
    "nvidia": "langchain_nvidia_ai_endpoints",
}
"""The integrations whose module is not called like their provider. Source: `init_chat_model` of LangChain."""


def session() -> aiohttp.ClientSession:
    """Return the session for all SDKs that use aiohttp; their own would read ~/.netrc for each request."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Source:
    """A provider as it is asked, by as many as have it."""

    provider: provider.Provider
    made_of: object = None
    """The settings that it was built from; a provider with the same settings shares this source."""

    async def close(self) -> None:
        """Close its SDK's client."""
        try:
            await self.provider.close()
        except Exception as error:  # noqa: BLE001 - the SDK's, of whatever class: nothing is lost that anybody has
            log.warning("a client was not closed: %s", type(error).__name__, extra={"action": "provider_not_closed"})


class Models:
    """The models of one platform file, one for each of its providers."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        settings: platforms.Platform,
        throttle: ports.Throttle | None = None,
        before: Models | None = None,
    ) -> None:
        """`throttle`: what providers' limits a minute are kept by; `before`: those of an earlier file."""
        self.sources = sources
        self._limits = settings.limits
        self._problem = {
            name: {**view.provider(settings.llm_providers[name]), "named": is_worth_telling(name, settings)}
            for name in sources
        }
        self._models: dict[str, model.LimitedModel] = {}
        for name, source in sources.items():
            own = settings.llm_providers[name]
            is_limited = own.requests_per_minute is not None or own.tokens_per_minute is not None
            self._models[name] = model.LimitedModel(
                name,
                source.provider,
                limits=self._limits,
                price=own.price,
                throttle=throttle if is_limited else None,
                before=before._models.get(name) if before else None,
            )

    def hold_at_once(self) -> None:
        """Have as many calls at once from now on as its file says, those for earlier files counted."""
        for asked in self._models.values():
            asked.slots.set_limit(self._limits.provider_calls)

    def __getitem__(self, name: str) -> model.LimitedModel:
        """The model of provider `name`; of one that the platform file has lost since, a model that says so."""
        if name in self._models:
            return self._models[name]
        lost = provider.Unusable("", "the platform file has it no longer")
        return model.LimitedModel(name, lost, limits=self._limits)

    def unusable(self, problems: Mapping[str, str]) -> Mapping[str, str]:
        """The providers that cannot be used: those `problems` so when the file was read, and not answering since."""
        return {
            name: why
            for name, why in problems.items()
            if name not in self._models or self._models[name].standing.state != "answering"
        }

    def facts(self, unusable: Mapping[str, str]) -> Iterator[standing.Fact]:
        """How the providers stand; `unusable` are those that could not be used when the file was read, and why."""
        problems = self.unusable(unusable)
        for name, asked in self._models.items():
            problem = problems.get(name, "")
            failed = asked.standing.failure
            failure = details.Failure(kind=failed.kind, code=_word(failed.code)) if failed else None
            yield standing.Fact(
                kind="provider",
                name=name,
                state="unusable" if problem else asked.standing.state,
                since=asked.standing.since,
                detail=details.Provider(**self._problem[name], problem=problem, failure=failure),
            )


def _word(code: str) -> str:
    """A failure's code, if it is one: providers may say anything."""
    return code if re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", code) else ""


def unusable(settings: platforms.Platform, *, environment: Mapping[str, str]) -> dict[str, str]:
    """The providers that cannot be used, and why; nothing heavy is imported to find out."""
    problems = {}
    for name, provider_settings in settings.llm_providers.items():
        try:
            _check_packages(provider_settings)
            _key(provider_settings, environment)
        except provider.UnusableError as error:
            problems[name] = str(error)
    return problems


def is_worth_telling(name: str, settings: platforms.Platform) -> bool:
    """Whether anybody is to hear, before a chain names it, that provider `name` cannot be used.

    Not of what is there without a platform file, and which nothing in one refers to.
    """
    builtin = loader.platform_file(None).llm_providers
    return name in _named(settings) or settings.llm_providers[name] != builtin.get(name)


def build(
    settings: platforms.Platform,
    *,
    environment: Mapping[str, str],
    http: aiohttp.ClientSession,
    throttle: ports.Throttle | None = None,
    before: Models | None = None,
) -> Models:
    """Build what defaults and agents name, to speak over `http`; the others are built when a chain first asks them.

    One that cannot be used answers every question with why. `throttle` is what limits a minute are kept by. What is as
    it was `before`, its key too, is taken from there.
    """
    first = {settings.defaults.llm_provider, *(agent.llm_provider for agent in settings.agents.values())}
    sources: dict[str, Source] = {}
    for name, provider_settings in settings.llm_providers.items():
        made_of = (provider_settings, _digest(key_file(provider_settings, environment)))
        former = before.sources.get(name) if before else None
        if former is not None and former.made_of == made_of:
            sources[name] = former
            continue
        making = functools.partial(_source, name, provider_settings, environment, http)
        made = making() if name in first else _Later(provider_settings.model, making)
        sources[name] = Source(provider=made, made_of=made_of)
    return Models(sources, settings=settings, throttle=throttle, before=before)


def key_files(settings: platforms.Platform, environment: Mapping[str, str]) -> set[Path]:
    """The files that hold what providers show who we are by."""
    paths = (key_file(provider_settings, environment) for provider_settings in settings.llm_providers.values())
    return {path for path in paths if path is not None}


def key_file(settings: providers.Provider, environment: Mapping[str, str]) -> Path | None:
    """The one of a provider, if it has one."""
    if isinstance(settings, providers.VertexAIProvider):
        named = environment.get(keyfiles.ENVIRONMENT)
        return settings.credentials_file or (Path(named) if named else None)
    return settings.api_key_file


def _digest(path: Path | None) -> bytes | None:
    """Return a digest of a file, which may be missing."""
    if path is None:
        return None
    try:
        return hashlib.sha256(secret_files.read(path)).digest()
    except secret_files.UnreadableError:
        return b""


class _Later:
    """A provider that is built when it is first asked, by a thread: the import of some SDKs takes seconds."""

    def __init__(self, model: str, making: Callable[[], provider.Provider]) -> None:
        self.model = model
        self._making = making
        self._made: asyncio.Task[provider.Provider] | None = None

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        self._made = self._made or asyncio.create_task(asyncio.to_thread(self._making))
        source = await asyncio.shield(self._made)  # a cancelled caller was not the only one that waits
        if isinstance(source, provider.Unusable):  # until the next question: a file may be there by then
            self._made = None
        async with aclosing(source.stream(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Close the SDK's client, if there is one."""
        if self._made is not None:
            await (await self._made).close()


def _source(
    name: str, settings: providers.Provider, environment: Mapping[str, str], http: aiohttp.ClientSession
) -> provider.Provider:
    try:
        _check_packages(settings)
        return _made(name, settings, _key(settings, environment), http)
    except provider.UnusableError as error:
        return provider.Unusable(settings.model, str(error))


def _made(name: str, settings: providers.Provider, key: str | None, http: aiohttp.ClientSession) -> provider.Provider:
    try:
        module = importlib.import_module(TYPES[settings.type].module)
        made: provider.Provider = module.build(name, settings, key=key, session=http)
    except Exception as error:  # of whatever class: it is the SDK's
        text = str(error) if isinstance(error, provider.UnusableError) else provider.without(key, _problem(error))
        log.warning("llm_providers.%s cannot be used: %s", name, text, extra={"action": "provider_unusable"})
        raise provider.UnusableError(text) from error
    return made


def _problem(error: Exception) -> str:
    """Return the problem, without the values of settings."""
    if not isinstance(error, pydantic.ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    first_line, _, _ = first["msg"].partition("\n")  # what follows may tell what was given
    return f"{'.'.join(map(str, first['loc']))}: {first_line}"


def _named(settings: platforms.Platform) -> set[str | None]:
    """The providers that defaults, agents and MCP servers name."""
    defaults = settings.defaults
    agents = (agent.llm_provider for agent in settings.agents.values())
    summaries = (server.summarization.llm_provider for server in settings.mcp_servers.values())
    return {defaults.llm_provider, *defaults.fallback_providers, *agents, *summaries}


def _check_packages(settings: providers.Provider) -> None:
    """Raise where a package is not installed; it is looked for without an import."""
    provider_type = TYPES[settings.type]
    for module, package in provider_type.packages.items():
        if not _is_installed(module):
            raise provider.UnusableError(
                f"the package {package} is not installed: install tarsy[{provider_type.extra}]"
            )
    if isinstance(settings, providers.LangChainProvider):
        named = settings.model_provider.replace("-", "_").lower()  # as LangChain reads it
        module = INTEGRATIONS.get(named, f"langchain_{named}")
        if not _is_installed(module):
            package = module.replace("_", "-")
            raise provider.UnusableError(f"the package {package} of model_provider is not installed: install it")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # what it would be a part of is not there; no name of a module's
        return False


def _key(settings: providers.Provider, environment: Mapping[str, str]) -> str | None:
    """The key; None where there is to be none."""
    if isinstance(settings, providers.VertexAIProvider):
        if problem := keyfiles.problem(settings, environment):
            raise provider.UnusableError(problem)
        return None
    if settings.api_key_file is not None:
        try:
            read = secret_files.text(settings.api_key_file)
        except secret_files.UnreadableError as error:
            raise provider.UnusableError(f"api_key_file: {error}") from error
        if not read:
            raise provider.UnusableError("api_key_file: the file is empty")
        return _sendable(read, of="api_key_file")
    named = settings.api_key_env
    if named is None:
        return None
    if key := environment.get(named, "").strip():
        return _sendable(key, of="api_key_env")
    if "_" not in named and len(named) >= LIKE_A_KEY:
        named = "that api_key_env names"
    raise provider.UnusableError(f"environment variable {named} is not set")


def _sendable(key: str, *, of: str) -> str:
    """A key that a header can hold."""
    if not (key.isascii() and key.isprintable()):
        raise provider.UnusableError(f"{of}: the key has characters that no key has")
    return key
