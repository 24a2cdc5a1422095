"""The names of OpenTelemetry's semantic conventions for generative AI, as of one commit of them.

The conventions are in development, and names change between commits. So all names that spans use are here, and a new
commit is a change of this module. `langfuse.*` and `session.id` are not of these conventions; see the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

REPOSITORY = "https://github.com/open-telemetry/semantic-conventions-genai"
COMMIT = "002c8a6ea1c8a42b14a4527db83b3cabcded610a"
"""The commit of `docs/gen-ai/gen-ai-spans.md` and `docs/gen-ai/gen-ai-agent-spans.md`."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
"""The general conventions (`error.type`, `service.*`) that this commit refers to."""

Operation = Literal["invoke_workflow", "invoke_agent", "chat", "execute_tool"]

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
WORKFLOW_NAME = "gen_ai.workflow.name"
AGENT_NAME = "gen_ai.agent.name"
AGENT_ID = "gen_ai.agent.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
"""It includes the tokens of thoughts."""
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
CONTENTS = frozenset({INPUT_MESSAGES, OUTPUT_MESSAGES, SYSTEM_INSTRUCTIONS, TOOL_ARGUMENTS, TOOL_RESULT})
"""The opt-in attributes: they hold what people, models and tools wrote."""

SESSION = "session.id"
"""A general convention. Langfuse groups traces by it, and wants it on each span."""
COST = "gen_ai.usage.cost"
"""US dollars; not of the conventions, but Langfuse and others read it."""

PROVIDERS: Mapping[str, str] = {
    "anthropic": "anthropic",
    "google": "gcp.gemini",
    "openai": "openai",
    "vertexai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The convention's value for each type of provider in the platform file that has one."""
