"""Builds the models of the platform file. An SDK is imported only where a provider needs it: they are heavy."""

from __future__ import annotations

from collections.abc import Mapping

from tarsy.config import load, platform
from tarsy.llm import model, provider


class Models:
    """The models of one process, one for each provider of the platform file."""

    def __init__(self, models: Mapping[str, model.LimitedModel], sources: Mapping[str, provider.Provider]) -> None:
        self._models = models
        self._sources = sources

    def __getitem__(self, name: str) -> model.LimitedModel:
        """The model of provider `name`."""
        return self._models[name]

    async def close(self) -> None:
        """Close all SDK clients."""
        for source in self._sources.values():
            await source.close()


def build(settings: platform.Platform, *, environment: Mapping[str, str]) -> Models:
    """Build every provider; a load.ConfigError names the one that lacks its key."""
    sources = {name: _source(name, found, environment) for name, found in settings.llm_providers.items()}
    models = {name: model.LimitedModel(name, source, limits=settings.limits) for name, source in sources.items()}
    return Models(models, sources)


def _source(name: str, settings: platform.GoogleProvider, environment: Mapping[str, str]) -> provider.Provider:
    key = environment.get(settings.api_key_env)
    if not key:
        raise load.ConfigError(f"llm_providers.{name}: environment variable {settings.api_key_env} is not set")
    from tarsy.llm import gemini

    return gemini.Gemini(name, settings, api_key=key)
