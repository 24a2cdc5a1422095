"""Settings of a request in Gemini's protocol, apart from its conversation, and the refusals of the real server.

The messages are the real ones, as far as they are known: from Google's documentation, and from people's reports.
"""

from __future__ import annotations

from typing import Any

import pydantic
from pydantic import alias_generators

from tarsy_dev.model import conversation

_BUDGETS = {"gemini-2.5-pro": (128, 32768), "gemini-2.5-flash-lite": (512, 24576), "gemini-2.5-flash": (1, 24576)}
"""Tokens of thought; the longer name first."""


class _Declaration(conversation.Wire):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    behavior: str | None = None


class _Tool(conversation.Wire):
    function_declarations: list[_Declaration] = []
    google_search: dict[str, Any] | None = None
    google_search_retrieval: dict[str, Any] | None = None
    url_context: dict[str, Any] | None = None
    code_execution: dict[str, Any] | None = None

    @property
    def native(self) -> tuple[str, ...]:
        """The tools of the server's own that it has."""
        named = {
            "googleSearch": self.google_search,
            "codeExecution": self.code_execution,
            "urlContext": self.url_context,
        }
        return tuple(name for name, settings in named.items() if settings is not None)


class _ToolConfig(conversation.Wire):
    function_calling_config: dict[str, Any] | None = None
    retrieval_config: dict[str, Any] | None = None
    include_server_side_tool_invocations: bool = False


class Request(conversation.Wire):
    """A whole request."""

    contents: list[conversation.Content] = []
    system_instruction: conversation.Content | None = None
    tools: list[_Tool] = []
    tool_config: _ToolConfig = _ToolConfig()
    safety_settings: list[dict[str, Any]] | None = None
    generation_config: dict[str, Any] = {}
    cached_content: str | None = None
    service_tier: str | None = None
    labels: dict[str, str] | None = None
    store: bool | None = None
    model: str | None = None

    @property
    def thinking(self) -> dict[str, Any]:
        """The settings of its thoughts."""
        return setting(self.generation_config, "thinking_config") or {}


def refusal(model: str, request: Request, *, is_vertex: bool) -> str | None:
    """Return what the real server would answer to these settings with 400, or None."""
    refused = _refused_thinking(model, request.thinking) or _refused_mixture(model, request, is_vertex=is_vertex)
    return refused or _refused_names(request)


def _refused_thinking(model: str, thinking: dict[str, Any]) -> str | None:
    """Refuse a setting that the generation does not take: no thinking, a budget in its range, or a level."""
    budget, level = setting(thinking, "thinking_budget"), setting(thinking, "thinking_level")
    if budget is not None and level is not None:
        return "You can only set only one of thinking budget and thinking level."
    if thinking and model.startswith(("gemini-1", "gemini-2.0")):
        return f"Thinking is not enabled for models/{model}"
    if level is not None and str(level).lower() not in ("minimal", "low", "medium", "high"):
        return f"Invalid value at 'generation_config.thinking_config.thinking_level': {level}"
    if level is not None and model.startswith("gemini-2"):
        return "Thinking level is not supported for this model."
    if budget is None or budget == -1:
        return None
    if budget == 0 and model.startswith("gemini-2.5-pro"):
        return "Budget 0 is invalid. This model only works in thinking mode."
    if budget == 0 and setting(thinking, "include_thoughts"):
        return "Thinking_config.include_thoughts is only enabled when thinking is enabled."
    least, most = next((range_ for prefix, range_ in _BUDGETS.items() if model.startswith(prefix)), (1, 32768))
    if budget and not least <= budget <= most:
        return f"The thinking budget {budget} is invalid. Please choose a value between {least} and {most}."
    return None


def _refused_mixture(model: str, request: Request, *, is_vertex: bool) -> str | None:
    """Native tools beside functions: Gemini 3 takes them where it may show its own calls, Vertex AI never."""
    native = [tool for tool in request.tools if tool.native]
    functions = [tool for tool in request.tools if tool.function_declarations]
    shows = request.tool_config.include_server_side_tool_invocations
    if is_vertex and shows:
        problem = "Unknown name \"includeServerSideToolInvocations\" at 'tool_config'"
        return f"Invalid JSON payload received. {problem}: Cannot find field."
    if not native or not functions:
        return None
    if is_vertex:
        return "Multiple tools are supported only when they are all search tools."
    if model.startswith(("gemini-1", "gemini-2")):
        return "Tool use with function calling is unsupported"
    if not shows:
        flag = "tool_config.include_server_side_tool_invocations"
        return f"Please enable {flag} to use Built-in tools with Function calling."
    return None


def _refused_names(request: Request) -> str | None:
    names = [declared.name for tool in request.tools for declared in tool.function_declarations]
    for index, declared in enumerate(names):
        if not conversation.FUNCTION_NAME.fullmatch(declared):
            return (
                f"* GenerateContentRequest.tools[0].function_declarations[{index}].name: Invalid function name. "
                "Must start with a letter or an underscore. Must be alphanumeric (a-z, A-Z, 0-9), underscores (_), "
                "dots (.), colons (:), or dashes (-), with a maximum length of 64.\n"
            )
        if declared in names[:index]:
            return f"Duplicate function declaration found: {declared}"
    return None


def setting(settings: dict[str, Any], snake: str) -> Any:
    """A setting by its name in snake case, in whichever case it was sent."""
    return settings.get(alias_generators.to_camel(snake), settings.get(snake))


def complaint(error: pydantic.ValidationError) -> str:
    """Return the real server's words about a body that is no request."""
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] != "extra_forbidden":
        return f"Invalid value at '{where}': {first['msg']}"
    parent, _, field = where.rpartition(".")
    location = f" at '{parent}'" if parent else ""
    return f'Invalid JSON payload received. Unknown name "{field}"{location}: Cannot find field.'
