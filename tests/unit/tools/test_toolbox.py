"""The toolbox on a real MCP server within the process: SDK and protocol are the real ones, only the pipe is memory."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import mcp
import pytest
from mcp import types
from mcp.server import Server
from support import leases, scrapes
from support.connected import Connected
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.masking import masker
from tarsy.tools.servers import health, listing, toolbox
from tarsy.transcript import messages, ports

PLATFORM = platforms.Platform.model_validate(
    {
        "mcp_servers": {
            name: {"transport": {"type": "http", "url": "http://localhost/mcp"}, "write_tools": ["*"]}
            for name in ("k8s", "prometheus")
        }
    }
)
ALL = listing.ToolSelection(PLATFORM.mcp_servers, lambda _: True)
"""Whatever the servers have."""

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
NAMED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tail": {"type": "integer"}, "container": {"type": "string"}},
    "required": ["name"],
}


def tool(name: str, *, output: dict[str, Any] | None = None, **hints: bool) -> types.Tool:
    annotations = types.ToolAnnotations(**hints) if hints else None
    return types.Tool(
        name=name, description=f"It can {name}.", input_schema=NAMED, output_schema=output, annotations=annotations
    )


TOOLS = [
    tool("get", read_only_hint=True),
    tool("scale", idempotent_hint=True, destructive_hint=True),
    tool("restart", read_only_hint=False),
    tool("delete"),
    tool("typed.get", output={"type": "object", "required": ["phase"]}, read_only_hint=True),
]


async def _list(*_: object) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


LOST: set[str] = set()
"""The tools under which the connection has closed once."""


async def _call(_: object, asked: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    arguments = asked.arguments or {}
    match arguments.get("name"):
        case "slow":
            await asyncio.Event().wait()
        case "refused":
            raise mcp.MCPError(code=-32602, message="no such pod\x00")
        case "broken":  # -32000 is any server's to use; the SDK uses it for a connection that closed
            raise mcp.MCPError(code=-32000, message="database is locked")
        case "lost once" if asked.name not in LOST:
            LOST.add(asked.name)
            raise mcp.MCPError(code=-32000, message="Connection closed")
        case "lost":
            raise mcp.MCPError(code=-32000, message="Connection closed")
        case "input":
            return types.InputRequiredResult(request_state="x")
        case "failed":
            return types.CallToolResult(content=[types.TextContent(type="text", text="forbidden")], is_error=True)
        case "long":
            return types.CallToolResult(content=[types.TextContent(type="text", text="x" * 5000)])
        case "mixed":
            blob = types.BlobResourceContents(uri="file:///core?token=cnryKd9xQwZZ7fGh", blob="aGk=")
            return types.CallToolResult(
                content=[
                    types.TextContent(type="text", text="2 pods"),
                    types.ImageContent(type="image", data="aGk=", mime_type="image/png"),
                    types.EmbeddedResource(type="resource", resource=blob),
                ],
                structured_content={"pods": 2, "password": "cnryKd9xQwZZ7fGh"},
            )
        case "huge":
            return types.CallToolResult(content=[types.TextContent(type="text", text="x" * 100_000)])
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"{asked.name} {arguments}")])


@pytest.fixture
async def k8s() -> AsyncIterator[Connected]:
    """A connected server; its client has an owner task, as in the pool, because one task must enter and leave it."""
    LOST.clear()
    connected: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def own() -> None:
        async with mcp.Client(Server("k8s", on_list_tools=_list, on_call_tool=_call)) as client:
            connected.set_result(client)
            await done.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(own())
        yield Connected("k8s", await connected, TOOLS)
        done.set()


@pytest.fixture
def box(k8s: Connected, monkeypatch: pytest.MonkeyPatch) -> toolbox.PoolToolbox:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.0)
    limits = platforms.Limits.model_validate({"tool_call": "20s"})
    return toolbox.PoolToolbox([k8s, Connected("prometheus", None, TOOLS)], limits=limits, selection=ALL)


def call(name: str, arguments: str = '{"name": "web-0"}') -> messages.ToolCall:
    return messages.ToolCall(id="0.0", name=name, arguments=arguments)


def test_tool_call_can_be_repeated_only_if_tool_declares_it_idempotent(box: toolbox.PoolToolbox) -> None:
    by_name = {spec.name: spec.idempotent for spec in box.specs if spec.name.startswith("k8s.")}
    assert by_name == {
        "k8s.get": True,
        "k8s.scale": True,
        "k8s.restart": False,
        "k8s.delete": False,
        "k8s.typed.get": True,
    }
    assert box.specs[0] == messages.ToolSpec(
        name="k8s.get", description="It can get.", parameters=NAMED, idempotent=True
    )


def test_unreachable_servers_are_reported(box: toolbox.PoolToolbox) -> None:
    assert box.problems == ("MCP server 'prometheus' is not connected yet",)
    assert box.away == ("prometheus",)


@pytest.mark.leaps
@pytest.mark.parametrize(
    ("asked", "text", "failed"),
    [
        (call("k8s.get"), "get {'name': 'web-0'}", False),
        (call("k8s.get", "name=web-0, tail=5"), "get {'name': 'web-0', 'tail': 5}", False),
        (call("k8s.get", '{"name": "failed"}'), "forbidden", True),
        (call("k8s.get", '{"name": "refused"}'), "'k8s' refused the call: no such pod\ufffd", True),
        (call("k8s.get", '{"name": "slow"}'), "'k8s.get' did not answer within 20 s", True),
        (call("prometheus.get"), "'prometheus.get' was not called: MCP server 'prometheus' is not connected yet", True),
        (call("k8s.get", '{"name": "long"}'), "x" * 5000, False),
    ],
    ids=["answer", "pairs", "error", "refusal", "timeout", "away", "long"],
)
async def test_every_call_gets_an_answer(
    box: toolbox.PoolToolbox, asked: messages.ToolCall, text: str, failed: bool
) -> None:
    output = await box.call(asked, SCOPE)
    assert (output.text, output.failed, output.away) == (text, failed, asked.name == "prometheus.get")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "'name' is missing: a string"),
        ('{"name": "web-0", "tail": "five"}', 'tail: expected an integer, not "five"'),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_for_the_model_and_nothing_is_sent(
    box: toolbox.PoolToolbox, k8s: Connected, arguments: str, problem: str
) -> None:
    async def sends() -> None:
        raise AssertionError

    output = await box.call(call("k8s.get", arguments), ports.Scope(execution="e", ensure_lease=sends))
    assert output.failed
    assert output.text.startswith(f"The arguments of 'k8s.get' cannot be used: {problem}")


async def test_remote_server_gets_any_value_that_its_schema_allows(box: toolbox.PoolToolbox, k8s: Connected) -> None:
    k8s.is_child = False
    output = await box.call(call("k8s.get", '{"name": "--server=x"}'), SCOPE)
    assert output.text == "get {'name': '--server=x'}"


async def test_answer_is_accepted_even_if_it_violates_the_tools_output_schema(box: toolbox.PoolToolbox) -> None:
    output = await box.call(call("k8s.typed.get"), SCOPE)
    assert (output.text, output.failed) == ("typed.get {'name': 'web-0'}", False)


async def test_other_content_is_named_and_structure_is_masked_like_text(box: toolbox.PoolToolbox) -> None:
    """Through the real SDK, which takes the answer apart."""
    output = await box.call(call("k8s.get", '{"name": "mixed"}'), SCOPE)
    assert output == ports.ToolOutput(
        text="2 pods\n[image, image/png, 2 bytes: not shown]\n"
        "[resource file:///core?token=[MASKED:token], of unknown type, 2 bytes: not shown]\n"
        '{"pods": 2, "password": "[MASKED:password]"}'
    )


async def test_an_answer_that_breaks_the_protocol_is_an_error_for_the_model(box: toolbox.PoolToolbox) -> None:
    output = await box.call(call("k8s.get", '{"name": "input"}'), SCOPE)
    assert output.failed
    assert output.text.startswith("'k8s' gave an answer that cannot be used: ")


async def test_opening_and_closing_a_toolbox_keeps_shared_connections(k8s: Connected, box: toolbox.PoolToolbox) -> None:
    async with box as opened:
        assert opened is box
    assert not (await box.call(call("k8s.get"), SCOPE)).failed


@pytest.mark.parametrize("name", ["k8s.nothing", "nothing.get", "get", "", "k8s", "k8s__get"])
async def test_an_unknown_tool_is_answered_with_those_there_are(box: toolbox.PoolToolbox, name: str) -> None:
    output = await box.call(call(name), SCOPE)
    assert output.failed
    assert output.text.startswith(f"There is no tool '{name}'. Available tools: k8s.get, k8s.scale, k8s.restart, ")


async def test_a_connection_that_closes_under_a_call_is_reported_and_the_outcome_is_unknown(
    box: toolbox.PoolToolbox, k8s: Connected
) -> None:
    output = await box.call(call("k8s.delete", '{"name": "lost"}'), SCOPE)
    assert output.text == "The connection to 'k8s' closed during the call; its outcome is unknown"
    assert (output.failed, output.away, k8s.broken) == (True, True, [await k8s.client()])


async def counted(box: toolbox.PoolToolbox, name: str, argument: str) -> tuple[ports.ToolOutput, int]:
    """Return the output of a call, and how often the lease was asked for."""
    asked = 0

    async def lease() -> None:
        nonlocal asked
        asked += 1

    output = await box.call(
        call(f"k8s.{name}", f'{{"name": "{argument}"}}'), ports.Scope(execution="e", ensure_lease=lease)
    )
    return output, asked


async def test_a_call_that_only_reads_is_made_again_where_its_connection_broke(
    box: toolbox.PoolToolbox, k8s: Connected
) -> None:
    output, asked = await counted(box, "get", "lost once")
    assert (output.text, output.failed) == ("get {'name': 'lost once'}", False)
    assert (asked, len(k8s.broken)) == (2, 1)


async def test_a_call_is_made_again_only_once(box: toolbox.PoolToolbox, k8s: Connected) -> None:
    output, asked = await counted(box, "get", "lost")
    assert output.text == "The connection to 'k8s' closed during the call; its outcome is unknown"
    assert (asked, len(k8s.broken)) == (2, 2)


@pytest.mark.parametrize("name", ["scale", "restart", "delete"])
async def test_a_call_that_may_have_changed_something_is_never_made_again(
    box: toolbox.PoolToolbox, k8s: Connected, name: str
) -> None:
    """Not even one that is idempotent: it might undo what a person has done since."""
    output, asked = await counted(box, name, "lost once")
    assert output.text == "The connection to 'k8s' closed during the call; its outcome is unknown"
    assert (asked, len(k8s.broken)) == (1, 1)


async def test_tool_changed_from_read_only_to_writing_is_not_called_as_read_only(
    box: toolbox.PoolToolbox, k8s: Connected
) -> None:
    """An execution that has begun with it calls it beside others, and would call it again."""
    k8s.tools = [tool("get", destructive_hint=True)]
    output = await box.call(call("k8s.get"), replace(SCOPE, only_reads=True))
    text = "'k8s.get' was not called: it is not the same tool any more, and may write now"
    assert output == ports.ToolOutput(text=text, failed=True)
    assert not (await box.call(call("k8s.get"), SCOPE)).failed


async def test_tool_call_is_not_repeated_if_the_tool_has_changed(
    box: toolbox.PoolToolbox, k8s: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_broken(client: mcp.Client) -> None:
        k8s.tools = [tool("get", destructive_hint=True)]

    monkeypatch.setattr(k8s, "report_broken", report_broken)
    output, _ = await counted(box, "get", "lost once")
    assert output.text == "'k8s.get' was not called again: it is not the same tool any more"


async def test_a_call_is_not_made_again_once_the_lease_is_lost(box: toolbox.PoolToolbox, k8s: Connected) -> None:
    async def lease() -> None:
        if k8s.broken:
            raise ports.LeaseLostError

    with pytest.raises(ports.LeaseLostError):
        await box.call(call("k8s.get", '{"name": "lost once"}'), ports.Scope(execution="e", ensure_lease=lease))


async def test_a_servers_own_error_does_not_cost_others_their_connection(
    box: toolbox.PoolToolbox, k8s: Connected
) -> None:
    output = await box.call(call("k8s.get", '{"name": "broken"}'), SCOPE)
    assert (output.text, output.failed) == ("'k8s' refused the call: database is locked", True)
    assert k8s.broken == []


async def test_no_more_calls_are_made_at_once_than_its_server_has_slots_and_each_asks_after_its_lease_first(
    box: toolbox.PoolToolbox, k8s: Connected
) -> None:
    free: list[int] = []

    async def seen() -> None:
        free.append(k8s.slots._value)

    outputs = await asyncio.gather(
        *(box.call(call("k8s.get"), ports.Scope(execution="e", ensure_lease=seen)) for _ in range(6))
    )
    assert not any(output.failed for output in outputs)
    assert len(free) == 6
    assert set(free) <= {0, 1}, "one of its two slots was taken at least, whenever it asked"


async def test_a_call_is_not_sent_once_the_lease_is_lost(box: toolbox.PoolToolbox) -> None:
    async def lost() -> None:
        raise ports.LeaseLostError

    with pytest.raises(ports.LeaseLostError):
        await box.call(call("k8s.get"), ports.Scope(execution="e", ensure_lease=lost))


@pytest.mark.parametrize("name", ["short", "huge"])
async def test_a_result_that_cannot_be_masked_is_withheld(
    k8s: Connected, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str, *, investigation: str = "") -> str:
        raise KeyError(text)

    k8s.mask = broken
    output = await toolbox.PoolToolbox([k8s], limits=platforms.Limits(), selection=ALL).call(
        call("k8s.get", f'{{"name": "{name}"}}'), SCOPE
    )
    assert output == ports.ToolOutput(text="[withheld: it could not be masked]", failed=True)
    assert [record.getMessage() for record in caplog.records] == ["a text could not be masked: KeyError"]
    assert caplog.records[0].exc_info is None


async def test_a_server_may_have_fingerprints_which_are_the_investigations_own(k8s: Connected) -> None:
    async def result_for(investigation: str) -> str:
        box = toolbox.PoolToolbox([k8s], limits=platforms.Limits(), selection=ALL)
        scope = dataclasses.replace(SCOPE, investigation=investigation)
        return (await box.call(call("k8s.get", '{"name": "a", "password": "cnry4Kd9xQ"}'), scope)).text

    plain = await result_for("one")
    assert "'password': '[MASKED:password]'" in plain
    k8s.mask = platforms.DataMasking(fingerprints=True).masker(NO_SECRETS).text
    first, two, again = [await result_for(name) for name in ("one", "two", "one")]
    assert re.search(r"'password': '\[MASKED:password:[0-9a-f]{4}\]'", first)
    assert first == again != two
    assert await result_for("") == plain


def test_a_tool_is_offered_without_the_secrets_in_its_description_and_schema() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string", "description": "DB_PASSWORD=cnry4Kd9xQ"}}}
    tool = types.Tool(name="t", description="Looks with ghp_abcdefghijklmnopqrstuvwxyz0123456789", input_schema=schema)
    mask = masker.Masker(groups=["security"]).text
    masked = listing.masked_tool(tool, mask)
    assert masked.description == "Looks with [MASKED:github_token]"
    assert masked.input_schema["properties"]["password"]["description"] == "DB_PASSWORD=[MASKED:password]"
    assert listing.masked_tool(masked, mask) is masked
    broken = listing.masked_tool(tool, lambda _: "[")
    assert (broken.description, broken.input_schema) == ("[", {"type": "object"})


@pytest.mark.leaps
@pytest.mark.parametrize(
    ("asked", "tool", "outcome"),
    [
        (call("k8s.get"), ("k8s", "get"), "answered"),
        (call("k8s.get", '{"name": "failed"}'), ("k8s", "get"), "failed"),
        (call("k8s.get", "no JSON"), ("k8s", "get"), "failed"),
        (call("k8s.web_0_restart"), ("k8s", "unknown"), "failed"),
        (call("shop.web_0"), ("unknown", "unknown"), "failed"),
        (call("prometheus.get"), ("prometheus", "get"), "away"),
    ],
)
async def test_calls_are_counted_by_names_that_servers_have(
    box: toolbox.PoolToolbox, asked: messages.ToolCall, tool: tuple[str, str], outcome: str
) -> None:
    since = scrapes.Since()
    await box.call(asked, SCOPE)
    labels = dict(zip(("server", "tool"), tool, strict=True))
    assert since("tarsy_tool_calls_total", **labels, outcome=outcome) == since("tarsy_tool_calls_total") == 1
    assert since("tarsy_tool_call_seconds_count", **labels) == 1
    assert not [value for value in scrapes.label_values(scrapes.own()) if "web_0" in value]
