"""The answers of a recorded world, on a scenario of the repository."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from tarsy.evaluation import checks, scenarios, worlds
from tarsy_dev import tools

SCENARIO = scenarios.load(tools.ROOT / "scenarios" / "memory-limit")
NOW = datetime(2031, 1, 1, tzinfo=UTC)
WORLD = worlds.load(SCENARIO.world, now=NOW)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
(POD,) = (
    each["metadata"]["name"]
    for each in WORLD.objects()
    if each["kind"] == "Pod" and each["metadata"]["name"].startswith("checkout")
)
LOG = f"/api/v1/namespaces/shop/pods/{POD}/log"


def get(path: str, accept: str = "application/json", **query: str) -> worlds.Answer:
    return WORLD.answer(path, query, accept=accept)


def test_a_list_is_of_its_namespace_and_selectors() -> None:
    everywhere = get("/api/v1/pods").body["items"]
    here = get("/api/v1/namespaces/shop/pods").body["items"]
    assert {each["metadata"]["namespace"] for each in here} == {"shop"}
    assert len(everywhere) > len(here)
    (only,) = get("/api/v1/pods", labelSelector="app=checkout", fieldSelector="metadata.namespace=shop").body["items"]
    assert only["metadata"]["name"] == POD


def test_a_table_has_the_cells_that_the_api_server_wrote() -> None:
    table = get("/api/v1/namespaces/shop/pods", TABLE, labelSelector="app=checkout").body
    names = [column["name"] for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    assert dict(zip(names, row["cells"], strict=True))["Status"] == "CrashLoopBackOff"


def test_missing_object_gets_404_and_unrecorded_read_is_a_miss() -> None:
    absent = get("/api/v1/namespaces/shop/pods/other")
    assert (absent.status, absent.body["message"], absent.is_miss) == (404, 'pods "other" not found', False)
    for path in ("/apis/metrics.k8s.io/v1beta1/pods", "/api/v1/nodes/worker-a/proxy/stats/summary", "/openapi/v3", "/"):
        missed = get(path)
        assert (missed.status, missed.is_miss) == (503, True)
        assert worlds.MISS.search(missed.body["message"])


def test_a_log_has_containers_tails_and_previous_lives() -> None:
    full_log = get(LOG).body
    assert get(LOG, container="app", tailLines="1").body == full_log.splitlines(keepends=True)[-1]
    assert get(LOG, tailLines="0").body == ""
    assert "Xmx900m" in get(LOG, previous="true").body
    assert get(LOG, container="other").body["message"] == f"container other is not valid for pod {POD}"
    assert get(LOG, sinceSeconds="5").is_miss


def test_times_are_moved_to_the_present() -> None:
    pod = get(f"/api/v1/namespaces/shop/pods/{POD}").body
    finished = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["finishedAt"]
    assert timedelta(0) < NOW - datetime.fromisoformat(finished) < timedelta(minutes=5)
    assert "2030-12-31T23:5" in get(LOG).body


@given(st.text(), st.integers(-(10**6), 10**6))
def test_times_alone_are_moved_and_back_again(text: str, seconds: int) -> None:
    written = f"{text} 2026-11-26T11:16:19.5Z"
    there = worlds.moved(written, timedelta(seconds=seconds))
    assert worlds.moved(there, timedelta(seconds=-seconds)) == written


def test_the_alert_alone_must_not_give_the_answer_away() -> None:
    alert = SCENARIO.document.alert.model_copy(update={"annotations": {"summary": "Root cause: checkout is OOMKilled"}})
    document = SCENARIO.document.model_copy(update={"alert": alert})
    given_away = scenarios.Scenario(name="x-y", folder=SCENARIO.folder, document=document, digest="")
    assert not list(checks.static_problems(SCENARIO, WORLD))
    messages = [problem.message for problem in checks.static_problems(given_away, WORLD)]
    assert any("solved without a tool" in each for each in messages)
    assert any("no tool has to be called" in each for each in messages)


def test_a_check_names_what_the_world_lacks() -> None:
    cause = SCENARIO.document.cause.model_copy(update={"name": "checkuot"})
    document = SCENARIO.document.model_copy(update={"cause": cause, "secrets": ("not-anywhere",)})
    wrong = scenarios.Scenario(name="shop", folder=SCENARIO.folder, document=document, digest="")
    world = worlds.World(index=WORLD.index, rows=WORLD.rows, logs={}, shift=WORLD.shift)
    report = "\n".join(problem.message for problem in checks.static_problems(wrong, world))
    assert "the world has no Deployment checkuot in namespace shop. Available: checkout, orders-db" in report
    assert "has the scenario's name, shop" in report
    assert "secrets.0: no object and no log of the world has this value" in report
    assert f"the log of container app of pod shop/{POD} was not recorded" in report
