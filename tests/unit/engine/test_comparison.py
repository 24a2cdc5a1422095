"""The comparison of a recheck: each real change is seen, and an honest re-read of a crash loop is alike.

The texts are kubernetes-mcp-server's answers about a pod that failed on a real node, given to a Deployment's pod.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support import steps
from tarsy.engine.comparison import results

CAPTURES = Path(__file__).resolve().parents[2] / "captures" / "kubernetes-mcp-server"
CAPTURE: dict[str, str] = json.loads((CAPTURES / "command.json").read_text())
REPLICA_SET = "web-7d9f8c6b5"
UID, IP = "534c27c9-8cfc-41a5-95fc-9e286c99f4ce", "10.244.0.13"
FORMS: Mapping[str, results.Form] = {
    "pods_get": "object",
    "pods_list_in_namespace": "list",
    "yaml_list": "list",
    "events_list": "events",
    "events_table": "list",
    "pods_log": "log",
}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Changes that a crash loop makes by itself."""

    suffix: str = "x2k4q"
    uid: str = UID
    ip: str = IP
    restarts: int = 4
    minutes: int = 0
    version: int = 1149
    wait: str = "1m20s"
    last_restart: str = "15s"
    has_old_events: bool = True

    def reads(self) -> dict[str, str]:
        """Return what the tools say."""
        name = f"{REPLICA_SET}-{self.suffix}"

        def moved(match: re.Match[str]) -> str:
            minutes = int(match[2]) * 60 + int(match[3]) + self.minutes
            return f"{match[1]}{minutes // 60:02}:{minutes % 60:02}"

        def rewritten(text: str) -> str:
            text = re.sub(r"(\d{4}-\d\d-\d\d[T ])(\d\d):(\d\d)", moved, text)
            text = text.replace("back-off 1m20s", f"back-off {self.wait}").replace(
                "restartCount: 4", f"restartCount: {self.restarts}"
            )
            text = text.replace('resourceVersion: "1149"', f'resourceVersion: "{self.version}"')
            text = re.sub("containerd://07dc", f"containerd://{self.restarts:04x}", text)
            text = text.replace("kube-api-access-9klhg", f"kube-api-access-{self.suffix}")
            return text.replace("app-0", name).replace(UID, self.uid).replace(IP, self.ip)

        owned = f"  generateName: {REPLICA_SET}-\n  generation: 1\n  labels:\n    pod-template-hash: 7d9f8c6b5\n"
        own = "    env:\n    - name: LEVEL\n      value: debug\n    image: localhost/peer:1\n"
        pod = rewritten(
            CAPTURE["pods_get"].replace("  generation: 1\n", owned).replace("    image: localhost/peer:1\n", own, 1)
        )
        pod = pod.replace("    resources: {}\n", "    resources:\n      limits:\n        memory: 64Mi\n", 1)
        events = rewritten(CAPTURE["events_list"])
        head, *each = re.split(r"(?m)^(?=- )", events)
        created = each[0].replace("Kind: Pod", "Kind: ReplicaSet").replace(f"Name: {name}", f"Name: {REPLICA_SET}")
        created = re.sub(r"  Message: .*\n", f"  Message: 'Created pod: {name}'\n", created)
        recent = [created, *each] if self.has_old_events else each[2:]
        columns = ["NAMESPACE", "APIVERSION", "KIND", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
        columns += ["IP", "NODE", "LABELS"]
        age = f"{self.minutes}m" if self.minutes else "100s"
        restarts = f"{self.restarts} ({self.last_restart} ago)"
        row = ["evidence-command", "v1", "Pod", name, "0/1", "CrashLoopBackOff", restarts, age]
        row += [self.ip, "node-0", "pod-template-hash=7d9f8c6b5"]
        event_columns = ["APIVERSION", "KIND", "LAST SEEN", "TYPE", "REASON", "OBJECT", "SUBOBJECT", "MESSAGE"]
        event_columns += ["COUNT", "NAME"]
        message = f"Back-off restarting failed container app in pod {name}_evidence-command({self.uid})"
        event = ["v1", "Event", age, "Warning", "BackOff", f"pod/{name}", "", message]
        event += [str(self.restarts), f"{name}.18eb95c372702c7c"]
        return {
            "pods_get": pod,
            "pods_list_in_namespace": table(columns, row),
            "yaml_list": "- " + "\n  ".join(pod.splitlines()) + "\n",
            "events_list": head + "".join(recent),
            "events_table": table(event_columns, event),
            "pods_log": rewritten(
                f"2026-11-25T07:22:24.013507Z starting in {name} at {IP}:8080\n"
                'ts=2026-11-25T07:22:25Z level=error msg="status 3" limit=30s\n'
                '{"level":"error","ts":"2026-11-25T07:22:26Z","msg":"cannot open /data/7"}\n'
                f"10.0.0.1 - - [25/Nov/2026:07:{20 + self.minutes % 30}:24 +0000] \"GET /ready\" 503\n"
                f"E1125 07:{20 + self.minutes % 30}:26.100000       1 main.go:10] fatal\n"
            ),
        }  # fmt: skip


def table(columns: list[str], *rows: list[str]) -> str:
    lines = [columns, *rows]
    widths = [max(len(line[index]) for line in lines) + 3 for index in range(len(columns))]
    return "".join(
        "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


FORMER = Moment().reads()
LATER = Moment(
    suffix="zzzzz",
    uid="11111111-2222-4333-8444-555555555555",
    ip="10.244.3.9",
    restarts=77,
    minutes=300,
    version=5000,
    wait="5m0s",
)
SUFFIXES = st.text(alphabet="bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)
MOMENTS = st.builds(
    Moment,
    suffix=SUFFIXES,
    uid=st.uuids().map(str),
    ip=st.integers(2, 250).map(lambda last: f"10.244.3.{last}"),
    restarts=st.integers(1, 5000),
    minutes=st.integers(1, 900),
    version=st.integers(1, 10**9),
    wait=st.sampled_from(["10s", "20s", "40s", "1m20s", "2m40s", "5m0s"]),
    last_restart=st.sampled_from(["0s", "7m30s", "3h12m", "4d", "<invalid>"]),
    has_old_events=st.booleans(),
)


def differences(now: Mapping[str, str], *names: str, fingerprints: bool = False) -> dict[str, list[str]]:
    names = names or tuple(FORMS)
    rereads = [
        results.Reread(form=FORMS[name], former=FORMER[name], now=now[name], has_fingerprints=fingerprints)
        for name in names
    ]
    return {name: lines for name, lines in zip(names, results.differences(rereads), strict=True) if lines}


@given(now=MOMENTS)
def test_an_honest_reread_of_a_crash_loop_is_alike(now: Moment) -> None:
    assert differences(now.reads()) == {}


@given(now=MOMENTS)
def test_each_result_is_alike_without_the_others_that_name_its_pod(now: Moment) -> None:
    reads = now.reads()
    for name in ("pods_get", "pods_list_in_namespace", "yaml_list", "events_table"):
        assert differences(reads, name) == {}
    events = now.reads() | Moment(**dataclasses.asdict(now) | {"has_old_events": True}).reads()
    assert differences(events, "events_list") == {}


def edit(pattern: str, replacement: str) -> Callable[[str], str]:
    def edited(text: str) -> str:
        changed, count = re.subn(pattern, replacement, text, count=1)
        assert count == 1, pattern
        return changed

    return edited


YAML = {
    "image": edit("image: localhost/peer:1", "image: localhost/peer:2"),
    "image of the status": edit(r"imageID: sha256:c27", "imageID: sha256:d27"),
    "environment": edit("value: debug", "value: info"),
    "further environment": edit("( *)value: debug\n", r"\g<0>\1- name: MORE\n"),
    "command": edit("- /no-such-program", "- /other-program"),
    "exit code": edit("exitCode: 128", "exitCode: 137"),
    "reason": edit("reason: StartError", "reason: OOMKilled"),
    "reason of waiting": edit("reason: CrashLoopBackOff", "reason: ImagePullBackOff"),
    "message": edit("no such file or directory", "permission denied"),
    "limit": edit("memory: 64Mi", "memory: 128Mi"),
    "node": edit("nodeName: node-0", "nodeName: node-1"),
    "address of the node": edit("hostIP: 172.30.0.2", "hostIP: 172.30.0.3"),
    "ReplicaSet": lambda text: text.replace("7d9f8c6b5", "5bcdf7789"),
    "readiness": edit("ready: false", "ready: true"),
    "volume": edit("name: kube-root-ca.crt", "name: other-ca.crt"),
    "condition": edit("reason: ContainersNotReady", "reason: PodCompleted"),
    "a number": edit("tolerationSeconds: 300", "tolerationSeconds: 30"),
    "a time of people": edit("creationTimestamp:", 'deletionTimestamp: "2026-11-25T08:00:00Z"\n  creationTimestamp:'),
}  # fmt: skip
TABLE = {
    "status": edit("CrashLoopBackOff", "OOMKilled       "),
    "readiness": edit("0/1  ", "1/1  "),
    "node": edit("node-0", "node-1"),
    "ReplicaSet": lambda text: text.replace("7d9f8c6b5", "5bcdf7789"),
    "another pod": lambda text: text + text.splitlines()[1] + "\n",
    "vanished pod": lambda text: text.splitlines()[0] + "\n",
    "no pod": lambda _: "",
    "label": edit("pod-template-hash=7d9f8c6b5", "app=web,pod-template-hash=7d9f8c6b5"),
}
EVENTS = {
    "new event": lambda text: text + text[text.rindex("- InvolvedObject") :].replace("BackOff", "Evicted"),
    "message": edit("no-such-program: no such", "no-such-program: broken"),
    "type": lambda text: text[: text.rindex("Warning")] + "Normal\n",
    "message of another number": edit("peer:1", "peer:2"),
    "event of another ReplicaSet": lambda text: text.replace("7d9f8c6b5", "5bcdf7789"),
}
EVENT_ROWS = {
    "reason": edit("BackOff", "Evicted"),
    "container": edit("container app", "container api"),
}
LINES = {
    "new line": lambda text: text + "2026-11-25T07:22:24Z out of memory\n",
    "number": edit("status 3", "status 4"),
    "duration": edit("limit=30s", "limit=5s "),
    "path": edit("/data/7", "/data/8"),
    "code": edit("503", "500"),
    "level": edit("level=error", "level=warn"),
    "address of another": edit(r"10\.0\.0\.1 ", "10.0.0.2 "),
    "time that is no stamp": lambda text: text.replace("fatal", "fatal: expired at 2026-11-25T07:22:24Z"),
}
SEEDS: list[tuple[str, str, Callable[[str], str]]] = [
    *(("pods_get", name, change) for name, change in YAML.items()),
    *(("yaml_list", name, change) for name, change in YAML.items()),
    *(("pods_list_in_namespace", name, change) for name, change in TABLE.items()),
    *(("events_list", name, change) for name, change in EVENTS.items()),
    *(("events_table", name, change) for name, change in EVENT_ROWS.items()),
    *(("pods_log", name, change) for name, change in LINES.items()),
]


@pytest.mark.parametrize(("tool", "change"), [seed[::2] for seed in SEEDS], ids=[" ".join(seed[:2]) for seed in SEEDS])
def test_each_change_is_seen_also_beside_what_changes_by_itself(tool: str, change: Callable[[str], str]) -> None:
    for now in (Moment(), LATER):
        reads = now.reads()
        reads[tool] = change(reads[tool])
        assert differences(reads, tool)
        assert tool in differences(reads)


def test_difference_names_its_location_and_both_values() -> None:
    now = Moment(suffix="zzzzz").reads()
    now["pods_get"] = YAML["image"](now["pods_get"])
    now["pods_list_in_namespace"] = TABLE["node"](now["pods_list_in_namespace"])
    differing = differences(now)
    assert differing["pods_get"] == ["spec.containers[app].image: 'localhost/peer:1' -> 'localhost/peer:2'"]
    assert differing["pods_list_in_namespace"] == [f"Pod evidence-command {REPLICA_SET}-*: NODE: 'node-0' -> 'node-1'"]


def test_a_pod_of_a_stateful_set_is_not_another_ordinal() -> None:
    former = CAPTURE["pods_list_in_namespace"]
    reread = results.Reread(form="list", former=former, now=former.replace("app-0", "app-1"), has_fingerprints=False)
    assert results.differences([reread])[0]


def masked(marker: str, *, secret: str = "") -> str:
    return f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: keys\ndata:\n  password: {marker}\n  plain: a{secret}\n"


@pytest.mark.parametrize(
    ("former", "now", "fingerprints", "alike"),
    [
        ("[MASKED:password]", "[MASKED:password]", False, False),
        ("[MASKED:password]", "[MASKED:password]", True, False),
        ("[MASKED:password:7f3a]", "[MASKED:password:7f3a]", False, False),
        ("[MASKED:password:7f3a]", "[MASKED:password:7f3a]", True, True),
        ("[MASKED:password:7f3a]", "[MASKED:password:7f3b]", True, False),
        ("[MASKED:password:7f3a]", "[MASKED:token:7f3a]", True, False),
        ("[MASKED:password:7f3a]", "plain", True, False),
        ("plain", "[MASKED:password]", True, False),
        ("[MASKED:PASSWORD]", "[MASKED:PASSWORD]", True, False),
    ],
)
def test_a_masked_value_counts_as_changed_without_equal_fingerprints(
    former: str, now: str, *, fingerprints: bool, alike: bool
) -> None:
    reread = results.Reread(form="object", former=masked(former), now=masked(now), has_fingerprints=fingerprints)
    assert (results.differences([reread]) == [[]]) is alike


def test_a_withheld_result_counts_as_changed() -> None:
    text = "[withheld: about 9 more characters: there was no time to look through all of them; ask for less]"
    assert results.differences([results.Reread(form="log", former=text, now=text, has_fingerprints=True)])[0]


@pytest.mark.parametrize("form", ["object", "list", "events"])
@pytest.mark.parametrize(
    "text",
    [
        "a: &x [1]\nb: *x\n",
        "kind: !!python/name:os.system Pod\n",
        "kind: Pod\nkind: Node\n",
        "[" * 100 + "]" * 100,
        "kind: Pod\n---\nkind: Pod\n",
        "{",
        "APIVERSION   KIND   NAME\nv1   Pod",
        "",
    ],
)
def test_text_without_a_form_is_alike_only_if_it_is_the_same(form: results.Form, text: str) -> None:
    same, other = (
        results.Reread(form=form, former=text, now=now, has_fingerprints=False) for now in (text, f"{text}x: 1\n")
    )
    assert results.differences([same]) == [[]]
    assert results.differences([other])[0]


@settings(max_examples=40)
@given(former=st.text(), now=st.text(), form=st.sampled_from(["object", "list", "events"]))
def test_any_other_text_is_a_change_or_the_same(former: str, now: str, form: results.Form) -> None:
    results.differences([results.Reread(form=form, former=former, now=now, has_fingerprints=True)])
    assert results.differences([results.Reread(form=form, former=now, now=now, has_fingerprints=True)]) in (
        [[]],
        [["it has values that are masked, so it cannot be compared"]],
    )


def test_differences_are_named_up_to_their_maximum() -> None:
    former, now = ("\n".join(f"line {number} {mark}" for number in range(1000)) for mark in "ab")
    (named,) = results.differences([results.Reread(form="log", former=former, now=now, has_fingerprints=False)])
    assert len(named) == results.DIFFERENCES_MAX
    (long,) = results.differences([results.Reread(form="log", former="", now="x" * 10_000, has_fingerprints=False)])
    assert len(long[0]) == results.DIFFERENCE_MAX


def reread(form: results.Form, former: str, now: str) -> list[str]:
    """The differences of one result."""
    return results.differences([results.Reread(form=form, former=former, now=now, has_fingerprints=False)])[0]


@pytest.mark.parametrize("tool", ["events_list", "events_table"])
def test_event_on_additional_pod_is_a_change_and_on_replacement_pod_is_no_change(tool: str) -> None:
    former = Moment(has_old_events=False).reads()[tool]
    replaced = former.replace("-x2k4q", "-zzzzz")
    assert reread(FORMS[tool], former, replaced) == []
    both = former + "\n".join(replaced.splitlines()[1:]) + "\n"
    assert any("a new event" in line for line in reread(FORMS[tool], former, both))
    assert reread(FORMS[tool], both, former) == []


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("notAfter: 2027-01-01T00:00:00Z", "notAfter: 2025-01-01T00:00:00Z"),
        ("expires 2026-12-01T00:00:00Z", "expires 2026-01-01T00:00:00Z"),
        ("took 00:00:03 to sync", "took 09:59:03 to sync"),
        ("Uptime: 00:10:05", "Uptime: 23:59:59"),
        ("lease lost, time=1111111111", "lease lost, time=2222222222"),
        ('level=info msg="until ts=1111111111 "', 'level=info msg="until ts=2222222222 "'),
    ],
)
def test_a_time_that_does_not_say_when_a_line_was_written_counts(former: str, now: str) -> None:
    assert reread("log", former, now) == [f"a new line: {now}"]


@pytest.mark.parametrize(
    "line",
    [
        "{} out of memory",
        "INFO {} out of memory",
        "[error] {} out of memory",
        "W: {} out of memory",
        'level=info caller=web.go:7 ts={} msg="out of memory"',
        '{{"level": "info", "ts": "{}", "msg": "out of memory"}}',
        '{{"@timestamp":"{}","msg":"out of memory"}}',
    ],
)
def test_the_time_at_which_a_line_was_written_does_not_count(line: str) -> None:
    assert reread("log", line.format("2026-11-25T07:22:24Z"), line.format("2026-11-26T08:23:25.5Z")) == []


@pytest.mark.parametrize(
    "line",
    [
        '{{"level":"error","cert":{{"time":"{}"}}}}',
        '{{"msg":"ends","notAfter":[{{"time":"{}"}}],"time":"2026-11-26T07:22:24Z"}}',
        '{{"msg":"a, \\"time\\": \\"{}\\"","level":"info"}}',
        '{{"at":{{}},"time":"{}"}}',
    ],
)
def test_a_time_within_a_line_of_json_counts(line: str) -> None:
    assert reread("log", line.format("2026-11-25T07:22:24Z"), line.format("2026-11-26T08:23:25Z"))


PULLED = 'Successfully pulled image "web:1" in {} ({} including waiting). Image size: {} bytes.'


@pytest.mark.parametrize(
    ("former", "now", "alike"),
    [
        (("512ms", "1.5s", 4), ("1m2.5s", "1m3s", 4), True),
        (("512ms", "1.5s", 4), ("512ms", "1.5s", 5), False),
        (("512ms", "1.5s", 4), ("512ms", "later", 4), False),
    ],
)
def test_the_duration_of_a_pull_does_not_count_and_the_size_of_the_image_does(
    former: tuple[object, ...], now: tuple[object, ...], *, alike: bool
) -> None:
    columns = ["APIVERSION", "KIND", "OBJECT", "MESSAGE", "NAME"]
    texts = [
        [
            table(columns, ["v1", "Event", "pod/web-0", message, "web-0.18eb95c372702c7c"]),
            "# The following events (YAML format) were found:\n"
            + yaml.safe_dump([{"InvolvedObject": {"Kind": "Pod", "Name": "web-0"}, "Message": message}]),
            yaml.safe_dump([{"kind": "Event", "apiVersion": "v1", "message": message}]),
            yaml.safe_dump([{"kind": "Event", "apiVersion": "events.k8s.io/v1", "note": message}]),
        ]
        for message in (PULLED.format(*former), PULLED.format(*now))
    ]
    forms: tuple[results.Form, ...] = ("list", "events", "list", "list")
    for form, before, after in zip(forms, *texts, strict=True):
        assert (reread(form, before, after) == []) is alike
    message = PULLED.format(*former), PULLED.format(*now)
    assert reread("log", *message) or message[0] == message[1]


def test_pod_named_only_by_its_replica_set_can_be_replaced_by_another_pod() -> None:
    def event(pod: str) -> str:
        body = [{"InvolvedObject": {"Kind": "ReplicaSet", "Name": REPLICA_SET}, "Message": f"Created pod: {pod}"}]
        return f"# The following events (YAML format) were found:\n{yaml.safe_dump(body)}"

    assert reread("events", event(f"{REPLICA_SET}-x2k4q"), event(f"{REPLICA_SET}-zzzzz")) == []
    assert reread("events", event(f"{REPLICA_SET}-x2k4q"), event("web-5bcdf7789-zzzzz"))
    assert reread("events", event("web-0"), event("web-1"))


@pytest.mark.parametrize("source", ["object", "table", "Pod"])
def test_the_address_of_a_node_is_not_taken_for_that_of_a_deployments_pod(source: str) -> None:
    """The pod is in the network of its node, which has another address now."""

    def reads(address: str) -> list[str]:
        addresses = [{"type": "InternalIP", "address": address}]
        nodes = {
            "object": f"- {json.dumps({'kind': 'Node', 'status': {'addresses': addresses}})}\n",
            "table": table(["APIVERSION", "KIND", "NAME", "INTERNAL-IP"], ["v1", "Node", "n", address]),
            "Pod": f"- {json.dumps({'kind': 'Pod', 'metadata': {'name': 'a'}, 'status': {'hostIP': address}})}\n",
        }
        columns = ["APIVERSION", "KIND", "NAME", "IP", "LABELS"]
        row = ["v1", "Pod", f"{REPLICA_SET}-x2k4q", address, "pod-template-hash=7d9f8c6b5"]
        return [nodes[source], table(columns, row), f"dial tcp {address}:10250: refused"]

    forms: tuple[results.Form, ...] = ("list", "list", "log")
    both = zip(forms, reads("10.0.0.11"), reads("10.0.0.12"), strict=True)
    rereads = [results.Reread(form=form, former=then, now=now, has_fingerprints=False) for form, then, now in both]
    assert all(results.differences(rereads))


def test_comparing_lists_of_objects_with_same_name_takes_linear_time() -> None:
    columns = ["NAMESPACE", "APIVERSION", "KIND", "NAME", "STATUS", "LABELS"]

    def rows(number: int, status: str) -> str:
        label = "controller-revision-hash=5d8f"
        names = [f"agent-{index:05}".translate(str.maketrans("013", "bcd")) for index in range(number)]
        return table(columns, *(["shop", "v1", "Pod", name, f"{status}{name}", label] for name in names))

    def work(number: int) -> int:
        former, now = rows(number, "Running"), rows(number, "Pending")
        reversed_rows = "\n".join([former.splitlines()[0], *reversed(former.splitlines()[1:])])
        return steps.count(lambda: (reread("list", former, now), reread("list", former, reversed_rows)))

    assert work(400) < steps.GROWTH_MAX * work(200) + steps.FIXED
