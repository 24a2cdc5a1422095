"""Summaries of long tool results: when one is due, its request, and how its answer is read.

A result is committed before it is summarised, so that no tool is called again for it. The summary is committed by
itself, with its cost. A takeover finds the missing summaries in the log. Without a summary the agent reads the result
itself, cut if it is too long.

The request is a function of the log and of the whole result beside it, so that people see what was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tarsy.agent import prompts
from tarsy.config.model import context_windows, platforms
from tarsy.transcript import entries, excerpts, line_excerpts, messages, ports, record, token_estimate, tool_names

READ_MAX = 40_000
"""The limit of what a summary is made of, in characters: about 10,000 tokens. Of a longer result it is an excerpt."""
TURNS = 3
"""The agent's last answers in the request, including the one that called the tool."""
CONVERSATION_MAX = 12_000
"""The limit of the conversation in the request, in characters."""
TASK_MAX, RESULT_MAX = 4_000, 1_000
"""The limits of the agent's task, and of each earlier result, in characters."""
TOO_LONG = 2
"""A summary of more than this many times its token limit is rejected."""


def due(platform_file: platforms.Platform, server: str, provider: str, length: int) -> entries.SummaryDue | None:
    """Return the summary that a result of `length` characters needs, for an agent of `provider`; or None."""
    server_settings = platform_file.mcp_servers.get(server)
    if server_settings is None or server_settings.summarization.mode != "summary":
        return None
    settings = server_settings.summarization
    if length <= settings.size_threshold_tokens * context_windows.CHARACTERS_A_TOKEN:
        return None
    summary_provider = settings.llm_provider or provider
    return entries.SummaryDue(
        provider=summary_provider,
        tokens=settings.summary_max_token_limit,
        reads=max(
            line_excerpts.LEAST,
            min(
                _characters(platform_file, summary_provider),
                context_windows.result_characters(platform_file, provider),  # without a summary the agent reads it
            ),
        ),
    )


def _characters(platform_file: platforms.Platform, provider: str) -> int:
    """Return how many characters of a result its provider reads for a summary: at most half of its context."""
    settings = platform_file.llm_providers.get(provider)
    if settings is None:  # the file has it no more; its model says so
        return READ_MAX
    own, window = settings.max_tool_result_tokens, context_windows.context_tokens(settings)
    return min(
        READ_MAX,
        READ_MAX if own is None else own * context_windows.CHARACTERS_A_TOKEN,
        READ_MAX if window is None else window * token_estimate.CHARACTERS_A_TOKEN // 2,
    )


def request(
    execution: record.Execution,
    due_summary: entries.SummaryDue,
    *,
    investigation: str,
    call_id: str,
    full_result: str,
    word: str,
) -> ports.Request:
    """Return the request for the summary of a call's result.

    It shows the conversation up to the answer that asks for the call: other results may get summaries meanwhile.
    """
    answers = [
        message for message in execution.log if isinstance(message, messages.Message) and message.role == "assistant"
    ]
    index = next(index for index, message in enumerate(answers) if any(call.id == call_id for call in message.calls))
    call = next(call for call in answers[index].calls if call.id == call_id)
    server, tool = tool_names.split(call.name)
    conversation = "\n\n".join(_conversation(execution, answers[: index + 1]))
    return ports.Request(
        messages=prompts.tool_summary_prompt(
            investigation=investigation,
            server=server,
            tool=tool,
            tokens=due_summary.tokens,
            description=excerpts.middle_cut(conversation, CONVERSATION_MAX),
            call=call,
            result=excerpts.middle_cut(full_result, due_summary.reads),
            word=word,
        ),
        tools=(),
    )


def read(answer: messages.Message, due_summary: entries.SummaryDue, *, instead_of: str) -> str | messages.Failure:
    """Return the summary in an answer, or why there is none. Without it the agent would read `instead_of`."""
    text = answer.text.strip()
    if not text:
        what = "tool calls" if answer.calls else "an empty answer"
        return messages.Failure(kind="rejected", text=f"the model gave {what} instead of a summary")
    most = TOO_LONG * due_summary.tokens * context_windows.CHARACTERS_A_TOKEN
    if len(text) > most:
        asked = f"{due_summary.tokens:,} tokens were asked for at most"
        return messages.Failure(kind="rejected", text=f"a summary of {len(text):,} characters, where {asked}")
    if len(text) >= len(instead_of):
        return messages.Failure(kind="rejected", text="the summary is no shorter than what would be read without it")
    return text


def _conversation(execution: record.Execution, answers: Sequence[messages.Message]) -> Iterator[str]:
    """Yield the agent's task, and its last answers with their calls, and the results of all but the last one."""
    conversation = [message for message in execution.log if isinstance(message, messages.Message)]
    task = next((message.text for message in conversation if message.role == "user"), "")
    yield f"The agent's task:\n{excerpts.middle_cut(task, TASK_MAX)}"
    results = {message.call_id: message for message in conversation if message.role == "tool"}
    for answer in answers[-TURNS:]:
        yield f"The agent:\n{answer.text.strip() or '(no words)'}"
        for call in answer.calls:
            yield f"It calls [tool {call.id}] {call.name} {call.arguments}"
        for call in answer.calls if answer is not answers[-1] else ():
            text = excerpts.middle_cut(results[call.id].text, RESULT_MAX)
            yield f"Result of [tool {call.id}]:\n{text}"
