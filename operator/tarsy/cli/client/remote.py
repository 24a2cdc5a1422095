"""Requests to the API, and its live events. They use the standard library's HTTP client, which is imported fast.

Source: WHATWG HTML, "Server-sent events", section 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib import parse

from tarsy.cli.client import failures

if TYPE_CHECKING:
    import http.client
    import urllib.error

SECONDS = 30.0
SILENCE_SECONDS = 45.0
"""Seconds without a byte after which a stream of events is opened again; the API sends a comment every 15 s."""
ANSWER_MAX = 64 * 1024 * 1024  # bytes
INVESTIGATIONS = "/api/v1/investigations"
AWAY = {429, 502, 503, 504}
"""Status codes of an API that cannot answer now."""
BREAK_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class LiveEvent:
    """A server-sent event."""

    type: str
    id: str
    data: dict[str, Any]


class API:
    """A client of the API, with a token."""

    def __init__(
        self,
        url: Callable[[], str],
        *,
        token: Callable[[], str],
        hint: Callable[[], str] = lambda: "",
        renew: Callable[[], bool] = lambda: False,
        is_local: bool = False,
    ) -> None:
        """`url` and `token` are called for each request.

        If the API refuses a token, `hint` returns text for the message. If it accepted the token before, `renew` is
        called first; it returns whether `token` may return another one. With `is_local`, no proxy is used.
        """
        self._hint = hint
        self._renew = renew
        self._is_known = False
        self.url = url
        self._token = token
        import urllib.request  # here and below: it takes longer to import than the rest of a command

        class NoRedirects(urllib.request.HTTPRedirectHandler):
            """A handler that refuses redirects: the API sends none, and the token would be sent along."""

            def redirect_request(self, *_: Any) -> None:
                """Refuse the redirect."""

        proxies = [urllib.request.ProxyHandler({})] if is_local else []
        self._opener = urllib.request.build_opener(NoRedirects, *proxies)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Return the JSON of the answer. Raises a Failure with the API's reason."""
        import http.client

        with self.open(method, path, body, **query) as response:
            try:
                return json.loads(response.read(ANSWER_MAX))
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise failures.Unreachable(f"{path}: the answer was cut off: {error}") from error

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON at a path."""
        return self.ask("GET", path, **query)

    def open(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> http.client.HTTPResponse:
        """Return the open answer of the API. Raises a Failure with the API's reason."""
        import http.client
        import urllib.error
        import urllib.request

        url = self.url()
        parameters = [(name, value) for name, value in query.items() if value is not None]
        target = url + path + (f"?{parse.urlencode(parameters, doseq=True)}" if parameters else "")
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        if token := self._token():
            all_headers["Authorization"] = f"Bearer {token}"
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(target, data=payload, headers=all_headers, method=method)  # noqa: S310 - http
        seconds = SILENCE_SECONDS if (headers or {}).get("Accept") == "text/event-stream" else SECONDS
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 401 and self._is_known and self._renew():
                    self._is_known = False
                    return self.open(method, path, body, headers=headers, **query)
                raise failure(error, hint=self._hint() if error.code == 401 else "") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise failures.Unreachable(f"the API at {url} cannot be reached: {why}") from error
        self._is_known = True
        return response

    def cursor_pages(
        self, path: str, *, limit: int, page_max: int, cursor: str | None = None, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list from a cursor on, up to `limit` items; 0 is all."""
        left = limit
        while True:
            page = self.get(path, **query, cursor=cursor, limit=min(left, page_max) if limit else page_max)
            left -= len(page["items"])
            yield page
            cursor = page["next"]
            if not cursor or (limit and left <= 0):
                return

    def pages(self, path: str, items: str, *, after: int = 0, **query: Any) -> Iterator[tuple[list[Any], int]]:
        """Yield the items of each page after entry `after` of the log, and the last entry of the page."""
        more = True
        while more:
            page = self.get(path, after=after, **query)
            after, more = page["last"], page["more"]
            yield page[items], after

    def events(
        self, path: str, *, last_id: str = "", interrupted: Callable[[str], None], deadline: float | None = None
    ) -> Iterator[LiveEvent]:
        """Yield live events. When the connection is cut, continue after the last one.

        `interrupted` is called with the reason of each interruption. Ends when the API ends the subscription. Raises a
        Failure if the API refuses it, or once the monotonic clock has reached `deadline`.
        """
        import http.client

        failed = 0
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
            try:
                with self.open("GET", path, headers=headers) as response:
                    for event in read_events(response):
                        failed = 0
                        last_id = event.id or last_id
                        yield event
                        if event.type == "subscription.ended":
                            return
                reason = "the stream ended"
            except failures.Unreachable as error:
                reason = error.message
            except (OSError, http.client.HTTPException) as error:
                reason = f"the connection was cut: {error}"
            if deadline is not None and time.monotonic() >= deadline:
                raise failures.Late("--timeout has passed")
            if failed or not reason.startswith("the stream ended"):
                interrupted(reason)
            time.sleep(BREAK_SECONDS[min(failed, len(BREAK_SECONDS) - 1)])
            failed += 1


def read_events(response: Iterator[bytes]) -> Iterator[LiveEvent]:
    """Yield the events of a stream of lines; an incomplete last event is left out."""
    kind, identity, body = "message", "", ""
    for raw in response:
        line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
        if not line:
            if body:
                yield LiveEvent(type=kind, id=identity, data=json.loads(body))
            kind, identity, body = "message", "", ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "id":
            identity = value
        elif name == "data":
            body += value


def failure(error: urllib.error.HTTPError, *, hint: str = "") -> failures.Failure:
    """Return the failure for an error answer of the API, with the API's message."""
    import http.client

    detail, faults = error.reason or "", ""
    try:
        problem = json.loads(error.read(ANSWER_MAX))
        detail = str(problem["detail"])
        faults = "".join(
            f"\n  {fault['place']}: {fault['message']}"
            for fault in problem.get("errors") or ()
            if fault["message"] not in detail or fault["place"] not in detail
        )
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        pass
    message = f"{error.code}: {detail}{faults}" + (f"\n{hint}" if hint else "")
    if error.code in (401, 403):
        return failures.Refused(message)
    if error.code == 404:
        return failures.NotFound(message)
    if error.code in AWAY:
        return failures.Unreachable(message)
    return failures.Misuse(message) if error.code in (400, 413, 422) else failures.Failure(message)


def below(uid: str, rest: str = "") -> str:
    """Return the path of an investigation, followed by `rest`."""
    return f"{INVESTIGATIONS}/{parse.quote(uid, safe='')}{rest}"
