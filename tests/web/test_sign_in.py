"""Sessions in a real Chromium: two replicas behind one address, used codes, ended sessions, other origins, rights."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

from aiohttp import web
from playwright import async_api as playwright
from support import stories
from support.investigated import World, analysis, collection, commit, joined
from support.signed_in_pages import (
    Serve,
    SignIn,
)
from tarsy_dev import proxy

READ = {"alertinvestigations": ["get", "list"]}


async def test_a_session_and_a_stream_go_on_at_another_replica(
    serve_pages: Serve, sign_in_page: SignIn, world: World
) -> None:
    identity, writing = await world.begin()
    log = [*collection(), *joined("All agree."), *analysis("It is memory.")]
    first, second = await serve_pages(), await serve_pages()

    async with proxy.serve("127.0.0.1", first) as between:
        page = await sign_in_page(between.port, READ | {"alertinvestigations": ["get", "list", "update"]})
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
        event_ids = await page.locator(".event").evaluate_all("all => all.map(each => each.id)")
        assert len(event_ids) == len(set(event_ids))

        await page.locator("#cancel").click()
        await page.get_by_role("button", name="Cancel the investigation").click()
        await playwright.expect(page.locator("#head")).to_contain_text("Cancelling")


async def test_a_page_of_another_origin_changes_nothing(serve_pages: Serve, sign_in_page: SignIn, world: World) -> None:
    identity, writing = await world.begin()
    await commit(writing, [stories.stage_started("data-collection")])
    port = await serve_pages()
    page = await sign_in_page(port, {"alertinvestigations": ["get", "list", "update", "create"]})
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


async def test_user_without_rights_cannot_see_which_investigations_exist(
    serve_pages: Serve, sign_in_page: SignIn, world: World
) -> None:
    identity, writing = await world.begin("secret-name")
    await commit(writing, [*collection(), *joined("secret-name"), *analysis("secret-name")])
    page = await sign_in_page(await serve_pages(), {})

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
