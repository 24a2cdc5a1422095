"""Sessions in a real Chromium: two replicas behind one address, used codes, ended sessions, other origins, rights."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from playwright import async_api as playwright
from support import accounts, apis, queue, stories
from support import browser as browsers
from support.investigated import World, analysis, collection, commit, joined
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.web import site
from tarsy_dev import proxy

WEBHOOK = "the webhook's token"
Serve = Callable[[], Awaitable[int]]
SignIn = Callable[..., Awaitable[playwright.Page]]
READ = {"alertinvestigations": ["get", "list"]}


@pytest.fixture
async def serve(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[Serve]:
    """Serves a replica of the API with its pages, and returns its port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> int:
            parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
            application = app.build(parts)
            site.add(application)
            url = await stack.enter_async_context(apis.listening(parts, application=application, hears=True))
            return int(url.rpartition(":")[2])

        yield start


async def address(port: int, token: str) -> str:
    """Return the address that signs a browser in, once."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/api/v1/session-codes", headers=apis.bearer(token)) as response,
    ):
        assert response.status == 201
        return str((await response.json())["url"])


@pytest.fixture
async def sign_in(browser: playwright.Browser, admin: client.Cluster) -> AsyncIterator[SignIn]:
    """Opens a window, signed in as a new user with some rights, at a port."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_page(port: int, may: dict[str, list[str]]) -> playwright.Page:
            token = await accounts.create(admin, f"user-{uuid.uuid4().hex[:8]}", may=may)
            page = await stack.enter_async_context(browsers.opened(browser, f"http://127.0.0.1:{port}"))
            await page.goto(await address(port, token))
            return page

        yield open_page


@pytest.mark.slow
async def test_a_session_and_a_stream_go_on_at_another_replica(serve: Serve, sign_in: SignIn, world: World) -> None:
    identity, writing = await world.begin()
    log = [*collection(), *joined("All agree."), *analysis("It is memory.")]
    first, second = await serve(), await serve()

    async with proxy.serve("127.0.0.1", first) as between:
        page = await sign_in(between.port, READ | {"alertinvestigations": ["get", "list", "update"]})
        await page.goto(f"/investigations/{identity}")
        await playwright.expect(page.locator("#live-state")).to_have_text("Live")
        await commit(writing, log[:4])
        await playwright.expect(page.locator("li[id='event-agent0.0.0.result']")).to_have_count(1)

        between.upstream = ("127.0.0.1", second)
        between.cut()
        await commit(writing, log[4:-1])
        await playwright.expect(page.locator("li[id='event-last.0.text'], li[id^='event-last.0.']")).not_to_have_count(
            0
        )
        await playwright.expect(page.locator("#live-state")).to_have_text("Live")
        shown = await page.locator(".event").evaluate_all("all => all.map(each => each.id)")
        assert len(shown) == len(set(shown))

        await page.locator("#cancel").click()
        await page.get_by_role("button", name="Cancel the investigation").click()
        await playwright.expect(page.locator("#head")).to_contain_text("Cancelling")


@pytest.mark.slow
async def test_a_used_code_and_an_ended_session_lead_to_signing_in(
    serve: Serve, admin: client.Cluster, browser: playwright.Browser, database: databases.Database
) -> None:
    port = await serve()
    token = await accounts.create(admin, f"user-{uuid.uuid4().hex[:8]}", may=READ)
    async with browsers.opened(browser, f"http://127.0.0.1:{port}") as page:
        code = await address(port, token)
        await page.goto(code)
        await playwright.expect(page.locator("#live-text")).to_have_text("Live")
        await queue.execute(database, "UPDATE browser_sessions SET until = clock_timestamp() WHERE NOT is_code")
        await page.reload()
        await playwright.expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

        await page.goto(code)

        await playwright.expect(page.get_by_text("the code is unknown, used or older than 30 seconds")).to_be_visible()
        await browsers.look(page, "sign-in")


@pytest.mark.slow
async def test_an_open_page_says_when_its_session_has_ended(
    serve: Serve, sign_in: SignIn, world: World, database: databases.Database
) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    page = await sign_in(await serve(), READ)
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#live-state")).to_have_text("Live")

    await queue.execute(database, "UPDATE browser_sessions SET until = clock_timestamp() WHERE NOT is_code")
    await commit(writing, collection()[1:2])

    await playwright.expect(page.locator("#live-state")).to_contain_text("have ended")


@pytest.mark.slow
async def test_a_page_of_another_origin_changes_nothing(serve: Serve, sign_in: SignIn, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    port = await serve()
    page = await sign_in(port, {"alertinvestigations": ["get", "list", "update", "create"]})
    path = f"http://127.0.0.1:{port}/api/v1/investigations/{identity}/cancel"
    form = f'<form method="post" action="{path}" enctype="text/plain"><button>Win</button></form>'
    async with other_site(form) as elsewhere:
        context = page.context
        other = await context.new_page()
        await other.goto(elsewhere)

        sent = await other.evaluate(
            """async (path) => {
              const kinds = ["application/json", "text/plain"];
              const options = { method: "POST", body: "{}", credentials: "include" };
              const send = (type) => fetch(path, { ...options, headers: { "Content-Type": type } });
              const outcomes = await Promise.allSettled(kinds.map(send));
              return outcomes.map((outcome) => outcome.status);
            }""",
            path,
        )
        async with other.expect_response(path) as refused:
            await other.get_by_role("button", name="Win").click()

    assert sent == ["rejected", "rejected"]
    assert (await refused.value).status in (403, 415)
    await page.goto(f"/investigations/{identity}")
    await playwright.expect(page.locator("#head")).to_contain_text("Running")


@contextlib.asynccontextmanager
async def other_site(body: str) -> AsyncIterator[str]:
    """Serve a page at another port, to which a browser sends the same cookies; its address."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=f"<!doctype html><title>Elsewhere</title>{body}", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    where = web.TCPSite(runner, "127.0.0.1", 0)
    await where.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.mark.slow
async def test_a_user_who_may_only_read_is_refused_each_action_in_words(
    serve: Serve, sign_in: SignIn, world: World
) -> None:
    identity, writing = await world.begin()
    page = await sign_in(await serve(), {"alertinvestigations": ["get"]})
    await page.goto(f"/investigations/{identity}")

    await page.locator("#cancel").click()
    await page.get_by_role("button", name="Cancel the investigation").click()
    await playwright.expect(page.locator("#cancel-error")).to_contain_text("may not update alertinvestigations")
    await page.get_by_role("button", name="Keep it running").click()
    await commit(writing, [*collection(), *joined("All agree."), *analysis("It is memory.")])
    await page.get_by_label("Ask about this investigation").fill("Why now?")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await playwright.expect(page.locator("#ask-error")).to_contain_text("may not update alertinvestigations")

    for path, right in (("/", "list"), ("/submit", "create"), ("/system", "list")):
        response = await page.goto(path)
        assert response is not None
        assert response.status == 403, path
        await playwright.expect(page.locator("dl")).to_contain_text(right)
        await playwright.expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    await browsers.look(page, "missing-right")


@pytest.mark.slow
async def test_a_user_without_rights_learns_nothing_of_what_there_is(
    serve: Serve, sign_in: SignIn, world: World
) -> None:
    identity, writing = await world.begin("secret-name")
    await commit(writing, [*collection(), *joined("secret-name"), *analysis("secret-name")])
    page = await sign_in(await serve(), {})

    texts = {}
    for path in (
        "/",
        "/fragments/investigations",
        *(
            f"/investigations/{each}{part}"
            for each in (identity, uuid.uuid4())
            for part in ("", "/fragment", "/event?id=last.0.text", "/trace", "/trace/rows", "/trace/llm/1")
        ),
        f"/submitted/{identity}",
        "/system",
        "/system/parts",
        "/submit",
        "/submit/match?alert_type=kubernetes",
    ):
        response = await page.goto(path)
        assert response is not None
        texts[path] = (response.status, await page.locator("main").inner_text())

    assert {status for status, _ in texts.values()} == {403}
    assert all("secret-name" not in text for _, text in texts.values())
    of_investigations = {text for path, (_, text) in texts.items() if path.startswith("/investigations/")}
    assert len(of_investigations) == 1, "the answer is the same for an unknown investigation"
