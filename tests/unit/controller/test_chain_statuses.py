"""The conditions of a chain, from what was checked."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from support.masking import NO_SECRETS
from tarsy.agent import strategies
from tarsy.config import resolve
from tarsy.config.check import chain_index, worker_reports
from tarsy.controller import chain_statuses
from tarsy.masking import known_secrets
from tarsy.resources import base
from tarsy.resources import chains as kind
from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states
from tarsy.views import system_warnings

by_server = chain_statuses.group_by_server
server_states, servers_reachable = chain_statuses.server_states, chain_statuses.servers_reachable

NOW = datetime(2026, 11, 21, 20, 29, 42, 654068, tzinfo=UTC)
build = functools.partial(
    chain_statuses.build, servers={}, workers=worker_reports.Workers(), secrets=NO_SECRETS, now=NOW
)
GOOD = chain_index.ChainStatus(acceptance=None, references=None)
CONFLICT = chain_index.ChainStatus(
    acceptance=chain_index.Problem(reason="AlertTypeConflict", message="taken"), references=None
)
DANGLING = chain_index.ChainStatus(
    acceptance=None, references=chain_index.Problem(reason="ReferenceNotFound", message="no agent")
)


def make(*, generation: int = 1, status: kind.Status | None = None, deadline: int | None = None) -> kind.AgentChain:
    spec = {"alertTypes": ["A"], "stages": [{"name": "look", "agent": "A"}], "activeDeadlineSeconds": deadline}
    metadata = {"name": "mine", "uid": "u", "generation": generation}
    return kind.AgentChain.model_validate({"metadata": metadata, "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("checked", "accepted", "resolved", "ready", "stalled"),
    [
        (GOOD, "True Accepted", "True ResolvedRefs", "True Ready", "False Ready"),
        (CONFLICT, "False AlertTypeConflict", "True ResolvedRefs", "False AlertTypeConflict", "True AlertTypeConflict"),
        (DANGLING, "True Accepted", "False ReferenceNotFound", "False ReferenceNotFound", "True ReferenceNotFound"),
    ],
    ids=["good", "conflict", "dangling"],
)
def test_a_chain_with_any_problem_is_not_ready_and_stalled(
    checked: chain_index.ChainStatus, accepted: str, resolved: str, ready: str, stalled: str
) -> None:
    mine = make(generation=3)
    status = build(mine, checked)
    assert {condition.type: f"{condition.status} {condition.reason}" for condition in status.conditions} == {
        "Accepted": accepted,
        "ResolvedRefs": resolved,
        "Ready": ready,
        "Stalled": stalled,
    }
    problem = "" if checked.problem is None else checked.problem.message
    assert [condition.message for condition in status.conditions[2:]] == [problem, problem]
    assert (status.observed_generation, status.hash) == (3, mine.digest())
    assert {condition.observed_generation for condition in status.conditions} == {3}
    assert {condition.last_transition_time for condition in status.conditions} == {NOW.replace(microsecond=0)}


@pytest.mark.parametrize(
    ("reason", "problem", "resolved", "ready"),
    [
        ("FallbackUnusable", None, "True FallbackUnusable told", "True FallbackUnusable told"),
        ("ReceiverNotFound", None, "True ReceiverNotFound told", "True ReceiverNotFound told"),
        (chain_index.NOT_OFFERED, None, "True ToolsNotOffered told", "True Ready "),
        (
            "FallbackUnusable",
            chain_index.Problem(reason="ReferenceNotFound", message="no agent"),
            "False ReferenceNotFound no agent",
            "False ReferenceNotFound no agent",
        ),
    ],
    ids=["a fallback", "a receiver", "what is normal", "beside a problem"],
)
def test_a_warning_is_the_reason_of_a_ready_chain_and_changes_the_status_of_no_condition(
    reason: str, problem: chain_index.Problem | None, resolved: str, ready: str
) -> None:
    warning = chain_index.Problem(reason=reason, message="told")
    without = build(make(), chain_index.ChainStatus(acceptance=None, references=problem))
    checked = chain_index.ChainStatus(acceptance=None, references=problem, warning=warning)
    status = build(make(), checked)
    assert [condition.status for condition in status.conditions] == [
        condition.status for condition in without.conditions
    ]
    texts = {
        condition.type: f"{condition.status} {condition.reason} {condition.message}" for condition in status.conditions
    }
    assert (texts.pop("ResolvedRefs"), texts.pop("Ready")) == (resolved, ready)
    assert [condition for condition in status.conditions if condition.type in texts] == [
        condition for condition in without.conditions if condition.type in texts
    ]


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = build(make(), DANGLING)
    # Another reason and another generation are no transition.
    second = build(make(generation=2, status=first), CONFLICT, now=NOW + timedelta(hours=1))
    times = {condition.type: condition.last_transition_time for condition in second.conditions}
    old, new = NOW.replace(microsecond=0), NOW.replace(microsecond=0) + timedelta(hours=1)
    assert times == {"Accepted": new, "ResolvedRefs": new, "Ready": old, "Stalled": old}


def test_unchanged_chain_has_the_same_status_as_the_cluster_gives_it_back() -> None:
    written = build(make(), GOOD).model_dump(mode="json", by_alias=True, exclude_none=True)
    read = make(status=kind.Status.model_validate(written))
    assert build(read, GOOD, now=NOW + timedelta(hours=1)) == read.status


def test_a_message_is_cut_behind_what_masking_makes_longer() -> None:
    secrets = known_secrets.KnownSecrets(["pa55w0rd"])
    problem = chain_index.Problem(reason="ReferenceNotFound", message="pa55w0rd " * 110)
    status = build(make(), chain_index.ChainStatus(acceptance=None, references=problem), secrets=secrets)
    assert status.conditions[-1].message == ("[MASKED:secret] " * 100)[: base.MESSAGE_MAX]


def test_the_hash_changes_with_the_spec_alone() -> None:
    assert make(deadline=60).digest() != make().digest() == make(generation=2).digest()
    assert len(make().digest()) == 16


def server_report(name: str, state: str, problem: str = "") -> catalogue.AnyReport:
    detail = component_states.Server(problem=problem, tools=3)
    return catalogue.AnyReport(
        process=UUID(int=0), host="pod", kind="server", name=name, state=state, since=NOW, detail=detail
    )


UP, DOWN, NEW = (
    server_report("k8s", "connected"),
    server_report("k8s", "unreachable", "cannot be reached: x"),
    server_report("k8s", "connecting"),
)
OTHER, LOGS = (
    server_report("other", "unreachable", "cannot be reached: y"),
    server_report("logs", "unreachable", "cannot be reached: z"),
)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([UP], "True ServersReachable "),
        ([UP, OTHER], "True ServersReachable "),
        ([NEW], "Unknown ServersNotConnected MCP server 'k8s' has not been connected to yet"),
        ([], "Unknown ServersNotConnected MCP server 'k8s' has not been connected to yet"),
        ([DOWN, NEW, DOWN], "False ServersUnreachable MCP server 'k8s' (in 2 of 3 processes) cannot be reached: x"),
    ],
)
def test_unreachable_server_changes_only_the_servers_reachable_condition(
    reports: list[catalogue.AnyReport], expected: str
) -> None:
    checked = replace(GOOD, servers=("k8s",))
    without = build(make(), GOOD, servers=by_server(reports))
    status = build(make(), checked, servers=by_server(reports))
    *others, last = status.conditions
    assert others == without.conditions, "a chain that needs none has none"
    assert last.type == "MCPServersReachable"
    assert f"{last.status} {last.reason} {last.message}" == expected


def test_all_unreachable_servers_are_reported() -> None:
    verdict = servers_reachable(("k8s", "logs"), by_server([DOWN, LOGS]))
    assert verdict.message == "MCP server 'k8s' cannot be reached: x; MCP server 'logs' cannot be reached: z"


def test_stopped_tool_is_reported_with_both_hashes_and_its_server_stays_reachable() -> None:
    stopped = component_states.StoppedTool(tool="say", pinned="sha256:a", offered="sha256:b")
    changed = replace(UP, detail=replace(UP.detail, stopped=(stopped,)))
    stopped_message = "tool 'k8s.say' is stopped: pinned sha256:a, now sha256:b"
    servers = by_server([changed, changed])
    assert servers_reachable(("k8s",), servers) == chain_statuses.Verdict(
        status="True", reason="ToolsStopped", message=stopped_message
    )
    assert server_states(servers) != server_states(by_server([UP, UP])), "chains are checked again"
    assert servers_reachable(("k8s", "logs"), by_server([changed, LOGS])) == chain_statuses.Verdict(
        status="False",
        reason="ServersUnreachable",
        message=f"MCP server 'logs' cannot be reached: z; {stopped_message}",
    )


def test_the_strategies_without_tools_are_those_of_the_table() -> None:
    assert {name for name, row in strategies.STRATEGIES.items() if not row.tools} == set(resolve.WITHOUT_TOOLS)


KEY, PACKAGE = "it has no key", "the package is not installed"


@pytest.mark.parametrize(
    ("count", "reports", "condition", "unusable"),
    [
        (0, {}, "Unknown NoWorker no worker has said yet whether LLM provider 'a' can be used; alerts wait", {}),
        (1, {"a": [""]}, "True ProvidersUsable ", {}),
        (1, {"a": [""], "b": [KEY]}, "True ProvidersUsable ", {"b": KEY}),
        (1, {"a": [KEY]}, f"False ProviderUnusable LLM provider 'a' cannot be used: {KEY}", {"a": KEY}),
        (2, {"a": [KEY]}, f"False ProviderUnusable LLM provider 'a' (in 1 of 2 workers) cannot be used: {KEY}", {}),
        (
            3,
            {"a": [KEY, PACKAGE, KEY]},
            f"False ProviderUnusable LLM provider 'a' cannot be used: {KEY}; {PACKAGE}",
            {"a": f"{KEY}; {PACKAGE}"},
        ),
    ],
)
def test_a_provider_is_unusable_for_chains_only_if_all_workers_say_so(
    count: int, reports: dict[str, list[str]], condition: str, unusable: dict[str, str]
) -> None:
    workers = worker_reports.Workers(count=count, reports=reports)
    assert workers.unusable == unusable
    checked = replace(GOOD, providers=("a",))
    *others, last = build(make(), checked, workers=workers).conditions
    assert others == build(make(), GOOD, workers=workers).conditions
    assert f"{last.type} {last.status} {last.reason} {last.message}" == f"{chain_statuses.PROVIDERS_USABLE} {condition}"


@pytest.mark.parametrize(("problems", "is_warned"), [(["", ""], False), ([KEY, ""], True), ([], False)])
def test_a_chain_that_only_some_workers_can_run_is_a_warning(problems: list[str], is_warned: bool) -> None:
    workers = worker_reports.Workers(count=2, reports={"a": problems} if problems else {})
    checked = replace(GOOD, providers=("a",))
    reported = make(status=build(make(), checked, workers=workers))
    message = f"it is ready, and not all workers can run it: LLM provider 'a' (in 1 of 2 workers) cannot be used: {KEY}"
    assert [warning.message for warning in system_warnings.chain_warnings([reported])] == (
        [message] if is_warned else []
    )
