"""Summaries of long tool results: when one is due, what is asked for it, and what is taken for one.

A result is committed before it is summed up, so that no tool is called again for that; and the summary is committed by
itself, with what it cost. Who takes over finds which are due in the log, and asks for none that is there. One that
cannot be had leaves the result as it is: cut, if it is too long for who reads it.

All of it is a function of the log and of the whole result beside it, so that people are shown what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tarsy.agent import prompts
from tarsy.config.model import context_windows, platforms
from tarsy.transcript import entries, excerpts, messages, ports, record, token_estimate, tool_names

READ_TOKENS = 100_000
"""Tokens of a result that a summary is made of at most, where its provider is not said to be shown fewer."""
TURNS = 3
"""The last answers of the agent that are told, the one that asks for the result included."""
TOLD_MAX = 12_000
"""Characters of all that is told of the conversation."""
TASK_MAX, RESULT_MAX = 4_000, 1_000
"""Characters of the agent's task, and of each earlier result, that are told."""
TOO_LONG = 2
"""A summary of more than so many times what was asked for is none."""


def due(platform_file: platforms.Platform, server: str, provider: str, length: int) -> entries.SummaryDue | None:
    """The summary that a result of so many characters is to have, for an agent that asks `provider`; None is none."""
    server_settings = platform_file.mcp_servers.get(server)
    if server_settings is None or not server_settings.summarization.enabled:
        return None
    settings = server_settings.summarization
    if length <= settings.size_threshold_tokens * context_windows.CHARACTERS_A_TOKEN:
        return None
    asked = settings.llm_provider or provider
    return entries.SummaryDue(
        provider=asked, tokens=settings.summary_max_token_limit, reads=_characters(platform_file, asked)
    )


def _characters(platform_file: platforms.Platform, provider: str) -> int:
    """Return how many characters of a result its provider sums up: half of the context of a request, at most."""
    settings = platform_file.llm_providers.get(provider)
    if settings is None:  # the file has lost it since; its model says so
        return platform_file.limits.tool_output
    tokens = settings.max_tool_result_tokens or READ_TOKENS
    window = context_windows.context_tokens(settings)
    characters = tokens * context_windows.CHARACTERS_A_TOKEN
    return characters if window is None else min(characters, window * token_estimate.CHARACTERS_A_TOKEN // 2)


def request(
    execution: record.Execution,
    wanted: entries.SummaryDue,
    *,
    investigation: str,
    call_id: str,
    full_result: str,
    word: str,
) -> ports.Request:
    """Return the request for the summary of a call's result; `full_result` is all of it that was kept.

    The conversation goes up to the answer that asks for the call: results beside it may be summed up meanwhile.
    """
    answers = [
        message for message in execution.log if isinstance(message, messages.Message) and message.role == "assistant"
    ]
    index = next(index for index, message in enumerate(answers) if any(call.id == call_id for call in message.calls))
    call = next(call for call in answers[index].calls if call.id == call_id)
    server, tool = tool_names.split(call.name)
    return ports.Request(
        messages=prompts.tool_summary_prompt(
            investigation=investigation,
            server=server,
            tool=tool,
            tokens=wanted.tokens,
            description=excerpts.middle_cut("\n\n".join(_task_and_words(execution, answers[: index + 1])), TOLD_MAX),
            call=call,
            result=excerpts.middle_cut(full_result, wanted.reads),
            word=word,
        ),
        tools=(),
    )


def read(answer: messages.Message, wanted: entries.SummaryDue, *, instead_of: str) -> str | messages.Failure:
    """The summary that an answer is, or why it is none; without it the agent reads what it stands `instead_of`."""
    text = answer.text.strip()
    if not text:
        what = "tool calls" if answer.calls else "an empty answer"
        return messages.Failure(kind="rejected", text=f"the model gave {what} instead of a summary")
    most = TOO_LONG * wanted.tokens * context_windows.CHARACTERS_A_TOKEN
    if len(text) > most:
        asked = f"{wanted.tokens:,} tokens were asked for at most"
        return messages.Failure(kind="rejected", text=f"a summary of {len(text):,} characters, where {asked}")
    if len(text) >= len(instead_of):
        return messages.Failure(kind="rejected", text="the summary is no shorter than what would be read without it")
    return text


def _task_and_words(execution: record.Execution, answers: Sequence[messages.Message]) -> Iterator[str]:
    """The agent's task, and its last answers with what their calls brought, but for those of the last one."""
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
