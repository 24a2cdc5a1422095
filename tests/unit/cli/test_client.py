"""Helpers that commands share: text for terminals, durations, JSONPath, output, kubectl failures, shell names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click import testing
from tarsy.cli import completion, feedback, main
from tarsy.cli.client import failures, formats, jsonpath, kubectl, remote, sessions, terminal, times, tree, views
from tarsy.store.reads import verdicts

DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "web", "labels": {"tarsy.dev/severity": "high"}},
    "items": [
        {"name": "a", "on": True, "count": 1, "conditions": [{"type": "Ready", "status": "True"}]},
        {"name": "b", "on": False, "count": 2.5, "conditions": [{"type": "Ready", "status": "False"}]},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.metadata.name}", "web"),
        ("{.metadata.labels.tarsy\\.dev/severity}", "high"),
        ("{.metadata.labels['tarsy.dev/severity']}", "high"),
        ("{.items[*].name}", "a b"),
        ("{.items[0].name}-{.items[-1].name}", "a-b"),
        ("{..name}", "web a b"),
        ('{range .items[*]}{.name}{"\\t"}{.on}{"\\n"}{end}', "a\ttrue\nb\tfalse\n"),
        ('{.items[?(@.name=="b")].count}', "2.5"),
        ('{.items[0].conditions[?(@.type=="Ready")].status}', "True"),
        ("{.items[?(@.count>1)].name}", "b"),
        ("{.nothing.here}", ""),
        ("{range .nothing[*]}x{end}!", "!"),
        ("{.metadata.labels}", '{"tarsy.dev/severity":"high"}'),
    ],
)
def test_a_jsonpath_is_what_it_is_for_kubectl(template: str, text: str) -> None:
    assert jsonpath.render(template, DOCUMENT) == text


@pytest.mark.parametrize(
    "template", ["{.a", "{range .items[*]}{.name}", "{end}", "{.a[}", "{'open}", "{.items[?(@.a)]}"]
)
def test_a_wrong_jsonpath_is_refused(template: str) -> None:
    with pytest.raises(jsonpath.TemplateError):
        jsonpath.render(template, DOCUMENT)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400)]
)
def test_durations_are_read_as_kubectl_writes_them(text: str, seconds: float) -> None:
    assert times.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "1x", "-5m", "5m1h", "999999999d"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|years"):
        times.seconds(text)


def test_no_control_character_is_left_in_any_format() -> None:
    hostile = "a\x1b[31m\x07b\x9b2J\u202ec\r\nd\x7f"
    outside = set("\x1b\x07\x9b\u202e\r\x7f")

    assert terminal.clean(hostile) == "a\\x1b[31m\\x07b\\x9b2J\\u202ec\nd\\x7f"
    for form in ("json", "jsonl", "yaml", "jsonpath={.text}"):
        assert not outside & set(formats.text({"text": hostile}, form)), form
    for form in ("json", "jsonl"):
        assert json.loads(formats.text({"text": hostile}, form)) == {"text": hostile}
    assert not outside & set("".join(terminal.table([[hostile, hostile]])))
    assert not outside & set(str(testing.CliRunner().invoke(main.main, ["list", "-o", hostile]).stderr))


def test_a_table_is_aligned_also_with_wide_letters() -> None:
    lines = terminal.table([["ab", "1"], ["日本", "2"], ["a\nb", "3"]], header=("NAME", "N"))

    assert lines == ["NAME   N", "ab     1", "日本   2", "a b    3"]
    assert terminal.cut("日本語", 5) == "日本…"


@pytest.mark.parametrize("form", ["json", "yaml", "jsonl"])
@pytest.mark.parametrize("pages", [[], [[{"a": 1}]], [[{"a": 1}, {"b": [2]}], [{"c": "x\ny"}]]])
def test_pages_of_a_list_are_printed_as_one_document(
    form: str, pages: list[list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    items = formats.Items(form)
    for page in pages:
        items.print(page)
    items.end()

    out = capsys.readouterr().out
    wanted = [entry for page in pages for entry in page]
    if form == "jsonl":
        assert [json.loads(line) for line in out.splitlines()] == wanted
    else:
        assert yaml.safe_load(out) == {"items": wanted}
        assert form != "json" or json.loads(out) == {"items": wanted}


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ('Error from server (NotFound): alertinvestigations.tarsy.dev "x" not found', failures.NotFound),
        ('Error from server (Forbidden): User "jane" cannot get resource', failures.Refused),
        ("error: You must be logged in to the server (Unauthorized)", failures.Refused),
        (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?",
            failures.Unreachable,
        ),
        ("Unable to connect to the server: net/http: TLS handshake timeout", failures.Unreachable),
        ('error: context "x" does not exist', failures.Misuse),
        ('Error from server (BadRequest): unknown field "spec.alertTyp"', failures.Misuse),
        ("Error from server (Conflict): the uid differs", failures.Failure),
        ("Error from server (NotFound): the server could not find the requested resource", failures.Failure),
    ],
)
def test_kubectl_failure_has_an_exit_code(stderr: str, kind: type[failures.Failure]) -> None:
    error = kubectl.failure(f"E1121 20:26:18.1 1 memcache.go:265 noise\n{stderr}\n")

    assert type(error) is kind
    assert "noise" not in error.message


def test_stream_events_are_read_and_an_incomplete_event_is_left_out() -> None:
    lines: Iterator[bytes] = iter(
        b': comment\n\nevent: stream.chunk\nid: 7\ndata: {"a": 1}\n\nevent: x\ndata: {"b"'.splitlines(keepends=True)
    )

    assert list(remote.read_events(lines)) == [remote.LiveEvent(type="stream.chunk", id="7", data={"a": 1})]


def test_unknown_name_is_reported_with_the_nearest_names() -> None:
    message = sessions.unknown("investigation web-carsh", "web-carsh", ["web-crash", "db-crash", "other"])

    assert message.startswith("There is no investigation web-carsh. The nearest: web-crash")
    assert sessions.unknown("investigation x", "x", []) == "There is no investigation x."


def test_kubectl_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    def completed(*arguments: str) -> list[str]:
        completion.print_for_kubectl(main.main, list(arguments))
        return [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert completed("sus") == ["suspend", ":4"]
    assert "--no-headers" in completed("list", "--no")
    assert completed("list", "-o", "js") == ["json", "jsonl", ":4"]
    assert completed("completion", "z") == ["zsh", ":4"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_completes_tarsy(shell: str) -> None:
    result = testing.CliRunner().invoke(main.main, ["completion", shell])

    assert result.exit_code == 0
    assert f"_TARSY_COMPLETE={shell}_complete" in result.stdout


def view(**fields: Any) -> dict[str, Any]:
    """The API's view of an investigation whose first stage has ended and whose second runs with two agents."""
    execution = {"run": 0, "kind": "agent", "iterations": 2, "tool_calls": 3, "total_tokens": 40, "error": ""}
    execution |= {"started_at": "2026-11-21T03:17:43Z", "ended_at": "2026-11-21T03:17:53Z", "outcome": "Completed"}
    stage = {"started_at": "2026-11-21T03:17:43Z", "seconds": 10.0, "message": "", "agents": ["A"]}
    return {
        "namespace": "shop", "name": "web", "alert_type": "Crash", "chain_name": "c", "phase": "Running",
        "progress": "1/2", "seconds": 20.0, "started_at": None, "total_tokens": 120, "attempts": 1, "message": "",
        "stage_progress": [
            {**stage, "name": "collect", "phase": "Completed"},
            {**stage, "name": "analysis", "phase": "Running", "agents": ["A", "B"]},
            {**stage, "name": "later", "phase": "Pending", "started_at": None, "seconds": None},
        ],
        "executions": [
            {**execution, "id": "1", "stage": "collect", "name": "A"},
            {**execution, "id": "2", "stage": "analysis", "name": "A"},
            {**execution, "id": "3", "stage": "analysis", "name": "B", "outcome": "Failed", "error": "no\x1b answer"},
        ],
        **fields,
    }  # fmt: skip


def test_the_tree_folds_stages_that_have_ended_and_branches_those_that_run() -> None:
    lines = tree.lines(view(attempts=2))

    assert lines[0] == "shop/web  Crash  chain c  Running  1/2  20s  120 tokens  takeovers: 1"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["STAGE", "STATUS"], ["collect", "Completed"], ["analysis", "Running"], ["├─", "agent"], ["└─", "agent"],
        ["later", "Pending"],
    ]  # fmt: skip
    assert "no\\x1b answer" in lines[5]
    assert ("takeover", "2") in tree.states(view(attempts=2))


def test_an_object_without_a_status_is_pending() -> None:
    document = {
        "metadata": {"uid": "u", "namespace": "n", "name": "x", "creationTimestamp": "2026-11-21T03:17:43Z"},
        "spec": {"alertType": "Crash"},
    }

    assert views.from_object(document)["phase"] == "Pending"


def test_the_command_line_knows_the_verdicts_of_the_api() -> None:
    assert feedback.VERDICTS == verdicts.VERDICTS
