"""The types of providers, and the models of a platform file. An SDK is imported only if a provider needs it."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import aiohttp
import pydantic

from tarsy.config.load import loader
from tarsy.config.model import platforms, providers
from tarsy.config.redact import view
from tarsy.llm import credentials, limited_model, provider
from tarsy.masking import known_secrets
from tarsy.telemetry import component_states
from tarsy.transcript import ports


@dataclass(frozen=True, kw_only=True)
class Type:
    """A `type` of provider."""

    module: str
    """The module with its `build(name, settings, key, session)`."""
    requires: str
    """The required module of another package, which has the same name with dashes."""
    extra: str
    """The extra of `tarsy` that installs the package."""


TYPES = {
    "google": Type(module="tarsy.llm.gemini", requires="google.genai", extra="google"),
    "vertexai": Type(module="tarsy.llm.vertexai", requires="google.genai", extra="google"),
    "openai": Type(module="tarsy.llm.openai", requires="langchain_openai", extra="openai"),
    "anthropic": Type(module="tarsy.llm.anthropic", requires="langchain_anthropic", extra="anthropic"),
    "xai": Type(module="tarsy.llm.xai", requires="langchain_xai", extra="xai"),
    "langchain": Type(module="tarsy.llm.integrations", requires="langchain", extra="langchain"),
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
"""The modules of integrations that are not named after their provider. Source: `init_chat_model` of LangChain."""


def session() -> aiohttp.ClientSession:
    """Return the HTTP session of all SDKs; a session of their own would read ~/.netrc for each request."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar())


log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class SharedProvider:
    """A provider that the models of several platform files may share."""

    provider: provider.Provider
    built_from: object = None
    """Its settings and the digest of its key file; a later file with the same ones shares the provider."""

    async def close(self) -> None:
        """Close its SDK's client."""
        try:
            await self.provider.close()
        except Exception as error:  # noqa: BLE001 - SDKs raise any class; nothing depends on the client any more
            log.warning("a client was not closed: %s", type(error).__name__, extra={"action": "provider_not_closed"})


class Models:
    """The models of one platform file, one for each of its providers."""

    def __init__(
        self,
        shared: Mapping[str, SharedProvider],
        *,
        settings: platforms.Platform,
        secrets: known_secrets.KnownSecrets | None = None,
        throttle: ports.Throttle | None = None,
        before: Models | None = None,
    ) -> None:
        """`throttle` keeps the limits a minute; `before` are the models of an earlier file."""
        self.shared = shared
        self._limits = settings.limits
        self._details = {
            name: {**view.provider(settings.llm_providers[name]), "named": is_configured(name, settings)}
            for name in shared
        }
        self._models: dict[str, limited_model.LimitedModel] = {}
        for name, shared_provider in shared.items():
            own = settings.llm_providers[name]
            is_throttled = own.requests_per_minute is not None or own.tokens_per_minute is not None
            self._models[name] = limited_model.LimitedModel(
                name,
                shared_provider.provider,
                limits=self._limits,
                secrets=secrets,
                price=own.price,
                throttle=throttle if is_throttled else None,
                before=before._models.get(name) if before else None,
            )

    def apply_limits(self) -> None:
        """Apply this file's limit of simultaneous calls, which also counts the calls for earlier files."""
        for limited in self._models.values():
            limited.slots.set_limit(self._limits.provider_calls)

    def __getitem__(self, name: str) -> limited_model.LimitedModel:
        """Return the model of provider `name`; if the platform file no longer has it, a model that fails each call."""
        if name in self._models:
            return self._models[name]
        removed = provider.Unusable("", "the platform file has it no longer")
        return limited_model.LimitedModel(name, removed, limits=self._limits)

    def unusable(self, problems: Mapping[str, str]) -> Mapping[str, str]:
        """Those of the `problems`, found when the file was read, whose providers have not answered since."""
        return {
            name: problem
            for name, problem in problems.items()
            if name not in self._models or self._models[name].state.state != "answering"
        }

    def facts(self, problems: Mapping[str, str]) -> Iterator[component_states.ComponentState]:
        """Yield the states of the providers; `problems` has the reasons why providers cannot be used."""
        problems = self.unusable(problems)
        for name, limited in self._models.items():
            problem = problems.get(name, "")
            failed = limited.state.failure
            is_word = failed and re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", failed.code)  # providers may send any text
            failure = (
                component_states.Failure(kind=failed.kind, code=failed.code if is_word else "") if failed else None
            )
            yield component_states.ComponentState(
                kind="provider",
                name=name,
                state="unusable" if problem else limited.state.state,
                since=limited.state.since,
                detail=component_states.Provider(**self._details[name], problem=problem, failure=failure),
            )


def unusable(settings: platforms.Platform, *, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the problems of the providers that cannot be used, by name; finds them without heavy imports."""
    problems = {}
    for name, provider_settings in settings.llm_providers.items():
        try:
            _check_packages(provider_settings)
            credentials.api_key(provider_settings, environment)
        except provider.UnusableError as error:
            problems[name] = str(error)
    return problems


def is_configured(name: str, settings: platforms.Platform) -> bool:
    """Return whether the platform file defines provider `name` or refers to it; others are only built in."""
    defaults = settings.defaults
    agents = (agent.llm_provider for agent in settings.agents.values())
    summaries = (server.summarization.llm_provider for server in settings.mcp_servers.values())
    referred = {defaults.llm_provider, *defaults.fallback_providers, *agents, *summaries}
    builtin = loader.platform_file(None).llm_providers
    return name in referred or settings.llm_providers[name] != builtin.get(name)


def build(
    settings: platforms.Platform,
    *,
    environment: Mapping[str, str],
    http: aiohttp.ClientSession,
    secrets: known_secrets.KnownSecrets,
    throttle: ports.Throttle | None = None,
    before: Models | None = None,
) -> Models:
    """Build the models of a platform file, over `http`.

    Providers that defaults and agents name are built at once, the others at their first request. A provider that cannot
    be used fails each request with the reason. A provider with the same settings and key as `before` is shared.
    """
    first = {settings.defaults.llm_provider, *(agent.llm_provider for agent in settings.agents.values())}
    shared: dict[str, SharedProvider] = {}
    for name, provider_settings in settings.llm_providers.items():
        built_from = (provider_settings, credentials.key_digest(provider_settings, environment))
        former = before.shared.get(name) if before else None
        if former is not None and former.built_from == built_from:
            shared[name] = former
            continue
        build_it = functools.partial(_provider, name, provider_settings, environment, http)
        built = build_it() if name in first else _LazyProvider(provider_settings.model, build_it)
        shared[name] = SharedProvider(provider=built, built_from=built_from)
    return Models(shared, settings=settings, secrets=secrets, throttle=throttle, before=before)


class _LazyProvider:
    """A provider that a thread builds at the first request: the import of some SDKs takes seconds."""

    def __init__(self, model: str, build_it: Callable[[], provider.Provider]) -> None:
        self.model = model
        self._build = build_it
        self._building: asyncio.Task[provider.Provider] | None = None

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        """Stream one answer (see `provider.Provider`)."""
        self._building = self._building or asyncio.create_task(asyncio.to_thread(self._build))
        built = await asyncio.shield(self._building)  # other callers may wait for it, if this one is cancelled
        if isinstance(built, provider.Unusable):  # build it again at the next request: its key file may be there then
            self._building = None
        async with aclosing(built.stream(request)) as events:
            async for event in events:
                yield event

    async def close(self) -> None:
        """Close the SDK's client, if it was built."""
        if self._building is not None:
            await (await self._building).close()


def _provider(
    name: str, settings: providers.Provider, environment: Mapping[str, str], http: aiohttp.ClientSession
) -> provider.Provider:
    """Build a provider. If its settings are invalid, log why, and return a provider that fails with that reason."""
    key = None
    try:
        _check_packages(settings)
        key = credentials.api_key(settings, environment)
    except provider.UnusableError as error:
        return provider.Unusable(settings.model, str(error))
    try:
        module = importlib.import_module(TYPES[settings.type].module)
        built: provider.Provider = module.build(name, settings, key=key, session=http)
    except Exception as error:  # noqa: BLE001 - SDKs raise any class
        text = str(error) if isinstance(error, provider.UnusableError) else provider.without(key, _problem(error))
        log.warning("llm_providers.%s cannot be used: %s", name, text, extra={"action": "provider_unusable"})
        return provider.Unusable(settings.model, text)
    return built


def _problem(error: Exception) -> str:
    """Return the message of an error, without the values of settings."""
    if not isinstance(error, pydantic.ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    first_line, _, _ = first["msg"].partition("\n")  # further lines may quote values
    return f"{'.'.join(map(str, first['loc']))}: {first_line}"


def _check_packages(settings: providers.Provider) -> None:
    """Raise UnusableError if a package is not installed, which is found without an import."""
    provider_type = TYPES[settings.type]
    if not _is_installed(provider_type.requires):
        package = re.sub("[._]", "-", provider_type.requires)
        raise provider.UnusableError(f"the package {package} is not installed: install tarsy[{provider_type.extra}]")
    if isinstance(settings, providers.LangChainProvider):
        integration = settings.model_provider.replace("-", "_").lower()  # as LangChain reads it
        module = INTEGRATIONS.get(integration, f"langchain_{integration}")
        if not _is_installed(module):
            package = module.replace("_", "-")
            raise provider.UnusableError(f"the package {package} of model_provider is not installed: install it")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is missing, or this is no module's name
        return False
