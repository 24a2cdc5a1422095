"""The default script of the scripted model, on results as kubernetes-mcp-server 0.0.67 returns them."""

from __future__ import annotations

import json

import pytest
from tarsy_dev import keys, model
from tarsy_dev.model import reading

PODS = """\
NAMESPACE   APIVERSION   KIND   NAME                   READY   STATUS             RESTARTS     AGE   IP         NODE     NOMINATED NODE   READINESS GATES   LABELS
shop        v1           Pod    web-0                  0/1     CrashLoopBackOff   7 (2m ago)   72m   10.0.0.3   node-1   <none>           <none>            app=web
shop        v1           Pod    db-0                   1/1     Running            0            72m   10.0.0.3   node-1   <none>           <none>            app=db
shop        v1           Pod    cart-7d4b9c6f5-x2x8p   0/1     ImagePullBackOff   0            72m   10.0.0.3   node-1   <none>           <none>            app=cart-7d4b9c6f5
"""  # noqa: E501  # as it is printed
HEALTHY = "\n".join(line for line in PODS.splitlines() if "Back" not in line)
EVENTS = """\
# The following events (YAML format) were found:
- InvolvedObject:
    Kind: Pod
    Name: web-0
    apiVersion: v1
  Message: Back-off restarting failed container app in pod web-0_shop(u-web-0)
  Namespace: shop
  Reason: BackOff
  Timestamp: 2026-11-21 21:10:00 +0000 UTC
  Type: Warning
- InvolvedObject:
    Kind: Pod
    Name: web-0
    apiVersion: v1
  Message: Container image "shop/web:1.4.2" already present on machine
  Namespace: shop
  Reason: Pulled
  Timestamp: 2026-11-21 21:10:00 +0000 UTC
  Type: Normal
- InvolvedObject:
    Kind: Pod
    Name: cart-7d4b9c6f5-x2x8p
    apiVersion: v1
  Message: 'Failed to pull image "shop/cart:9.9": rpc error: code = NotFound desc
    = manifest unknown'
  Namespace: shop
  Reason: Failed
  Timestamp: 2026-11-21 21:10:00 +0000 UTC
  Type: Warning
"""
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  namespace: shop
status:
  conditions:
  - reason: ContainersNotReady
    status: "False"
    type: Ready
  containerStatuses:
  - lastState:
      terminated:
        exitCode: 137
        reason: OOMKilled
    state:
      waiting:
        message: back-off 5m0s restarting failed container=app pod=web-0_shop(u-web-0)
        reason: CrashLoopBackOff
  phase: Running
"""
LOG = """\
2026-11-21T21:09:58Z starting web 1.4.2
2026-11-21T21:10:00Z FATAL cannot reach database: dial tcp 10.0.0.9:5432: connect: connection refused
"""
ALERTS = {
    "alertmanager": json.dumps({"labels": {"alertname": "KubePodCrashLooping", "namespace": "shop", "pod": "web-0"}}),
    "json within json": json.dumps({"alert": json.dumps({"namespace": "shop", "pod": "web-0"})}),
    "labels": 'KubePodCrashLooping{namespace="shop", pod="web-0"}',
    "yaml": "namespace: shop\npod: web-0\n",
    "prose": "The pod web-0 in namespace shop restarts every minute; pod restarts are many.",
    "slash": "Pod shop/web-0 is crash looping",
}
READ_TOOLS = {
    "pods_list": [],
    "pods_list_in_namespace": ["namespace"],
    "pods_get": ["name"],
    "pods_log": ["name"],
    "events_list": [],
    "configuration_view": [],
}


def tool(name: str, required: list[str]) -> model.Tool:
    schema = {"type": "object", "properties": {field: {"type": "string"} for field in required}, "required": required}
    return model.Tool(name=f"kubernetes-server__{name}", schema=schema)


def turn(
    *messages: model.Message, alert: str = ALERTS["alertmanager"], stage: str = "data-collection", tools: bool = True
) -> model.Turn:
    first = model.Message(role="user", text=f"Investigation: tarsy/web-crash\n\n{alert}")
    return model.Turn(
        model="m",
        system=f"You are KubernetesAgent, the agent of stage '{stage}' of chain 'pod-crash'.",
        messages=(first, *messages),
        tools=tuple(tool(name, required) for name, required in READ_TOOLS.items()) if tools else (),
        key=keys.Key("tarsy/web-crash", stage, "KubernetesAgent"),
    )


def calls(answer: model.Reply) -> dict[str, dict[str, object]]:
    assert isinstance(answer, model.Answer)
    return {call.name.removeprefix("kubernetes-server__"): dict(call.args) for call in answer.calls}


def run(
    results: dict[str, str | model.Result],
    *,
    alert: str = ALERTS["alertmanager"],
    stage: str = "data-collection",
    asked: list[str] | None = None,
) -> str:
    """Answer every call from `results`, by the tool's short name, until the analysis; `asked` gets the names."""
    messages: list[model.Message] = []
    for _ in range(6):
        answer = model.investigate(turn(*messages, alert=alert, stage=stage))
        if not answer.calls:
            return answer.text
        short = [call.name.removeprefix("kubernetes-server__") for call in answer.calls]
        if asked is not None:
            asked += short
        messages.append(model.Message(role="model", text=answer.text, calls=answer.calls))
        found = [results[name] for name in short]
        answered = [
            model.Result(name=call.name, text=result) if isinstance(result, str) else result
            for call, result in zip(answer.calls, found, strict=True)
        ]
        messages.append(model.Message(role="user", results=tuple(answered)))
    pytest.fail("it asks for ever")


WORLD: dict[str, str | model.Result] = {
    "pods_list_in_namespace": PODS,
    "events_list": EVENTS,
    "pods_get": POD,
    "pods_log": LOG,
}


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_namespace_and_pod_are_found_in_any_alert(alert: str) -> None:
    assert reading.target(alert) == reading.Target(namespace="shop", pod="web-0")
    assert calls(model.investigate(turn(alert=alert))) == {
        "pods_list_in_namespace": {"namespace": "shop"},
        "events_list": {"namespace": "shop"},
        "pods_get": {"namespace": "shop", "name": "web-0"},
    }


@pytest.mark.parametrize("alert", ["", "disk full on db01", "{]", "pod restarts in the namespace of the shop"])
def test_an_alert_that_names_nothing_is_surveyed_in_the_whole_cluster(alert: str) -> None:
    answer = model.investigate(turn(alert=alert))
    assert calls(answer) == {"pods_list": {}, "events_list": {}}
    assert "the cluster" in answer.text


def test_our_own_name_is_not_what_the_alert_is_about() -> None:
    assert "tarsy" not in str(calls(model.investigate(turn(alert="something is wrong"))))


def test_tools_of_other_servers_are_called_if_they_only_read_and_can_be_filled() -> None:
    declared = (
        model.Tool(name="prom__query", schema={"required": ["query"]}),
        model.Tool(name="prom__query_range", schema={"required": ["query", "start"]}),
        model.Tool(name="kube__delete_pod", schema={"required": ["name"]}),
        model.Tool(name="kube__configuration_view"),
        model.Tool(name="shop__lookup"),
    )
    asked = model.Turn(model="m", messages=turn().messages, tools=declared)
    assert [(call.name, call.args) for call in model.investigate(asked).calls] == [
        ("prom__query", {"query": "web-0"}),
        ("shop__lookup", {}),
    ]


def test_the_logs_of_what_crashes_are_read_next_but_not_of_what_never_ran() -> None:
    asked: list[str] = []
    run(WORLD, alert="something is wrong in namespace shop", asked=asked)
    assert asked == ["pods_list_in_namespace", "events_list", "pods_log"]


def test_the_analysis_names_the_cause_and_quotes_it_letter_by_letter() -> None:
    text = run(WORLD)
    assert "**Root cause.** pod `web-0` in namespace `shop` is killed because it uses more memory" in text
    assert "its log says that something that it depends on refuses connections" in text
    quotes = [line for block in text.split("```text\n")[1:] for line in block.split("\n```")[0].splitlines()]
    assert len(quotes) >= 5
    for quote in quotes:
        assert any(quote in str(result) for result in WORLD.values())
    assert "### Recommended actions\n\n1. " in text
    assert "shop/cart" not in text, "the alert is about another pod"


def test_troubles_of_several_pods_are_told_apart() -> None:
    text = run(WORLD, alert="something is wrong in namespace shop")
    assert "image cannot be pulled. Besides, pod `web-0` in namespace `shop` starts, ends with an error" in text
    assert "1. `cart-7d4b9c6f5-x2x8p`: Check that the image's name" in text


def test_a_cause_in_several_lines_is_quoted_as_it_stands() -> None:
    asked: list[str] = []
    text = run(WORLD | {"pods_get": "{}"}, alert="pod shop/cart-7d4b9c6f5-x2x8p is not ready", asked=asked)
    assert "pods_log" not in asked, "it never ran"
    assert "image cannot be pulled" in text
    assert "rpc error: code = NotFound desc\n    = manifest unknown'" in text


def test_when_nothing_is_wrong_it_says_so() -> None:
    text = run(
        {
            "pods_list_in_namespace": HEALTHY,
            "events_list": "# No events found",
            "pods_log": "listening on :8080\n",
            "pods_get": POD.split("status:")[0],
        }
    )
    assert "**Root cause.** Not found: nothing that the tools returned shows trouble with `web-0`" in text
    assert "### Evidence" not in text


def test_when_tools_fail_it_says_which_and_how() -> None:
    failed = model.Result(name="x", text="dial tcp 127.0.0.1:6443: connect: connection refused", failed=True)
    text = run(dict.fromkeys(WORLD, failed))
    assert "**Root cause.** Not found: every tool call failed (3 of 3)" in text
    assert f"`pods_get(namespace=shop, name=web-0)`: failed: {failed.text}" in text


def test_a_pod_that_the_alert_does_not_name_is_not_passed_off_as_its_cause() -> None:
    text = run(WORLD | {"pods_get": "x"}, alert="pod shop/api-0 is slow")
    assert "which the alert does not name (`api-0` in namespace `shop`)" in text


def test_without_tools_it_concludes() -> None:
    answer = model.investigate(turn(tools=False))
    assert not answer.calls
    assert "Not found: no tool was there to look with" in answer.text


def test_it_concludes_from_what_it_has_when_its_tools_are_taken_away() -> None:
    survey = model.investigate(turn())
    results = tuple(
        model.Result(name=call.name, text=text) for call, text in zip(survey.calls, [PODS, EVENTS, POD], strict=True)
    )
    forced = turn(
        model.Message(role="model", calls=survey.calls),
        model.Message(role="user", results=results, text="Conclude now from what you have."),
        tools=False,
    )
    assert "**Root cause.** pod `web-0`" in model.investigate(forced).text


def handed_over(*analyses: str) -> str:
    marked = (f"<!-- Analysis Result START -->\n{text}\n<!-- Analysis Result END -->" for text in analyses)
    return "\n\n".join((ALERTS["alertmanager"], *marked))


def test_a_later_stage_looks_closer_and_says_it_in_other_words() -> None:
    first = run(WORLD)
    asked: list[str] = []
    second = run(WORLD, alert=handed_over(first), stage="analysis", asked=asked)
    assert asked == ["pods_get", "pods_log", "events_list"]
    assert "**Conclusion.** Stage 'analysis' finds it still so" in second
    assert "### Handed over" in second
    assert second.splitlines()[0] != first.splitlines()[0]


def test_a_summary_is_one_paragraph_of_the_last_finding() -> None:
    summary = turn(alert=handed_over(run(WORLD)), stage="summary", tools=False)
    text = model.investigate(summary).text
    assert text.startswith("In short: pod `web-0`")
    assert "\n" not in text


def test_several_analyses_are_brought_together() -> None:
    both = (run(WORLD), run(WORLD | {"pods_get": "x"}))
    text = model.investigate(turn(alert=handed_over(*both), stage="synthesis", tools=False)).text
    assert "2 findings together" in text
    assert text.count("\n- pod `web-0`") == 2


def test_the_react_dialect_gets_its_final_answer() -> None:
    asked = model.Turn(model="m", system="Answer with 'Final Answer:' at the end.", messages=turn().messages)
    assert "\nFinal Answer: ## " in model.investigate(asked).text
