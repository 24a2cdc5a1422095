"""Gemini on Google Cloud: the same requests and answers at another address, by a token that we fetch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from google.auth import credentials

from tarsy.config.model import providers
from tarsy.llm import gemini, keyfiles, provider, tokens

_PROJECT = "GOOGLE_CLOUD_PROJECT"
_NOT_YET_KNOWN = "-"
"""Stands for a project where the SDK wants one; it would ask the machine for it, and block."""


def build(
    name: str,
    settings: providers.VertexAIProvider,
    *,
    key: str | None,  # noqa: ARG001 - of other types: this one has credentials
    session: aiohttp.ClientSession,
    environment: Mapping[str, str] = os.environ,
) -> provider.Provider:
    """Return the provider `name` over `session`; an unusable key file is reported with each request.

    `environment` may name a project, for providers that name none themselves.
    """
    try:
        account = None if settings.credentials_file is None else keyfiles.read(settings.credentials_file)
    except keyfiles.KeyFileError as error:
        return provider.Unusable(settings.model, str(error))
    return VertexAI(name, settings, key=account, project=environment.get(_PROJECT, ""), http=session)


class VertexAI(gemini.Speaker):
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
        """`key` is a service account's, None what the environment offers; `project` the one where none is set."""
        self._project = settings.project or project
        self._location = settings.location
        whose = f"credentials_file of llm_providers.{name}"
        self._tokens = tokens.Tokens(http, key=key, advice=f"check {whose}" if key is not None else f"set {whose}")
        self._bearer = _Bearer()
        made = gemini.client(
            http,
            base_url=settings.base_url,
            vertexai=True,
            project=self._project or _NOT_YET_KNOWN,
            location=self._location,
            credentials=self._bearer,
        )
        super().__init__(name, settings, client=made)

    async def _path(self) -> str:
        self._bearer.use(await self._tokens.fresh(), quota_project=self._tokens.quota_project)
        project = self._project or self._tokens.project
        if not project:
            why = f"the credentials name no project; set project of llm_providers.{self._name}"
            raise provider.FatalError(why, code="project")
        parent = f"projects/{project}/locations/{self._location}/publishers/google"
        return f"{parent}/models/{self.model}:streamGenerateContent?alt=sse"

    def _secrets(self) -> Sequence[str]:
        return (self._bearer.token,) if self._bearer.token else ()

    def _unauthorized(self) -> str:
        whose = f"project of llm_providers.{self._name}"
        return f"check {whose}, and that its credentials may use Vertex AI there (role Vertex AI User)"

    def _unknown(self) -> str:
        return f"{super()._unknown()}, and location: '{self._location}'"


class _Bearer(credentials.Credentials):
    """Credentials for the SDK with a token that is never old, so that it fetches none itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def use(self, token: str, *, quota_project: str | None) -> None:
        """Be this one."""
        self.token, self._quota_project_id = token, quota_project

    def refresh(self, request: object) -> None:
        """Do nothing: the caller has brought a fresh token."""
        raise NotImplementedError
