"""Where access tokens for Vertex AI are had: for the assertion of a service account, and from a machine's metadata.

A service account that `account` writes names its public key where Google has the key's id, so that the endpoint can
check assertions of keys that it never saw; and a token vouches for itself (`signatures`), so that it outlives us too.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tarsy_dev import oracle
from tarsy_dev.model import script, signatures

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
PROJECT = "loopback-project"
_AUDIENCE = "https://oauth2.googleapis.com/token"
"""The audience that google-auth writes into each assertion, whichever service it is for."""
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CONTENT = b"access token"
_FLAVOR = {"Metadata-Flavor": "Google"}


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """A redirect instead of a token."""

    location: str
    status: int = 307


Reply = script.HttpError | script.Hang | script.Garbage | Redirect


@dataclass(kw_only=True)
class Request(oracle.Entry):
    """A request for a token, or for what the machine's metadata say."""

    late: ClassVar[tuple[str, ...]] = (*oracle.Entry.late, "refused")

    path: str
    refused: str = ""
    """Why there was no token, as it was answered."""


class Endpoint:
    """The endpoint, as a part of the scripted model's server."""

    def __init__(self, *, closing: asyncio.Event) -> None:
        self.reply: Reply | None = None
        """The reply to every caller; None is the right one."""
        self.lifetime = 3600
        """Seconds for which a token is good, as it says."""
        self.log: oracle.Log[Request] = oracle.Log()
        self._closing = closing

    def routes(self) -> list[web.RouteDef]:
        """Its paths."""
        return [web.post("/token", self._token), web.get("/{path:(computeMetadata/.*)?}", self._metadata)]

    async def _token(self, http: web.Request) -> web.StreamResponse:
        return await self._answered(http, refusal=_refusal(dict(await http.post())))

    async def _metadata(self, http: web.Request) -> web.StreamResponse:
        if http.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.")
        account = {"aliases": ["default"], "email": "node@loopback", "scopes": [SCOPE]}
        match http.match_info["path"].rstrip("/").split("/")[2:]:
            case []:
                return web.Response(text="computeMetadata/", headers=_FLAVOR)
            case ["project", "project-id"]:
                return web.Response(text=PROJECT, headers=_FLAVOR)
            case ["instance", "service-accounts", _, "token"]:
                return await self._answered(http, refusal=None)
            case ["instance", "service-accounts", _]:
                return web.json_response(account, headers=_FLAVOR)
            case _:
                return web.Response(status=404, headers=_FLAVOR)

    async def _answered(self, http: web.Request, *, refusal: dict[str, str] | None) -> web.StreamResponse:
        entry = self.log.add(Request(path=http.path))
        end: oracle.End = "failed"
        try:
            reply = await self._reply(refusal)
            entry.refused = (refusal or {}).get("error_description", "")
            end = "completed"
        except asyncio.CancelledError:
            end = "cut by us" if self._closing.is_set() else "client closed"
            raise
        else:
            return reply
        finally:
            self.log.finish(entry, end)

    async def _reply(self, refusal: dict[str, str] | None) -> web.StreamResponse:
        match self.reply:
            case script.Hang():
                await self._closing.wait()
                return web.Response(status=503)
            case script.HttpError(status=status, message=message, retry_after=after):
                headers = {} if after is None else {"Retry-After": f"{after:g}"}
                return web.Response(status=status, text=message, headers=headers, content_type="application/json")
            case script.Garbage(text=text):
                return web.Response(text=text, content_type="application/json")
            case Redirect(location=location, status=status):
                return web.Response(status=status, headers={"Location": location})
            case _:
                if refusal is not None:
                    return web.json_response(refusal, status=400)
                token = {"access_token": issue(), "expires_in": self.lifetime, "token_type": "Bearer"}
                return web.json_response(token, headers=_FLAVOR)


def issue() -> str:
    """A fresh token."""
    return "ya29." + base64.urlsafe_b64encode(signatures.issue(_CONTENT)).decode().rstrip("=")


def genuine(token: str) -> bool:
    """Whether that is a token of ours."""
    kind, _, sealed = token.partition(".")
    try:
        return kind == "ya29" and signatures.genuine(_bytes(sealed), _CONTENT)
    except ValueError:
        return False


@functools.cache
def _key() -> rsa.RSAPrivateKey:
    """A throwaway key, made once a process: that takes a while."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def account(path: Path, *, token_uri: str, **fields: Any) -> Path:
    """Write the key file of a service account to `path`; `fields` replace its own, None leaves one out."""
    public = (
        _key().public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private = _key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": base64.urlsafe_b64encode(public).decode(),
        "private_key": private.decode(),
        "client_email": f"tarsy@{PROJECT}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_uri,
    } | fields
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def _refusal(form: dict[str, Any]) -> dict[str, str] | None:
    """Why an assertion gets no token, in Google's words; None where it does."""
    if form.get("grant_type") != _GRANT:
        return {"error": "unsupported_grant_type", "error_description": "Invalid grant_type."}
    try:
        signed, _, signature = str(form.get("assertion", "")).rpartition(".")
        header, claims = (json.loads(_bytes(part)) for part in signed.split("."))
        key = serialization.load_der_public_key(_bytes(header["kid"]))
        assert isinstance(key, rsa.RSAPublicKey)  # noqa: S101 - what `account` writes
        key.verify(_bytes(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, KeyError, TypeError, InvalidSignature):
        return {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    if header.get("alg") != "RS256" or claims.get("aud") != _AUDIENCE or not claims.get("iss"):
        return {"error": "invalid_grant", "error_description": "Invalid JWT: its header or audience is wrong."}
    if SCOPE not in urllib.parse.unquote(str(claims.get("scope", ""))).split():
        return {"error": "invalid_scope", "error_description": "Invalid OAuth scope or ID token audience provided."}
    if not claims.get("iat", 0) - 300 <= time.time() <= claims.get("exp", 0) <= claims.get("iat", 0) + 3600:
        description = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
        return {"error": "invalid_grant", "error_description": description}
    return None


def _bytes(encoded: str) -> bytes:
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
