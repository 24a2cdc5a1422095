"""Builds the models of the platform file. An SDK is imported only where a provider needs it: they are heavy."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from tarsy.config import platform, providers
from tarsy.llm import keyfiles, model, provider
from tarsy.transcript import ports

READ_AHEAD = 4 * 1024 * 1024
"""Bytes of an answer that are read before anybody asks for them: google-genai wants a line whole."""
LIKE_A_KEY = 16
"""Characters from which capitals and digits without an underscore may be a key (AWS has such) and are not shown."""


class UnusableError(Exception):
    """A provider cannot be used as it is configured; the message says why."""


def session() -> aiohttp.ClientSession:
    """What all SDKs that speak by aiohttp do it over; theirs would look into ~/.netrc for each request."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=READ_AHEAD
    )


class Models:
    """The models of one process, one for each provider of the platform file."""

    def __init__(
        self,
        sources: Mapping[str, provider.Provider],
        *,
        limits: platform.Limits,
        throttle: ports.Throttle | None = None,
    ) -> None:
        """`throttle`: what providers' limits a minute are kept by."""
        self._sources = sources
        self._limits = limits
        self._models = {
            name: model.LimitedModel(name, source, limits=limits, throttle=throttle) for name, source in sources.items()
        }

    def __getitem__(self, name: str) -> model.LimitedModel:
        """The model of provider `name`; of one that the platform file has lost since, a model that says so."""
        if name in self._models:
            return self._models[name]
        lost = provider.Unusable("", "the platform file has it no longer")
        return model.LimitedModel(name, lost, limits=self._limits)

    async def close(self) -> None:
        """Close all SDK clients."""
        for source in self._sources.values():
            await source.close()


def unusable(settings: platform.Platform, *, environment: Mapping[str, str]) -> dict[str, str]:
    """The providers that cannot be used, and why; nothing heavy is imported to find out."""
    problems = {}
    for name, found in settings.llm_providers.items():
        try:
            _key(found, environment)
        except UnusableError as error:
            problems[name] = str(error)
    return problems


def build(
    settings: platform.Platform,
    *,
    environment: Mapping[str, str],
    http: aiohttp.ClientSession,
    throttle: ports.Throttle | None = None,
) -> Models:
    """Build every provider, to speak over `http`; one that cannot be used answers every question with why.

    `throttle` is what limits a minute are kept by.
    """
    sources = {name: _source(name, found, environment, http) for name, found in settings.llm_providers.items()}
    return Models(sources, limits=settings.limits, throttle=throttle)


def _source(
    name: str, settings: providers.Provider, environment: Mapping[str, str], http: aiohttp.ClientSession
) -> provider.Provider:
    try:
        key = _key(settings, environment)
    except UnusableError as error:
        return provider.Unusable(settings.model, str(error))
    if isinstance(settings, providers.VertexAIProvider):
        from tarsy.llm import vertexai

        return vertexai.build(name, settings, environment=environment, http=http)
    assert isinstance(settings, providers.GoogleProvider)  # noqa: S101 - else `_key` has said so
    from tarsy.llm import gemini

    return gemini.Gemini(name, settings, api_key=key, http=http)


def _key(settings: providers.Provider, environment: Mapping[str, str]) -> str:
    if isinstance(settings, providers.VertexAIProvider):
        if problem := keyfiles.problem(settings, environment):
            raise UnusableError(problem)
        return ""
    if not isinstance(settings, providers.GoogleProvider):
        raise UnusableError(f"type {settings.type} is not spoken here yet")
    if settings.api_key_file is not None:
        try:
            read = settings.api_key_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UnusableError(f"api_key_file: {error.strerror}") from error
        except ValueError as error:  # a NUL in its name, too
            raise UnusableError("api_key_file: no file of UTF-8 text") from error
        if not read:
            raise UnusableError("api_key_file: the file is empty")
        return read
    if key := environment.get(settings.api_key_env):
        return key
    named = settings.api_key_env
    if "_" not in named and len(named) >= LIKE_A_KEY:
        named = "that api_key_env names"
    raise UnusableError(f"environment variable {named} is not set")
