"""Access rights on a real API server: every route of the API, including routes that other modules add."""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from fastapi import Depends, FastAPI
from support import accounts, apis, manifests, queue, waiting
from support.clocks import Clock
from tarsy.auth import permissions
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy.store.intake import queueing
from tarsy.store.queue import work
from tarsy_dev import proxy
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.once

WEBHOOK = "the token"

OPEN = {"/healthz", "/readyz", "/health"}
"""For everybody."""

FOR_THE_WEBHOOK = {"/api/v1/webhooks/alertmanager", "/api/v1/webhooks/grafana", "/api/v1/alerts", "/alerts"}

FOR_THE_WEBHOOK |= {f"{path}/{{namespace}}" for path in FOR_THE_WEBHOOK if "webhooks" in path}

FOR_EVERY_USER = {"/api/v1/session-codes"}
"""A session has the rights of its token, which are checked then."""

FORBIDDEN = re.compile(
    r"User (.*) may not (get|list|create|update|delete) "
    r"(alertinvestigations(/feedback)?|agentchains|mcpservers|auditevents) in namespace"
)

PROXIED = platforms.API(trusted_proxies=["127.0.0.1"])


@pytest.fixture
def clock() -> Clock:
    return Clock(time.monotonic())


class API:
    """The API, asked from outside."""

    def __init__(self, session: aiohttp.ClientSession, application: Mapping[str, Any], *, namespace: str = "") -> None:
        """`namespace` is the operator's own, for routes that have one in their path."""
        self._session = session
        self._namespace = namespace
        self.routes = [
            (method.upper(), path, described)
            for path, operations in application["paths"].items()
            if path not in OPEN
            for method, described in operations.items()
        ] + [("GET", "/openapi.json", {})]

    async def ask(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        request_headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request_headers |= headers or {}
        async with self._session.request(method, path, data=body, headers=request_headers) as response:
            if response.status >= 400:
                assert response.content_type == "application/problem+json"
            if response.status == 401:
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
                assert ('error="invalid_token"' in response.headers["WWW-Authenticate"]) == (token is not None)
            text = await response.text()
            return response.status, json.loads(text) if text and "json" in response.content_type else text

    async def everywhere(self, identity: UUID, *, token: str | None) -> dict[tuple[str, str], tuple[int, Any]]:
        """Return what each route answers about an investigation, or about a body that is `{}`."""
        return {
            (method, path): await self.call(method, path, described, identity=identity, token=token)
            for method, path, described in self.routes
        }

    async def call(
        self, method: str, path: str, described: Mapping[str, Any], *, identity: UUID, token: str | None
    ) -> tuple[int, Any]:
        values = {"identity": str(identity), "namespace": self._namespace}
        filled = re.sub(r"{(\w+)}", lambda match: values.get(match[1], "0"), path)
        return await self.ask(method, filled, token=token, body=b"{}" if "requestBody" in described else None)


Serve = Callable[..., Awaitable[API]]


@pytest.fixture
async def serve(cluster: client.Cluster, database: databases.Database, clock: Clock) -> AsyncIterator[Serve]:
    """Serves an API on a cluster, by default the test's."""
    async with contextlib.AsyncExitStack() as stack:

        async def serving(on: client.Cluster = cluster, settings: platforms.API | None = None) -> API:
            parts = apis.parts(cluster=on, database=database, token=WEBHOOK, settings=settings, clock=clock)
            session = await stack.enter_async_context(apis.served(parts))
            return API(session, apis.description(), namespace=on.served.own)

        yield serving


@pytest.fixture
async def api(serve: Serve) -> API:
    return await serve()


@pytest.fixture
async def admitted(database: databases.Database, cluster: client.Cluster) -> Callable[..., Awaitable[UUID]]:
    """Admits an investigation of the operator's namespace, or of another, as it is now or was once."""

    async def admit(*, namespace: str = cluster.served.own, namespace_uid: str | None = None) -> UUID:
        subject = queue.subject()
        moved = subject.model_copy(update={"metadata": subject.metadata.model_copy(update={"namespace": namespace})})
        admission = replace(queue.admission(moved), namespace_uid=namespace_uid)
        assert await queueing.admit(database, admission)
        return UUID(admission.id)

    return admit


async def state(database: databases.Database) -> list[tuple[Any, ...]]:
    """Return the rows that a caller without access must not have changed."""
    work = await queue.rows(database, "SELECT investigation, state, cancel, revision FROM work")
    runs = await queue.rows(database, "SELECT count(*) FROM runs")
    audited = await queue.rows(database, "SELECT count(*) FROM audit WHERE action <> 'session-code'")
    return [*work, *runs, *audited]


async def test_caller_without_own_permission_is_refused_everywhere(
    api: API,
    serve: Serve,
    plane: Administrator,
    cluster: client.Cluster,
    admin: client.Cluster,
    database: databases.Database,
    admitted: Callable[..., Awaitable[UUID]],
    unreachable: str,
    clock: Clock,
) -> None:
    identity = await admitted()
    before = await state(database)
    good, revoked, deleted = [
        await accounts.create(admin, name, may=accounts.EDITOR) for name in ("good", "revoked", "deleted")
    ]
    await accounts.delete(admin, "deleted")  # before anybody asks: the API server itself believes a token for 10 s
    for bearer in (good, revoked):
        await waiting.seen(lambda token=bearer: _is_let_in(api, identity, token, clock))  # type: ignore[misc]
    await accounts.revoke(admin, "revoked")
    await waiting.seen(lambda: _is_refused(api, identity, revoked, clock))
    now = int(time.time())
    refused: dict[str, tuple[str | None, int]] = {
        "no token": (None, 401),
        "garbage": ("x.y.z", 401),
        "expired": (accounts.signed(plane, good, exp=now - 3600, iat=now - 7200, nbf=now - 7200), 401),
        "another audience": (await accounts.token(admin, "good", audience="vault"), 401),
        "changed": (f"{good[:-8]}AAAAAAAA", 401),
        "account deleted": (deleted, 401),
        "without rights": (await accounts.create(admin, "nobody"), 403),
        "another account's": (
            await accounts.create(admin, cluster.served.own, namespace="default", may=accounts.EDITOR),
            403,
        ),
        "rights taken away": (revoked, 403),
    }
    for case, (token, status) in refused.items():
        for (method, path), (code, problem) in (await api.everywhere(identity, token=token)).items():
            if status == 403 and path in FOR_EVERY_USER:
                assert code == 201, (case, method, path, problem)
                continue
            assert code == status, (case, method, path, problem)
            if status == 403:
                assert FORBIDDEN.match(problem["detail"]), problem
    assert await _is_let_in(api, identity, accounts.signed(plane, good, exp=now + 600)), "what we sign are tokens"

    nowhere = await client.connect(Path(unreachable))
    try:
        for (method, path), (code, problem) in (await (await serve(nowhere)).everywhere(identity, token=good)).items():
            assert (code, "try again" in problem["detail"]) == (503, True), (method, path)
    finally:
        await nowhere.close()
    assert await state(database) == before

    for method, path, described in api.routes:  # each with its own: some end it, or delete it
        code, problem = await api.call(method, path, described, identity=await admitted(), token=good)
        assert code not in (401, 403, 429, 500, 503), (method, path, problem)


async def _is_let_in(api: API, identity: UUID, token: str, clock: Clock | None = None) -> bool:
    if clock:
        clock.now += 61
    return (await api.ask("GET", f"/api/v1/investigations/{identity}", token=token))[0] == 200


async def _is_refused(api: API, identity: UUID, token: str, clock: Clock) -> bool:
    return not await _is_let_in(api, identity, token, clock)


async def test_the_webhooks_token_is_good_for_alerts_alone_and_never_sent_to_the_api_server(
    serve: Serve, unreachable: str, database: databases.Database, admitted: Callable[..., Awaitable[UUID]]
) -> None:
    identity = await admitted()
    nowhere = await client.connect(Path(unreachable))
    try:
        api = await serve(nowhere)
        for (_, path), (status, problem) in (await api.everywhere(identity, token=WEBHOOK)).items():
            if path in FOR_THE_WEBHOOK:
                assert status in (400, 422), "let in, and what it sends is none"
            else:
                assert status == 403
                assert problem["detail"].startswith("the webhook's token only sends alerts")
    finally:
        await nowhere.close()


@pytest.fixture
async def bare(cluster: client.Cluster, database: databases.Database, clock: Clock) -> AsyncIterator[API]:
    """A route for each way to ask for rights, which answers what it was told."""
    parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK, settings=PROXIED, clock=clock)
    tokens = apis.tokens(cluster, WEBHOOK)
    may = permissions.Access(cluster=cluster, database=database, tokens=tokens, settings=PROXIED, clock=clock)
    application = FastAPI()
    problems.install(application)

    everybody = {
        "lists": may.list_in,
        "notifies": may.notify,
        "submits": may.submit,
        "oversees": may.see_setup,
        "audits": may.read_audit,
    }
    for name, asks in everybody.items():
        application.get(f"/{name}")(_telling(asks))
    for name, right in {
        "reads": may.read,
        "changes": may.update,
        "purges": may.delete,
        "judges": may.give_feedback,
    }.items():
        application.get(f"/{name}/{{identity}}")(_telling(right))
    application.get("/accepts/{name}")(_telling(may.accept_tools))
    async with apis.served(parts, application=application) as session:
        yield API(session, {"paths": {}})


def _telling(asks: Any) -> Callable[..., Any]:
    async def tell(answer: Any = Depends(asks)) -> Any:
        return answer

    return tell


async def test_each_right_is_good_for_what_it_is_on_the_objects(
    bare: API, cluster: client.Cluster, admin: client.Cluster, admitted: Callable[..., Awaitable[UUID]], clock: Clock
) -> None:
    identity, namespace = await admitted(), cluster.served.own
    for verb in accounts.EVERYTHING:
        await accounts.grant(admin, verb, may={"alertinvestigations": [verb]})
    await accounts.grant(admin, "chains", may={"agentchains": ["list"]})
    await accounts.grant(admin, "servers", may={"mcpservers": ["update"]})
    await accounts.grant(admin, "auditors", may={"auditevents": ["get"]})
    await accounts.grant(admin, "feedback", may={"alertinvestigations/feedback": ["create"]})
    asked = {
        "get": [f"/reads/{identity}"],
        "list": ["/lists", f"/lists?namespace={namespace}"],
        "create": ["/submits", "/notifies"],
        "update": [f"/changes/{identity}"],
        "delete": [f"/purges/{identity}"],
        "chains": ["/oversees"],
        "feedback": [f"/judges/{identity}"],
        "servers": ["/accepts/kube", f"/accepts/{'x' * 3000}"],
        "auditors": ["/audits", f"/audits?namespace={namespace}"],
    }

    async def asks(user: str, path: str) -> tuple[int, Any]:
        return await bare.ask("GET", path, headers={"X-Forwarded-User": user})

    async def has_it(user: str) -> bool:
        clock.now += 11
        return (await asks(user, asked[user][0]))[0] == 200

    for user in asked:
        await waiting.seen(lambda user=user: has_it(user))  # type: ignore[misc]
        for verb, paths in asked.items():
            for path in paths:
                status, answer = await asks(user, path)
                if verb == user:
                    assert status == 200
                    continue
                hidden = verb in ("update", "delete", "feedback") and user != "get"
                missing = {
                    "chains": "list agentchains",
                    "servers": "update mcpservers",
                    "auditors": "get auditevents",
                    "feedback": "create alertinvestigations/feedback",
                }.get(verb, f"{verb} alertinvestigations")
                missing = "get alertinvestigations" if hidden else missing
                assert (status, answer["detail"]) == (403, f"User {user} may not {missing} in namespace {namespace}")


async def test_a_list_is_of_a_namespace_as_it_is_now(bare: API, editor: str, plane: Administrator) -> None:
    uid = plane.kubectl("get", "namespace", "default", "-o", "jsonpath={.metadata.uid}")
    status, answer = await bare.ask("GET", "/lists?namespace=default", token=editor)
    assert (status, answer["namespaces"]) == (200, {"default": uid})
    status, answer = await bare.ask("GET", "/lists?namespace=never-there", token=editor)
    assert (status, answer["detail"]) == (404, "there is no namespace never-there")
    for name in ("..", ".", "a/b", "A", "", "a" * 64):
        assert (await bare.ask("GET", f"/lists?namespace={name}", token=editor))[0] == 422


async def test_caller_without_rights_does_not_learn_which_ids_exist(
    api: API, admin: client.Cluster, admitted: Callable[..., Awaitable[UUID]], clock: Clock, editor: str
) -> None:
    here, elsewhere = await admitted(), await admitted(namespace="default")
    reader = await accounts.create(admin, "reader", may={"alertinvestigations": ["get"]})
    nobody = await accounts.create(admin, "nobody")
    await waiting.seen(lambda: _is_let_in(api, here, reader, clock))
    assert await _is_let_in(api, elsewhere, editor)
    unknown = uuid.uuid4()
    for token, ids in ((nobody, (here, elsewhere, "x")), (reader, (elsewhere, "x"))):
        for method, path in (("GET", ""), ("GET", "/timeline"), ("POST", "/chat"), ("POST", "/chat/cancel")):
            url = f"/api/v1/investigations/{{}}{path}"
            status, problem = await api.ask(method, url.format(unknown), token=token)
            for identity in ids:
                answer = await api.ask(method, url.format(identity), token=token)
                assert json.loads(json.dumps(answer).replace(str(identity), str(unknown), 1)) == [status, problem]
            assert status == (403 if token == nobody else 404)


async def test_a_transcript_belongs_to_the_namespace_that_its_object_was_in(
    api: API, cluster: client.Cluster, admitted: Callable[..., Awaitable[UUID]], editor: str, plane: Administrator
) -> None:
    live = plane.kubectl("get", "namespace", cluster.served.own, "-o", "jsonpath={.metadata.uid}")
    for uid, namespace, status in (
        (live, cluster.served.own, 200),
        (None, cluster.served.own, 200),
        (str(uuid.uuid4()), cluster.served.own, 404),
        (live, "never-there", 404),
        (None, "never-there", 404),
    ):
        identity = await admitted(namespace=namespace, namespace_uid=uid)
        for path in ("", "/timeline"):
            code, _ = await api.ask("GET", f"/api/v1/investigations/{identity}{path}", token=editor)
            assert code == status, (uid, namespace)
        for path in ("/chat", "/chat/cancel"):
            code, _ = await api.ask("POST", f"/api/v1/investigations/{identity}{path}", token=editor, body=b"{}")
            assert (code == 404) == (status == 404)


async def test_deleted_namespace_is_purged_only_by_callers_with_cluster_wide_delete_right(
    api: API,
    cluster: client.Cluster,
    admin: client.Cluster,
    database: databases.Database,
    admitted: Callable[..., Awaitable[UUID]],
    editor: str,
    clock: Clock,
) -> None:
    here = await accounts.create(admin, "here", may=accounts.EDITOR)
    await waiting.seen(lambda: _is_let_in_anew(api, admitted, here, clock))
    for namespace, uid in ((cluster.served.own, str(uuid.uuid4())), ("never-there", "any"), ("never-there", None)):
        identity = await admitted(namespace=namespace, namespace_uid=uid)
        await work.cancel(database, identity, why="user")
        path = f"/api/v1/investigations/{identity}"
        assert (await api.ask("DELETE", f"{path}?purge=true", token=here))[0] in (403, 404)
        for method, below in (("GET", ""), ("GET", "/timeline"), ("GET", "/export"), ("POST", "/cancel")):
            assert (await api.ask(method, f"{path}{below}", token=editor))[0] == 404, "nobody reads it"
        assert (await api.ask("DELETE", f"{path}?purge=true", token=editor))[0] == 204
        assert (await api.ask("DELETE", f"{path}?purge=true", token=editor))[0] == 404
        left = "SELECT count(*) FROM entries WHERE investigation = :id"
        assert await queue.rows(database, left, id=identity) == [(0,)]
        done = "SELECT who FROM audit WHERE investigation = :id AND action = 'purge'"
        assert await queue.rows(database, done, id=identity) == [(accounts.EDITORS_NAME,)]


async def _is_let_in_anew(api: API, admitted: Callable[..., Awaitable[UUID]], token: str, clock: Clock) -> bool:
    return await _is_let_in(api, await admitted(), token, clock)


async def test_review_answers_hold_for_their_time_and_permit_nothing_without_the_api_server(
    serve: Serve,
    cluster: client.Cluster,
    plane: Administrator,
    admitted: Callable[..., Awaitable[UUID]],
    editor: str,
    clock: Clock,
    tmp_path: Path,
) -> None:
    host, port = plane.url.removeprefix("https://").split(":")
    async with proxy.serve(host, int(port)) as between:
        kubeconfig = plane.kubeconfig(namespace=cluster.served.own).read_text()
        path = tmp_path / "through"
        path.write_text(kubeconfig.replace(plane.url, f"https://127.0.0.1:{between.port}"))
        through = await client.connect(path)
        try:
            api = await serve(through)
            identity = await admitted()
            assert await _is_let_in(api, identity, editor)
            assert (await api.ask("GET", "/openapi.json", token=editor))[0] == 200
            between.refuse()
            between.cut()
            assert (await api.ask("GET", "/openapi.json", token=editor))[0] == 200, "30 s ago it was so"
            clock.now += 2
            assert (await api.ask("GET", f"/api/v1/investigations/{identity}", token=editor))[0] == 503, "its namespace"
            clock.now += 28
            status, problem = await api.ask("GET", "/openapi.json", token=editor)
            assert (status, problem["detail"].split(" cannot")[0]) == (
                503,
                "the rights of User system:serviceaccount:default:tarsy-test-editor",
            )
            clock.now += 30
            status, problem = await api.ask("GET", "/openapi.json", token=editor)
            assert (status, problem["detail"].split(" cannot")[0]) == (503, "the owner of the token")
            between.accept()
            assert (await api.ask("GET", "/openapi.json", token=editor))[0] == 200
        finally:
            await through.close()


async def test_operator_without_review_rights_admits_no_caller_and_logs_the_missing_role(
    serve: Serve,
    admin: client.Cluster,
    plane: Administrator,
    namespace: str,
    editor: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = await accounts.create(admin, "operator", may=accounts.EDITOR)
    limited = await client.connect(plane.kubeconfig(namespace=namespace, user="limited", token=token))
    try:
        status, problem = await (await serve(limited)).ask("GET", "/openapi.json", token=editor)
    finally:
        await limited.close()
    assert (status, "system:auth-delegator" in problem["detail"]) == (503, True)
    assert 'cannot create resource "tokenreviews"' in caplog.text
    assert "tokenreviews" not in problem["detail"], "that is for the log"


async def test_caller_from_trusted_proxy_has_own_rights_and_those_of_all_proxied_callers(
    serve: Serve,
    cluster: client.Cluster,
    admin: client.Cluster,
    admitted: Callable[..., Awaitable[UUID]],
    clock: Clock,
    editor: str,
) -> None:
    trusting, wary = await serve(settings=PROXIED), await serve()
    path = f"/api/v1/investigations/{await admitted()}"
    jane = {"X-Forwarded-User": "jane", "X-Forwarded-Groups": "sre, dev"}
    assert (await wary.ask("GET", path, headers=jane))[0] == 401
    status, problem = await trusting.ask("GET", path, headers=jane)
    where = f"in namespace {cluster.served.own}"
    assert (status, problem["detail"]) == (403, f"User jane may not get alertinvestigations {where}")
    for kind, name in (("User", "jane"), ("Group", "dev"), ("Group", "tarsy:proxied")):
        await accounts.grant(admin, name, kind=kind, may={"alertinvestigations": ["get"]})

        async def answered(status: int) -> bool:
            clock.now += 31
            return (await trusting.ask("GET", path, headers=jane))[0] == status

        await waiting.seen(lambda: answered(200))
        other = {"X-Forwarded-Email": "joe@example.com"}
        assert (await trusting.ask("GET", path, headers=other))[0] == (200 if name == "tarsy:proxied" else 403)
        await accounts.revoke(admin, name)
        await waiting.seen(lambda: answered(403))
    assert (await trusting.ask("GET", path, headers=jane, token="x.y.z"))[0] == 401, "a token says whose rights count"
    assert (await trusting.ask("GET", path, headers=jane | {"X-Forwarded-Groups": "system:masters"}))[0] == 403
    assert (await trusting.ask("GET", path, headers=jane, token=editor))[0] == 200


async def test_caller_who_submits_an_alert_is_recorded_as_author_and_in_the_audit(
    serve: Serve, plane: Administrator, namespace: str, database: databases.Database, editor: str
) -> None:
    api = await serve(settings=PROXIED)
    plane.kubectl(
        "apply", "-f", "-", input=json.dumps(manifests.chain("kubernetes", "KubePodCrashLooping")), namespace=namespace
    )
    forwarded = {"X-Forwarded-For": "198.51.100.9, 203.0.113.7, 127.0.0.1"}
    mail = {"X-Forwarded-Email": "jane@example.com"}
    cases: list[tuple[str, str | None, dict[str, str], str, str]] = [
        ("webhook", WEBHOOK, {}, "api-client", "127.0.0.1"),
        ("proxied webhook", WEBHOOK, mail | forwarded, "jane@example.com", "203.0.113.7"),
        ("person", editor, {}, "system:serviceaccount:default:tarsy-test-editor", "127.0.0.1"),
        ("named", editor, mail | {"X-Forwarded-User": "Jörg"}, "Jörg", "127.0.0.1"),
    ]
    for number, (case, token, headers, author, address) in enumerate(cases):
        notification = manifests.notification(fingerprint=f"{number:016x}")
        alert = json.dumps({"alert_type": "kubernetes", "data": case}).encode()
        status, receipt = await api.ask(
            "POST", "/api/v1/webhooks/alertmanager", token=token, headers=headers, body=notification
        )
        assert (status, receipt["counts"]["created"]) == (200, 1), (case, receipt)
        status, queued = await api.ask("POST", "/api/v1/alerts", token=token, headers=headers, body=alert)
        assert status == 202, (case, queued)
        for name in (receipt["alerts"][0]["name"], queued["name"]):
            assert plane.kubectl("get", "inv", name, "-o", "jsonpath={.spec.author}", namespace=namespace) == author
            stored = await queue.rows(
                database,
                "SELECT author, who, address FROM investigations JOIN audit ON audit.investigation = investigations.id "
                "WHERE investigations.name = :name AND action = 'create'",
                name=name,
            )
            assert stored == [(author, author, address)], case


async def test_requests_over_the_rate_limit_get_429_and_webhooks_get_retry_after(
    serve: Serve,
    editor: str,
    clock: Clock,
    admitted: Callable[..., Awaitable[UUID]],
    admin: client.Cluster,
) -> None:
    other = await accounts.create(admin, "other")
    api = await serve(settings=platforms.API(requests_per_second=1, burst=3))
    path = f"/api/v1/investigations/{await admitted()}"
    assert [(await api.ask("GET", path, token=editor))[0] for _ in range(4)] == [200, 200, 200, 429]
    async with api._session.get(path, headers={"Authorization": f"Bearer {editor}"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    assert (await api.ask("GET", path, token=other))[0] == 403, "others have their own"
    assert [(await api.ask("GET", path, token=f"guess{n}"))[0] for n in range(3)] == [401, 429, 429], "by address"
    assert (await api.ask("GET", path))[0] == 429
    webhook = "/api/v1/webhooks/alertmanager"
    assert (await api.ask("POST", webhook, body=b"{}", token="guess"))[0] == 503
    assert [(await api.ask("POST", webhook, body=b"{}", token=WEBHOOK))[0] for _ in range(4)] == [400, 400, 400, 503]
    async with api._session.post(webhook, data=b"{}", headers={"Authorization": f"Bearer {WEBHOOK}"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    for _ in range(10):
        assert (await api.ask("GET", "/healthz"))[0] == 200
        assert (await api.ask("GET", "/readyz"))[0] == 200
    clock.now += 1
    assert [(await api.ask("GET", path, token=editor))[0] for _ in range(2)] == [200, 429]
