"""The default script where it reads others' work, and in the ReAct dialect; the prompts are the operator's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support import stories
from tarsy.agent import dialects, escaping, prompts, templates
from tarsy.engine import chat
from tarsy.resources import chains
from tarsy.transcript import messages, record
from tarsy_dev import keys, model
from tarsy_dev.model import react

PODS = """\
NAMESPACE   APIVERSION   KIND   NAME    READY   STATUS             RESTARTS     AGE
shop        v1           Pod    web-0   0/1     CrashLoopBackOff   7 (2m ago)   72m
"""
ANALYSIS = """\
## collect: `web-0` in namespace `shop`

**Root cause.** pod `web-0` in namespace `shop` starts, ends with an error, and is started again [tool 0.0].

### Evidence

`pods_list` about `web-0` [tool 0.0]:

```text
CrashLoopBackOff
```

### Recommended actions

1. `web-0`: Mend what its last log lines name.

### What was looked at

- `pods_list()` [tool 0.0]: 2 lines"""
BLIND = "## collect\n\n**Root cause.** Not found: every tool call failed (1 of 1), so nothing could be seen."
GAPS = (
    "### What could not be inspected:\n\n<!-- Analysis Result START -->\n"
    "- k8s.pods_log: no permission\n- k8s.pods_log: again\n<!-- Analysis Result END -->"
)


def marked(text: str) -> str:
    return f"<!-- Analysis Result START -->\n{text}\n<!-- Analysis Result END -->"


def asked(
    known: str,
    task: str,
    *,
    question: str = "why?",
    position: str = "stage 'analysis' of chain 'pods'",
    strategy: chains.IterationStrategy = "synthesis",
) -> model.Turn:
    """A first turn, as the operator words it."""
    snapshot = record.Snapshot(
        id="1",
        namespace="tarsy",
        name="web-crash",
        alert_type="PodCrash",
        alert_data='{"namespace": "shop", "pod": "web-0"}',
        chain_name="pods",
        chain=chains.Spec.model_validate({"alertTypes": ["a"], "stages": [{"name": "s", "agent": "A"}]}),
    )
    agent = replace(stories.AGENT, strategy=strategy)
    assignment = prompts.Assignment(
        snapshot=snapshot,
        position=position,
        name="A",
        findings=known,
        question=question if task == chat.TASK else "",
        task=task,
        now=datetime.now(UTC),
    )
    if task == "Sum up this investigation.":
        said = prompts.summary_prompt(assignment)
    else:
        said = prompts.agent_prompt(assignment, agent=agent, tools=[stories.TOOL])
    system, user = (message.text for message in said)
    return model.Turn(
        model="m",
        system=system,
        messages=(model.Message(role="user", text=user),),
        key=keys.find(system=system, first_user=user),
        kind=keys.kind(system=system, first_user=user),
    )


def text_of(turn: model.Turn) -> str:
    answer = model.investigate(turn)
    assert not answer.calls
    return answer.text


SUM_UP = "Sum up this investigation."
JOIN = "Join the results of the agents of stage 'analysis'."


@pytest.mark.parametrize(
    ("task", "position", "kind"),
    [
        (SUM_UP, "", "summary"),
        (JOIN, "stage 'analysis' of chain 'pods'", "synthesis"),
        (chat.TASK, "chain 'pods'", "chat"),
        ("Do the work of stage 'analysis'.", "stage 'analysis' of chain 'pods'", "agent"),
        (f"{SUM_UP}\nDo the work of stage 'analysis'.", "stage 'analysis' of chain 'pods'", "agent"),
    ],
)
def test_a_request_says_what_it_is_for(task: str, position: str, kind: str) -> None:
    assert asked("", task, position=position).kind == kind


def agent(number: int, work: str, *, status: str = "completed") -> str:
    return (
        f"#### Agent {number}: A-{number}\n**Provider**: p\n**Strategy**: react\n**Status**: {status}\n\n{marked(work)}"
    )


def test_a_synthesis_follows_who_looked_and_tells_who_did_not() -> None:
    steps = "Thinking: hm\n\nTool call: k8s.pods_list {}\n\nObservation: k8s.pods_list: ...\n\nFinal analysis:\n\n"
    known = "\n\n".join(
        [
            agent(1, BLIND),
            agent(2, f"{steps}{ANALYSIS}"),
            agent(3, "Error: no answer\n\nBefore it failed", status="failed"),
        ]
    )
    text = text_of(asked(known, JOIN))
    assert "**Root cause.** pod `web-0` in namespace `shop` starts, ends with an error" in text
    assert "- A-1: Not found: every tool call failed" in text
    assert "- A-3 has no result (failed): no answer" in text
    assert "1 of 3 found a cause." in text
    assert "`pods_list` about `web-0` [tool 0.0]:\n\n```text\nCrashLoopBackOff\n```" in text
    assert "1. `web-0`: Mend" in text


def test_a_synthesis_of_nothing_says_so() -> None:
    text = text_of(asked("\n\n".join([agent(1, "Error: x", status="failed"), agent(2, "", status="failed")]), JOIN))
    assert "Not found: none of the agents came to a conclusion." in text


def test_a_summary_is_a_few_plain_lines() -> None:
    account = "Chain Execution Summary:\n- Total stages: 3\n- Successful: 2\n- Failed: 1\n\nStage Results:\n❌ a: b"
    result = marked(f"{account}\n\n{ANALYSIS}")
    text = text_of(asked(f"{result}\n\n{GAPS}", SUM_UP))
    assert text.splitlines() == [
        "Pod web-0 in namespace shop starts, ends with an error, and is started again.",
        "1 of 3 stages failed.",
        "First: web-0: Mend what its last log lines name.",
        "Not inspected: k8s.pods_log",
    ]


@pytest.mark.parametrize("known", ["", marked(""), marked("# Only a heading")])
def test_a_summary_of_nothing_invents_nothing(known: str) -> None:
    assert text_of(asked(known, SUM_UP)) == "The investigation came to no conclusion."


def test_a_question_is_answered_with_what_was_found_about_it() -> None:
    known = f"# Results of earlier stages\n\n### Results from 'collect' stage:\n\n{marked(ANALYSIS)}"
    text = text_of(asked(known, chat.TASK, question="What should I mend first?", position="chain 'pods'"))
    assert "- 1. `web-0`: Mend what its last log lines name." in text
    assert text.endswith("Nothing was looked at anew for this answer.")


def test_a_question_that_asks_to_look_is_looked_at_if_there_are_tools() -> None:
    known = f"# Results of earlier stages\n\n### Results from 'collect' stage:\n\n{marked(ANALYSIS)}"
    turn = asked(known, chat.TASK, question="Does it still crash?", position="chain 'pods'")
    assert "Nothing was looked at anew" in text_of(turn)
    tool = model.Tool(name="k8s__pods_get", schema={"required": ["name"]})
    with_tools = replace(turn, tools=(tool,))
    (call,) = model.investigate(with_tools).calls
    assert (call.name, call.args) == ("k8s__pods_get", {"namespace": "shop", "name": "web-0"})
    result = model.Result(name=call.name, text="kind: Pod\n    reason: CrashLoopBackOff\n", reference="[tool 0.0]")
    said = (model.Message(role="model", calls=(call,)), model.Message(role="user", results=(result,)))
    text = text_of(replace(with_tools, messages=(*turn.messages, *said)))
    assert "`pods_get` about `web-0` [tool 0.0]:\n\n```text\nreason: CrashLoopBackOff" in text


def test_who_concludes_for_all_stages_has_the_sections_that_it_is_asked_for() -> None:
    work = marked(f"Observation: k8s.pods_list: ..\n\nFinal analysis:\n\n{ANALYSIS}")
    known = f"### Results from 'collect' stage:\n\n{work}"
    text = text_of(asked(known, "Do the work of stage 'analysis'.", strategy="react-final-analysis"))
    for heading in ("**Root cause.** pod `web-0`", "### Impact", "### Recommended actions\n\n1. ", "### Prevention"):
        assert heading in text


def test_in_react_it_asks_for_one_action_at_a_time_and_reads_the_observations() -> None:
    """The dialect of the operator reads what it writes, and writes what it reads."""
    turn = asked("", "Do the work of stage 'analysis'.", strategy="react")
    specs = [
        messages.ToolSpec(
            name="k8s.pods_list_in_namespace", description="Lists: pods\nof one.", parameters={"required": []}
        ),
        messages.ToolSpec(name="k8s.pods_get", description="", parameters={"required": ["name"]}),
        messages.ToolSpec(name="k8s.pods_log", description="", parameters={"required": ["name"]}),
    ]
    described = escaping.escape_comments(dialects.REACT.describe_tools(specs))
    tools = (
        f"{turn.system.partition('## Tools')[0]}## Tools\n\n<!-- DATA ab START -->\n{described}\n<!-- DATA ab END -->"
    )
    results = {"pods_list_in_namespace": PODS, "pods_get": "failed to get pod", "pods_log": "fatal: no such host db"}
    conversation: list[messages.Message] = [messages.Message(role="user", text=turn.messages[0].text)]
    called: list[str] = []
    for number in range(6):
        sent = dialects.REACT.render(conversation)
        heard = tuple(
            model.Message(role="model" if message.role == "assistant" else "user", text=message.text)
            for message in sent
        )
        answer = model.investigate(replace(turn, system=tools, messages=heard))
        assert not answer.calls
        read = dialects.REACT.read(messages.Message(role="assistant", text=answer.text), final=False)
        assert isinstance(read, messages.Message)
        assert not dialects.REACT.problem(read)
        conversation.append(read)
        if not read.calls:
            break
        (call,) = read.calls
        called.append(call.name)
        result = results[call.name.partition(".")[2]]
        conversation.append(messages.Message(role="tool", call_id=f"{number}.0", tool_name=call.name, text=result))
    assert called == ["k8s.pods_list_in_namespace", "k8s.pods_get", "k8s.pods_log"]
    assert "`pods_list_in_namespace` about `web-0` [tool 0.0]" in answer.text
    assert "`pods_get(namespace=shop, name=web-0)` [tool 1.0]: failed: failed to get pod" in answer.text
    assert "fatal: no such host db" in answer.text


def test_in_react_it_concludes_when_it_is_told_to() -> None:
    turn = asked("", "Do the work of stage 'analysis'.", strategy="react")
    assert react.understood(turn).tools
    last = model.Message(role="user", text=f"Observation: [tool 0.0] {PODS}\n\n{templates.text('conclude-react')}")
    said = model.Message(role="model", text="Thought: x\nAction: k8s.pods_log\nAction Input: {}")
    forced = replace(turn, messages=(*turn.messages, said, last))
    assert "Final Answer: " in text_of(forced)
    assert "CrashLoopBackOff" in text_of(forced)


def test_a_long_result_is_shortened_to_its_head_and_its_trouble_letter_by_letter() -> None:
    lines = [f"shop        v1           Pod    web-{number}   1/1     Running" for number in range(2000)]
    lines[1234] = PODS.splitlines()[1]
    header = PODS.splitlines()[0]
    system, user = prompts.tool_summary_prompt(
        investigation="shop/web-crash",
        server="k8s",
        tool="pods_list",
        tokens=1000,
        description="The agent's task:\nlook",
        call=messages.ToolCall(id="0.0", name="k8s.pods_list", arguments="{}"),
        result="\n".join([header, *lines]),
        word="0123abcd",
    )
    turn = model.Turn(
        model="m",
        system=system.text,
        messages=(model.Message(role="user", text=user.text),),
        kind=keys.kind(system=system.text, first_user=user.text),
    )
    assert turn.kind == "tool_summary"
    answer = model.investigate(turn)
    assert isinstance(answer, model.Answer)
    told = "(2001 lines in all; others tell of no trouble, or found no room here)"
    assert answer.text.splitlines() == [header, lines[1234], told]
