"""The shapes of an investigation's log in answers: executions, messages and calls, with the same names everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tarsy.resources import chains, investigations


def _cost(cost: object) -> object:
    return investigations.cost_text(cost) if isinstance(cost, float) else cost


Cost = Annotated[str, BeforeValidator(_cost), Field(pattern=investigations.COST_PATTERN)]
"""A cost as a decimal number without exponent, as in the status of the object; read from the store's float."""


class Part(BaseModel):
    """Something that is answered."""

    model_config = ConfigDict(from_attributes=True, frozen=True, use_attribute_docstrings=True)


class Previous(Part):
    """The investigation of the same alert that another one follows: it failed, or was purged."""

    id: UUID
    name: str


class Row(Part):
    """One investigation in a list; a single one has the same fields, and more."""

    id: UUID
    namespace: str
    name: str
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    severity: str | None
    fingerprint: str | None
    """The fingerprint of the alert that it stands for."""
    author: str
    """The author; "" if unknown."""
    chain_name: str | None
    phase: investigations.Phase
    progress: str
    """Ended stages of all stages."""
    current_stage: str | None
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    """From start to end; None until it has ended, and where it never started."""
    total_tokens: int
    cost: Cost | None
    """The cost of its model calls, a decimal number as text; None if none had a price."""
    summary: str
    """The final analysis in a few lines; in a list its first 1,024 characters."""
    message: str
    """Why it ended so, or what it waits for; in a list its first 1,024 characters."""
    grounded: bool | None
    """Whether its result stands on what was looked at; None where there is no result that could."""
    duplicates: int
    """Repeats of its alert that were counted on it."""
    previous: Previous | None
    """The investigation that it follows; None where it follows none."""


class Usage(Part):
    """Tokens, as a provider counted them."""

    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int


class Native(Part):
    """Tools of a provider's own."""

    offered: list[chains.NativeTool]
    left_out: list[chains.NativeTool]
    """Wanted, and not offered, because the provider does not take them beside those of MCP servers."""
    mixes: bool
    """Whether it does."""


class Fallback(Part):
    """A provider that is asked where those before it give no answer."""

    provider: str
    native: Native


class Agent(Part):
    """The settings of an execution, resolved at its start; instructions are masked."""

    name: str
    provider: str
    strategy: chains.IterationStrategy
    max_iterations: int
    servers: list[str]
    custom_instructions: str
    server_instructions: list[tuple[str, str]]
    """(server, instructions) of those servers that have any."""
    problems: list[str]
    """The things it lacked, a sentence each: servers that were unreachable when it started."""
    native: Native
    fallbacks: list[Fallback]
    """In the order in which they are asked."""


class OfferedTool(Part):
    """A tool as a model was shown it."""

    name: str
    """`server.tool`."""
    description: str
    parameters: dict[str, Any]
    """A JSON Schema of the arguments."""
    idempotent: bool
    """Read-only or idempotent: a call in flight at a crash may be sent once more."""


class Call(Part):
    """A tool call that an answer asks for."""

    id: str
    """Unique in its execution; what else is about the call has it as `tool_call_id`."""
    name: str
    """`server.tool`; elsewhere `server_name` and `tool_name`."""
    arguments: str
    """JSON as text, as the model gave it."""


class NativeResult(Part):
    """The result of a provider's own tool, within an answer."""

    tool: chains.NativeTool
    content: str
    """For people: what the code printed, or the sources, a line each."""
    details: dict[str, Any]
    """`code`, `language` and `outcome` of code; else `queries` and `sources` (title, url, problem)."""


class Attempt(Part):
    """A request to a provider that failed."""

    error: str
    usage: Usage
    """The provider's count until then; not part of the call's own."""
    provider: str
    """"" where it was written before attempts named theirs: then it is the call's."""
    code: str
    """The provider's name for the error: an HTTP status, or a word; "" if it has none."""


class _Execution(Part):
    id: str
    run: int
    stage: str
    """"" where it is of no stage."""
    kind: str
    """agent, synthesis, summary or chat."""
    index: int
    """Its place in the stage, from 0."""
    name: str
    """The name among its siblings; elsewhere `execution_name`."""
    provider: str
    """The one that it asks now, or asked last: its agent's, or a fallback."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str = ""
    ungrounded: bool = False
    """It concluded without having looked at anything, although it had tools."""


class Execution(_Execution):
    """The work of one agent, a synthesis, a summary or an answer, in numbers; the export has what it ran with."""

    strategy: str
    """"" where it ended before it could begin."""
    iterations: int
    """Its model calls."""
    tool_calls: int
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    cost: Cost | None
    """A decimal number as text; None where no model call had a price."""


class WholeExecution(_Execution):
    """The same, with what it ran with; its calls are among the others, by its id."""

    agent: Agent | None
    """None where it ended before it could begin."""
    tools: list[OfferedTool]


class Message(Part):
    """One message of an execution's conversation, as it was said; what the model is shown of it later may be less."""

    seq: int
    """The entry of the log that brought it."""
    run: int
    stage: str
    execution: str
    position: int
    """In the conversation, from 0."""
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thinking: str
    """The thoughts that the model made visible; they were never sent back as text."""
    tool_calls: list[Call]
    """The calls that it asks for."""
    native_results: list[NativeResult]
    """The results of the provider's own tools for this answer."""
    tool_call_id: str
    """With role tool: the call that this is the result of."""
    server_name: str
    tool_name: str
    failed: bool
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool
    """With role tool: the call may have happened, and was not repeated."""
    created_at: datetime


class Messages(Part):
    """The messages that some entries of the log brought."""

    messages: list[Message]
    """By `seq`, and in an entry by `position`."""
    last: int
    """The value of `after` for the next page."""
    more: bool
    """Whether there are more already."""


class ModelCall(Part):
    """One model call: what it was asked with, what it cost, and why it brought nothing, if so."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    turn: int
    """Which of the execution's model calls, from 0; of a summary the one that is to read it."""
    tool_call_id: str
    """The tool call whose result it sums up; "" of all others."""
    provider: str
    model: str
    context_messages: int
    """It was sent the first so many messages of the execution; a summary is asked for with two of its own."""
    seconds: float
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    failed_requests: list[Attempt]
    """Its requests that failed; their tokens are not in the above."""
    failure: str | None
    failure_code: str | None
    """The provider's name for the failure, such as an HTTP status; "" if it has none."""
    failure_text: str | None
    cost: Cost | None
    """The cost of all its requests, a decimal number as text; None if the provider has no price."""
    created_at: datetime


class ToolCall(Part):
    """One tool call that was made, and what came of it."""

    n: int
    """Its number in the trace, from 1."""
    seq: int
    run: int
    stage: str
    execution: str
    tool_call_id: str
    server_name: str
    """"" where the model named none."""
    tool_name: str
    arguments: str
    """As the model gave them."""
    result: str
    """Masked, and as the model was shown it first; of one that was summed up, as it would have been."""
    failed: bool
    """The tool answered with an error, or not at all."""
    in_doubt: bool
    """It may have happened, and was not repeated."""
    seconds: float
    created_at: datetime


class Unreadable(Part):
    """An entry of the log that this version of TARSy cannot read: the investigation waits for one that can."""

    seq: int
    kind: str
    version: int
    problem: str
