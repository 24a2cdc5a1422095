"""Static files of the pages: style sheet, icons, scripts.

The folder in their URLs is a digest of all of them, so a browser may keep a file for good and never shows a page with
the script of another version. Scripts import one another by relative paths, which stay within the folder.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources

from fastapi import APIRouter, Request, Response

from tarsy.serve import problems, strict

_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_DIGEST_LENGTH = 16  # characters


@dataclass(frozen=True, kw_only=True)
class _File:
    media_type: str
    body: bytes
    compressed: bytes


class Assets:
    """All static files, read once."""

    def __init__(self) -> None:
        digest = hashlib.sha256()
        self._files: dict[str, _File] = {}
        folder = resources.files("tarsy.web") / "static"
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            media_type = _MEDIA_TYPES.get(path.name.rpartition(".")[2])
            if media_type is None:
                continue
            body = path.read_bytes()
            digest.update(f"{path.name}\0{len(body)}\0".encode() + body)
            self._files[path.name] = _File(media_type=media_type, body=body, compressed=gzip.compress(body, mtime=0))
        self._digest = digest.hexdigest()[:_DIGEST_LENGTH]

    def url(self, name: str) -> str:
        """Return the path of a file. Raises KeyError if there is none of that name."""
        self._files[name]
        return f"/static/{self._digest}/{name}"

    def response(self, digest: str, name: str, *, accepts_gzip: bool) -> Response:
        """Return a file. Raises a Problem (404) for an unknown file and for one of another version."""
        file = self._files.get(name) if digest == self._digest else None
        if file is None:
            raise problems.Problem(HTTPStatus.NOT_FOUND, "there is no such file; load the page again")
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if accepts_gzip:
            headers["Content-Encoding"] = "gzip"
        return Response(file.compressed if accepts_gzip else file.body, media_type=file.media_type, headers=headers)


def routes(assets: Assets) -> APIRouter:
    """Build the route of static files, which need no token."""
    router = strict.router(tag="pages")

    @router.get("/static/{digest}/{name}", include_in_schema=False)
    async def static(digest: str, name: str, request: Request) -> Response:
        """Return a static file."""
        return assets.response(digest, name, accepts_gzip="gzip" in request.headers.get("Accept-Encoding", ""))

    return router
