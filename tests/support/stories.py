"""Entries of a log, for tests that need some and do not care for every word of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tarsy.config import resolve
from tarsy.transcript import entries, messages

AGENT = resolve.ResolvedAgent(
    name="KubernetesAgent",
    provider="google-default",
    strategy="native-thinking",
    max_iterations=20,
    servers=("k8s",),
    custom_instructions="Be brief.",
    server_instructions=(("k8s", "Look before you conclude."),),
)
TOOL = messages.ToolSpec(name="k8s.pods_log", parameters={"type": "object"}, idempotent=True)
CALL = entries.ModelCall(
    provider="google-default",
    model="gemini-2.5-flash",
    seconds=1.0,
    usage=messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=3, total_tokens=123),
)
CONCLUDE = messages.Message(role="user", text="Conclude now.")
FATAL = messages.Failure(kind="fatal", text="no answer")
OVERLOADED = messages.Failure(kind="fatal", text="no answer in 4 attempts", code="503")
PROMPT = (messages.Message(role="system", text="You are an agent."), messages.Message(role="user", text="web-0 dies"))


def stage_started(stage: str = "analysis", *, clock: float = 0.0) -> entries.StageStarted:
    return entries.StageStarted(stage=stage, clock=clock)


def started(
    execution: str = "one", *, stage: str = "analysis", index: int = 0, agent: resolve.ResolvedAgent | None = AGENT
) -> entries.ExecutionStarted:
    return entries.ExecutionStarted(
        stage=stage,
        execution=execution,
        index=index,
        name=f"KubernetesAgent-{index + 1}",
        agent=agent,
        tools=(TOOL,),
        messages=PROMPT,
    )


def asks(
    *names: str,
    execution: str = "one",
    call_number: int = 0,
    text: str = "",
    thinking: str = "",
    before: Sequence[messages.Message] = (),
    state: messages.ProviderState | None = None,
) -> entries.Answered:
    """An answer that asks for calls of these tools (`server.tool`), behind what was added for it."""
    calls = tuple(
        messages.ToolCall(id=f"{call_number}.{index}", name=name, arguments='{"name": "web-0"}')
        for index, name in enumerate(names)
    )
    message = messages.Message(role="assistant", text=text, thinking=thinking, calls=calls, provider_state=state)
    return entries.Answered(execution=execution, turn=call_number, messages=(*before, message), call=CALL)


def answers(
    text: str = "done", *, execution: str = "one", call_number: int = 0, before: Sequence[messages.Message] = ()
) -> entries.Answered:
    """An answer that asks for nothing more."""
    return asks(execution=execution, call_number=call_number, text=text, before=before)


def unanswered(
    *before: messages.Message, failure: messages.Failure = FATAL, execution: str = "one", call_number: int = 0
) -> entries.Unanswered:
    return entries.Unanswered(execution=execution, turn=call_number, failure=failure, call=CALL, messages=before)


def fell_back(
    to: str = "other", *, call: entries.ModelCall = CALL, execution: str = "one", call_number: int = 0
) -> entries.FellBack:
    return entries.FellBack(execution=execution, turn=call_number, provider=to, failure=OVERLOADED, call=call)


def ran(
    asked: entries.Answered,
    *places: int,
    text: str = "r",
    failed: bool = False,
    in_doubt: bool = False,
    full_text: str | None = None,
    summary: entries.SummaryDue | None = None,
) -> entries.ToolsAnswered:
    """The results of the calls at these places of an answer; of all where none is named.

    `whole` is what each has beside what is read of it, `summary` what is to be made of each.
    """
    calls = asked.messages[-1].calls
    chosen = [calls[index] for index in places] if places else calls
    return entries.ToolsAnswered(
        execution=asked.execution,
        runs=tuple(
            entries.ToolRun(
                call=call,
                result=messages.Message(
                    role="tool", text=text, call_id=call.id, tool_name=call.name, failed=failed, in_doubt=in_doubt
                ),
                seconds=0.5,
                length=None if full_text is None else len(full_text),
                whole=full_text,
                summary=summary,
            )
            for call in chosen
        ),
    )


def summarised(
    call_id: str = "0.0",
    *,
    execution: str = "one",
    call_number: int = 1,
    text: str = "",
    failure: messages.Failure | None = None,
    call: entries.ModelCall = CALL,
) -> entries.ToolSummarised:
    """A summary, or why there is none."""
    return entries.ToolSummarised(
        execution=execution,
        turn=call_number,
        call_id=call_id,
        tool="k8s.pods_log",
        word="0123abcd",
        text=text,
        failure=failure,
        call=call,
    )


def ended(execution: str = "one", outcome: entries.Outcome = "Completed", error: str = "") -> entries.ExecutionEnded:
    return entries.ExecutionEnded(execution=execution, outcome=outcome, error=error)


def stage_ended(
    stage: str = "analysis", outcome: entries.StageOutcome = "Completed", message: str = ""
) -> entries.StageEnded:
    return entries.StageEnded(stage=stage, outcome=outcome, message=message)


def run_ended(
    ending: entries.Ending = "Completed",
    reason: str = "StagesCompleted",
    *,
    message: str = "",
    final_analysis: str = "",
    summary: str = "",
) -> entries.RunEnded:
    return entries.RunEnded(
        ending=ending, reason=reason, message=message, final_analysis=final_analysis, summary=summary
    )


def turns(execution: str, *, count: int) -> Iterator[entries.Entry]:
    """Yield the entries that one execution commits: answers with two calls, some results together and some apart, some
    failures.
    """
    for step in range(count):
        asked = asks(
            "k8s.pods_log", "k8s.pods_list", execution=execution, call_number=step, text=f"look {step}", thinking="hm"
        )
        match step % 4:
            case 0:
                yield asked
                yield ran(asked, text=f"{step}")
            case 1:
                yield asked
                yield ran(asked, 1, text=f"{step}")
                yield ran(asked, 0, text="no", failed=True, in_doubt=True)
            case 2:
                yield unanswered(execution=execution, call_number=step)
            case _:
                yield asked
                yield ran(asked, 0)
                yield ran(asked, 1)


def commits(*, seed: int) -> Iterator[tuple[entries.Entry, ...]]:
    """Two stages of three agents each, whose commits mix; one agent is cut off in the middle of its calls."""
    dice = random.Random(seed)  # noqa: S311 - which one comes next
    outcomes: dict[int, entries.Outcome] = {0: "Completed", 1: "TimedOut", 2: "Failed"}
    for stage in ("collect", "analysis"):
        running = {}
        begun = []
        for index in range(3):
            identity = f"{stage[0]}{index}"
            begun.append(started(identity, stage=stage, index=index))
            running[index] = turns(identity, count=dice.randint(3, 6))
        yield (stage_started(stage), *begun)
        while running:
            index = dice.choice(list(running))
            identity = f"{stage[0]}{index}"
            if (entry := next(running[index], None)) is not None:
                yield (entry,)
                continue
            del running[index]
            last: entries.Entry = answers(f"{identity} is done", execution=identity, call_number=9)
            if index:
                last = asks("k8s.pods_log", "k8s.pods_log", execution=identity, call_number=9)
            why = f"{identity} failed" if index else ""
            yield (last,)
            ends: list[entries.Entry] = [ended(identity, outcomes[index], why)]
            yield (*ends, *([] if running else [stage_ended(stage)]))
    yield (run_ended("CompletedWithErrors", "StagesFailed", message="two failed"),)
