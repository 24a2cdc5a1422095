"""Output made of an MCP server's answer: text as it is, the rest by its name, nothing twice, all masked."""

from __future__ import annotations

import asyncio
import base64
import threading
from typing import Any

import pytest
from mcp import types
from tarsy.masking import masker
from tarsy.tools.calls import results
from tarsy.transcript import ports

TEXT = types.TextContent(type="text", text="web-0 is Running")
IMAGE = types.ImageContent(type="image", data=base64.b64encode(b"hello").decode(), mime_type="image/png")


LOG = types.TextResourceContents(uri="file:///log", text="out of memory")
CORE = types.BlobResourceContents(uri="file:///core", blob=base64.b64encode(b"x" * 12_345).decode())
TYPED = types.BlobResourceContents(uri="file:///a\nb", mime_type="application/zip", blob="aGk=")
LINK = types.ResourceLink(type="resource_link", name="log", uri="file:///log")
SIZED = types.ResourceLink(type="resource_link", name="log", uri="file:///log", mime_type="text/plain", size=2048)
INLINE = types.ResourceLink(type="resource_link", name="log", uri=f"data:text/plain;base64,{'QUFB' * 1000}")


def embedded(resource: types.TextResourceContents | types.BlobResourceContents) -> types.EmbeddedResource:
    return types.EmbeddedResource(type="resource", resource=resource)


def texts(*lines: str) -> list[types.ContentBlock]:
    return [types.TextContent(type="text", text=text) for text in lines]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([TEXT, embedded(LOG)], "web-0 is Running\n[resource file:///log]\nout of memory"),
        ([IMAGE, TEXT], "[image, image/png, 5 bytes: not shown]\nweb-0 is Running"),
        ([embedded(CORE)], "[resource file:///core, of unknown type, 12,345 bytes: not shown]"),
        ([embedded(TYPED)], "[resource file:///a b, application/zip, 2 bytes: not shown]"),
        ([LINK], "[a link to file:///log]"),
        ([SIZED], "[a link to file:///log, text/plain, 2,048 bytes]"),
        ([INLINE], "[a link to data:text/plain;base64,…]"),
        ([], ""),
    ],
)
def test_content_that_is_no_text_is_named_with_type_and_size(content: list[types.ContentBlock], text: str) -> None:
    output = results.to_output(types.CallToolResult(content=content))
    assert output == ports.ToolOutput(text=text)


@pytest.mark.parametrize(
    ("lines", "structured"),
    [
        (['{"phase": "Läuft", "n": 1}'], {"n": 1, "phase": "Läuft"}),
        (["web-0", "web-1"], {"result": ["web-0", "web-1"]}),
        (['{"a": 1}', '{"a": 2}'], {"result": [{"a": 1}, {"a": 2}]}),
        (["There it is:", '{"a": 1}'], {"a": 1}),
        (["x" * (results.COMPARED_MAX + 1)], {"items": [1]}),
        (
            ["kind: Pod\nspec:\n  cpu: 1.5\n  ready: true\n  message: 'it''s up,\n    again'\n"],
            {"kind": "Pod", "spec": {"cpu": 1.5, "ready": True, "message": "it's up, again"}},
        ),
        (
            ["NAME    READY   AGE\nweb-0   1/1     5d\nweb-1   0/1     5d"],
            {"items": [{"Name": "web-0", "Ready": "1/1", "Age": "5d"}, {"Name": "web-1", "Ready": "0/1", "Age": "5d"}]},
        ),
    ],
)
def test_structured_content_that_the_text_repeats_is_not_appended(lines: list[str], structured: Any) -> None:
    output = results.to_output(types.CallToolResult(content=texts(*lines), structured_content=structured))
    assert output.text == "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "structured", "text"),
    [
        ([TEXT], {"phase": "Läuft"}, 'web-0 is Running\n{"phase": "Läuft"}'),
        ([], {"phase": "Läuft"}, '{"phase": "Läuft"}'),
        ([IMAGE], {"phase": "Läuft"}, '[image, image/png, 5 bytes: not shown]\n{"phase": "Läuft"}'),
        (texts("null"), {"result": None, "n": 1}, 'null\n{"result": null, "n": 1}'),
        (texts("2 pods"), [1, 2], "2 pods\n[1, 2]"),
        (texts("a: 1\nb: 2"), {"a": 1, "b": 1}, 'a: 1\nb: 2\n{"a": 1, "b": 1}'),
        (texts("pods: web-0"), {"pods": ["web-0", "web-1"]}, 'pods: web-0\n{"pods": ["web-0", "web-1"]}'),
        (texts("ready"), {"ready": False}, 'ready\n{"ready": false}'),
        (texts("[" * 5000), {"a": 1}, "[" * 5000 + '\n{"a": 1}'),
    ],
)
def test_structured_content_that_the_text_lacks_is_appended(
    content: list[types.ContentBlock], structured: Any, text: str
) -> None:
    assert results.to_output(types.CallToolResult(content=content, structured_content=structured)).text == text


def test_tool_error_stays_an_error_and_always_has_a_message() -> None:
    output = results.to_output(types.CallToolResult(content=[TEXT], is_error=True))
    assert output == ports.ToolOutput(text="web-0 is Running", failed=True)
    silent = results.to_output(types.CallToolResult(content=[], is_error=True))
    assert silent == ports.ToolOutput(text="the tool failed, and did not say why", failed=True)


async def cleaned(text: str, mask: Any = lambda text: text) -> ports.ToolOutput:
    return await results.mask_and_cut(ports.ToolOutput(text=text), mask=mask)


async def test_text_that_the_store_cannot_hold_is_replaced() -> None:
    assert (await cleaned("a\x00b\ud800c\U0001f4a5")).text == "a\ufffdb\ufffdc\U0001f4a5"


async def test_complete_result_is_masked_and_stored() -> None:
    line = "level=info msg=ok path=/healthz status=200\n" * 20 + "level=error password={}\n"
    text = "".join(line.format(f"cnry{number:06}aB") for number in range(1_000))
    output = await cleaned(text, masker.Masker(groups=["security"]).text)
    assert "cnry" not in output.text
    assert output.text.count("[MASKED:password]") == 1_000
    assert output.length is None


async def test_large_results_are_masked_one_at_a_time_and_small_results_do_not_wait() -> None:
    """The seconds that a text may take are counted by the clock: two at once would take them from each other."""
    under_way = most = 0
    small_is_done, seen = threading.Event(), []

    def mask(text: str) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert small_is_done.wait(30)
        under_way -= 1
        return text

    def small(text: str) -> str:
        seen.append(len(text))
        return text

    large = [asyncio.create_task(cleaned("x" * (results.LARGE + 1), mask)) for _ in range(3)]
    await cleaned("x" * results.LARGE, small)
    small_is_done.set()
    await asyncio.gather(*large)
    assert (most, seen) == (1, [results.LARGE])


@pytest.mark.parametrize("size", [100, 100_000, 2_000_000])
async def test_text_that_is_not_masked_in_time_is_withheld_except_its_beginning(size: int) -> None:
    """A masker whose time is over at once for a long text, and who has enough for a beginning."""
    beginning = results.BEGINNING + results.MASKED_BEYOND
    mask = masker.Masker(groups=["security"]).text

    def slow(text: str) -> str:
        return masker.withheld(len(text)) if size == 100 or len(text) > beginning else mask(text)

    text = ("DB_PASSWORD=cnryKd9xQw\n" + "a log line that is as good as any other\n" * 60_000)[:size]
    output = await cleaned(text, slow)
    assert "cnry" not in output.text
    assert not output.failed
    if size == 2_000_000:
        start, note = output.text.rsplit("\n", 1)
        assert text.startswith(start.replace("[MASKED:password]", "cnryKd9xQw"))
        assert results.BEGINNING - 100 < len(start) < results.BEGINNING + 100
        assert note.startswith("[withheld: about 1,934,464 more characters: there was no time to look through")
        assert output.length == size
    elif size == 100:
        assert (output.text, output.length) == (masker.withheld(100), 100)
    else:
        assert output.length is None, "it was masked whole"


async def test_hostile_text_is_withheld_completely() -> None:
    text = "".join(f"password=cnry{number:06}aB\n" for number in range(50_000))
    output = await cleaned(text, masker.Masker(groups=["security"]).text)
    assert (output.text, output.length) == (masker.withheld(len(text)), len(text))


async def test_cut_of_the_beginning_shows_no_part_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret stands across the end of what is masked, at every place of it, and shrinks what comes before."""
    monkeypatch.setattr(results, "BEGINNING", 200)
    monkeypatch.setattr(results, "MASKED_BEYOND", 100)
    mask = masker.Masker(groups=["security"]).text
    secret = "cnryKd9xQwZZ7fGh"
    for offset in range(150, 320):
        text = ("x " * 300)[:offset] + f" token={secret} " + "y " * 2000

        def slow(text: str) -> str:
            return masker.withheld(len(text)) if len(text) > 300 else mask(text)

        output = await cleaned(text, slow)
        assert output.length == len(text)
        assert "cnry" not in output.text, offset


async def test_result_longer_than_the_limit_is_cut_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULT_MAX", 1000)
    output = await cleaned("a" * 2000, lambda text: f"{text}b")
    assert "\n[cut: 1,001 characters of a line are left out here; ask for less]\n" in output.text
    assert output.text.endswith("ab")
