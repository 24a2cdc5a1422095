"""The path `/mcp`: TARSy as an MCP server over streamable HTTP, without sessions.

Every request names its caller as requests to the API do, and is served by any replica.

Source: Model Context Protocol, "Transports", streamable HTTP.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import mcp_types
import pydantic
from fastapi import APIRouter, Depends, Response
from mcp.server import transport_security
from mcp.server.mcpserver import Context, MCPServer, exceptions
from starlette import types

from tarsy.api import app
from tarsy.auth import identities
from tarsy.mcp_endpoint import tools
from tarsy.serve import answers, problems

PATH = "/mcp"
BODY_MAX = 512 * 1024
"""Bytes of a request."""
_ANY_HOST = transport_security.TransportSecuritySettings(enable_dns_rebinding_protection=False)
"""`auth` refuses what a web page could send, by any name of this server."""


def add(application: app.Application) -> None:
    """Add the endpoint to the application."""
    services = application.services
    server = _Server(
        "tarsy", title="TARSy", instructions=tools.INSTRUCTIONS, version=metadata.version("tarsy"), subscriptions=False
    )
    tools.Tools(application, subscribing=services.subscribing, pages=services.pages).add_to(server)
    router = APIRouter(redirect_slashes=False)

    @router.post(PATH, include_in_schema=False)
    async def serve(_caller: identities.Caller = Depends(services.access.identified)) -> Response:
        """Answer one message of the protocol."""
        return _Served(server, services.responder)

    application.include_router(router)


class _Server(MCPServer[Any]):
    """The server, which names what is wrong with arguments.

    Unknown ones are refused: if a mistyped filter were ignored, the answer would hold more than was asked for.
    """

    _listed: list[mcp_types.Tool] | None = None

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Return the tools, with schemas that many clients can read, and that allow no other arguments."""
        if self._listed is None:
            self._listed = [
                tool.model_copy(
                    update={
                        "input_schema": _input_schema(tool.input_schema),
                        "output_schema": _without_titles(tool.output_schema),
                    }
                )
                for tool in await super().list_tools()
            ]
        return self._listed

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call a tool. Raises ToolError with the fault of its arguments, UnexpectedToolError for a defect."""
        properties = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        if name not in properties:
            raise exceptions.ToolError(
                f"unknown tool: {name[: problems.ECHOED_MAX]}; there are {', '.join(properties)}"
            )
        if unknown := [argument for argument in arguments if argument not in properties[name]]:
            excerpt = ", ".join(unknown)[: problems.ECHOED_MAX]
            raise exceptions.ToolError(f"unknown arguments: {excerpt}; {name} has {', '.join(properties[name])}")
        try:
            json.dumps(arguments, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise exceptions.ToolError("the arguments have half of a surrogate pair, which is no character") from None
        try:
            result = await super().call_tool(name, arguments, context)
        except exceptions.UnexpectedToolError as error:  # the SDK logs it
            raise exceptions.UnexpectedToolError(f"{name}: a defect of TARSy; its log has the traceback") from error
        except exceptions.ToolError as error:
            if not isinstance(error.__cause__, pydantic.ValidationError):
                raise
            faults = error.__cause__.errors(include_url=False, include_input=False)[: problems.FAULTS_MAX]
            faults_in_words = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
            raise exceptions.ToolError(faults_in_words) from None
        assert isinstance(result, mcp_types.CallToolResult)  # noqa: S101 - no tool asks the client for more
        text = json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
        return result.model_copy(update={"content": [mcp_types.TextContent(type="text", text=text)]})


def _input_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments without `anyOf`: an argument that may be null may be left out instead.

    Older versions of HolmesGPT, for one, take an argument with alternatives for a text.
    """
    properties = {
        name: {
            key: value
            for key, value in {**argument, **argument.get("anyOf", [{}])[0]}.items()
            if key != "anyOf" and value is not None
        }
        for name, argument in schema["properties"].items()
    }
    plain: dict[str, Any] = _without_titles({**schema, "properties": properties, "additionalProperties": False})
    return plain


def _without_titles(schema: Any) -> Any:
    """Return a schema without titles, which only repeat names."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(part) for key, part in schema.items() if key != "title" or not isinstance(part, str)}


class _Served(Response):
    """The protocol's own answer to a request."""

    def __init__(self, server: MCPServer[Any], responder: answers.Responder) -> None:
        super().__init__()
        self._server = server
        self._responder = responder

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve the request by an application of its own, which ends with it: there is no session to keep."""
        application = self._server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=BODY_MAX,
            transport_security=_ANY_HOST,
        )
        start: types.Message = {}

        async def hold_and_send(message: types.Message) -> None:
            """Send the answer, which has one body, unless clients have too much to read already."""
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            try:
                self._responder.hold(len(message["body"]))
            except problems.Problem as problem:
                await problems.response(problem)(scope, receive, send)
                return
            await send(start)
            await send(message)

        async with application.router.lifespan_context(application):
            await application(scope, receive, hold_and_send)
