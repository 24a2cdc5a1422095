"""Gemini on Google Cloud: the same requests and answers at another address, with tokens that we fetch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from google.auth import credentials as auth

from tarsy.config.model import providers
from tarsy.llm import credentials, gemini, google_tokens, provider

_PROJECT = "GOOGLE_CLOUD_PROJECT"
_NOT_YET_KNOWN = "-"
"""A project for the SDK, which would otherwise ask the machine for one, and block."""


def build(
    name: str,
    settings: providers.VertexAIProvider,
    *,
    key: str | None,  # noqa: ARG001 - Google Cloud has no API keys
    session: aiohttp.ClientSession,
    environment: Mapping[str, str] = os.environ,
) -> provider.Provider:
    """Build the provider `name` over `session`; `environment` may name a project for a provider without one."""
    path = settings.credentials_file
    account = None if path is None else credentials.service_account(path)
    return VertexAI(name, settings, key=account, project=environment.get(_PROJECT, ""), http=session)


class VertexAI(gemini.GeminiModel):
    """One model of Vertex AI."""

    def __init__(
        self,
        name: str,
        settings: providers.VertexAIProvider,
        *,
        key: Mapping[str, Any] | None,
        project: str,
        http: aiohttp.ClientSession,
    ) -> None:
        """`key` is a service account's, None uses the environment's credentials; `project` is the default."""
        self._project = settings.project or project
        self._location = settings.location
        setting = f"credentials_file of llm_providers.{name}"
        self._tokens = google_tokens.Tokens(
            http, key=key, advice=f"check {setting}" if key is not None else f"set {setting}"
        )
        self._bearer = _Bearer()
        sdk = gemini.client(
            http,
            base_url=settings.base_url,
            vertexai=True,
            project=self._project or _NOT_YET_KNOWN,
            location=self._location,
            credentials=self._bearer,
        )
        remedy = f"check project of llm_providers.{name}, and that its credentials may use Vertex AI there"
        super().__init__(
            name,
            settings,
            client=sdk,
            credentials_remedy=f"{remedy} (role Vertex AI User)",
            model_remedy=f", and location: '{self._location}'",
        )

    async def _path(self) -> str:
        self._bearer.use(await self._tokens.fresh(), quota_project=self._tokens.quota_project)
        project = self._project or self._tokens.project
        if not project:
            problem = f"the credentials name no project; set project of llm_providers.{self._name}"
            raise provider.FatalError(problem, code="project")
        parent = f"projects/{project}/locations/{self._location}/publishers/google"
        return f"{parent}/models/{self.model}:streamGenerateContent?alt=sse"

    def _secrets(self) -> Sequence[str]:
        return (self._bearer.token,) if self._bearer.token else ()


class _Bearer(auth.Credentials):
    """Credentials for the SDK with a token that never expires, so that it fetches none itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def use(self, token: str, *, quota_project: str | None) -> None:
        """Replace the token."""
        self.token, self._quota_project_id = token, quota_project

    def refresh(self, request: object) -> None:
        """Do nothing: the caller has brought a fresh token."""
        raise NotImplementedError
