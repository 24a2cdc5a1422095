from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import re
from uuid import UUID

import pydantic
import pytest
from support import loglines
from tarsy.telemetry import logs

pytestmark = pytest.mark.usefixtures("logging_put_back")


def test_a_line_ends_with_its_fields_sorted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("tarsy.worker").info("%s ended", "web", extra={"action": "ended", "attempt": 2, "Zone": "x"})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    tarsy\.worker  web ended Zone=x action=ended attempt=2\n",
        captured.err,
    )


@pytest.mark.parametrize(("level", "lines"), [("DEBUG", 3), ("INFO", 2), ("ERROR", 0)])
def test_the_level_holds_for_us_and_noisy_libraries_only_warn(
    capsys: pytest.CaptureFixture[str], level: str, lines: int
) -> None:
    logs.configure(level=level)
    for name in ("tarsy.api", "kopf", "mcp", "google_genai", "httpx2", "anthropic._base_client", "openai._base_client"):
        logging.getLogger(name).info("detail")
        logging.getLogger(name).debug("detail")
    logging.getLogger("tarsy").warning("trouble")
    assert len(capsys.readouterr().err.splitlines()) == lines


FORGED = [
    *("a\nINFO tarsy  forged", "a\r\nb", "a action=forged", '" action=forged b="', '\\" action=forged'),
    *("a\taction=forged", "a\u00a0action=forged", "a\u2028action=forged", "\x1b[2Jaction=forged"),
    *("\u202eaction=forged", "\udc00", "action", "=", "\\", "", " ", "größer"),
]
"""Names in the log come from alerts: they must not forge a line or a field."""


@pytest.mark.parametrize("forged", FORGED)
def test_log_event_is_one_line_with_its_own_fields_for_any_field_content(
    capsys: pytest.CaptureFixture[str], forged: str
) -> None:
    logs.configure()
    logging.getLogger("tarsy").info("alert %s", forged, extra={"action": "taken", "alertname": forged})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert line.count("=") == 2
    match = re.search(r' action=taken alertname=("(?:[^"\\]|\\.)*"|[^"\s]+)$', line)
    assert match, line
    assert (json.loads(match[1]) if match[1].startswith('"') else match[1]) == forged


@pytest.mark.parametrize("forged", FORGED)
def test_log_event_as_json_is_one_object_with_its_own_fields(capsys: pytest.CaptureFixture[str], forged: str) -> None:
    logs.configure(form="json")
    identity = UUID(int=1)
    logging.getLogger("tarsy").info(
        "alert %s", forged, extra={"action": "taken", "count": 2, "uid": identity, "level": forged, "share": math.inf}
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isascii()
    fields = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields.pop("time"))
    assert fields == {
        "level": "INFO",
        "logger": "tarsy",
        "message": f"alert {forged}",
        "action": "taken",
        "count": 2,
        "uid": str(identity),
        "share": "inf",
    }


def test_a_traceback_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("tarsy").error("broke", exc_info=RuntimeError("a\n2026-11-22 10:00:00,000 INFO    tarsy  x\rb"))
    line, *below = capsys.readouterr().err.splitlines()
    assert line.endswith("broke")
    assert below == ["    RuntimeError: a", "    2026-11-22 10:00:00,000 INFO    tarsy  x\\rb"]


def test_traceback_is_a_field_of_an_event_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form="json")
    logging.getLogger("tarsy").error("broke", exc_info=RuntimeError("a\nb"))
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"] == "RuntimeError: a\nb"


@pytest.mark.parametrize("form", ["text", "json"])
def test_masked_text_appears_in_no_part_of_a_log_event(capsys: pytest.CaptureFixture[str], form: logs.Format) -> None:
    logs.configure(form=form, mask=lambda text: text.replace("s3cret=1", "[MASKED]"))
    logging.getLogger("tarsy").error("at %s", "s3cret=1", extra={"to": "s3cret=1"}, exc_info=RuntimeError("s3cret=1"))
    output = capsys.readouterr().err
    assert "s3cret" not in output
    assert output.count("[MASKED]") == 3


async def test_fields_are_on_every_line_of_their_block_and_of_the_tasks_and_threads_started_in_it(
    log_lines: loglines.LogLines,
) -> None:
    log = logging.getLogger("any.library")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def task() -> None:
        begun.set()
        await go_on.wait()
        log.warning("task")

    log.warning("before")
    with logs.fields(investigation="tarsy/web", attempt=1), logs.fields(stage="look", attempt=2):
        running = asyncio.create_task(task())
        await asyncio.to_thread(log.warning, "thread")
        log.warning("own", extra={"attempt": 3})
        with logs.no_fields():
            log.warning("shared")
    log.warning("after")
    go_on.set()
    await running
    fields_by_message = {
        line["message"]: (line.get("investigation"), line.get("stage"), line.get("attempt")) for line in log_lines()
    }
    ours = ("tarsy/web", "look", 2)
    none = (None, None, None)
    assert fields_by_message == {
        "before": none,
        "thread": ours,
        "own": ("tarsy/web", "look", 3),
        "shared": none,
        "after": none,
        "task": ours,
    }


def _unreadable() -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as error:
        pydantic.TypeAdapter(int).validate_json('{"password": "cnryS3cret')
    return error.value


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "name",
    ["mcp.client.streamable_http", "client", "google_genai._api_client", "openai._base_client", "httpx2", "asyncio"],
)
def test_library_log_quoting_an_answer_shows_only_location_and_kind_of_error(
    capsys: pytest.CaptureFixture[str], name: str, form: logs.Format
) -> None:
    logs.configure(level="DEBUG", form=form)
    library = logging.getLogger(name)
    library.setLevel(logging.DEBUG)  # as OPENAI_LOG and the like do
    group = ExceptionGroup("cnryS3cret", [_unreadable(), ConnectionError("cnryS3cret")])
    with logs.fields(stage="analysis"):
        library.error("it sent %s", "cnryS3cret", exc_info=group, extra={"body": "cnryS3cret"})
        library.debug("cnryS3cret", stack_info=True)
    output = capsys.readouterr().err
    assert "cnry" not in output
    assert output.count("[the library's message is not shown] test_logs.py:") == 2
    assert output.count("analysis") == 2
    assert "ValidationError" in output
    assert "ConnectionError" in output


async def test_error_of_unawaited_task_is_logged_without_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure()

    async def fail() -> None:
        raise _unreadable()

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    output = capsys.readouterr().err
    assert "cnry" not in output
    assert "ValidationError" in output
    assert " in fail" in output


def test_package_has_own_log_level_until_the_level_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    def logged() -> list[str]:
        for name in ("tools.servers", "live.hubs"):
            for level in (logging.DEBUG, logging.INFO, logging.ERROR):
                logging.getLogger(f"tarsy.{name}").log(level, "%s at %s", name, level)
        lines = capsys.readouterr().err.splitlines()
        return [f"{name} {level}" for line in lines for name, level in re.findall(r"(\w+)\.\w+ at (\d+)", line)]

    logs.configure(level="INFO")
    usual = ["tools 20", "tools 40", "live 20", "live 40"]
    assert logged() == usual
    logs.set_levels({"tools": "debug", "live": "warning"})
    assert logged() == ["tools 10", "tools 20", "tools 40", "live 40"]
    logs.set_levels({"tools": "error"})
    assert logged() == ["tools 40", "live 20", "live 40"]
    logs.set_levels({})
    assert logged() == usual


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_library_shows_its_warnings_and_none_of_its_details(
    capsys: pytest.CaptureFixture[str], form: logs.Format
) -> None:
    logs.configure(form=form)
    for name in ("kopf", "sqlalchemy.engine", "uvicorn.error", "some_library"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger(name).debug("statement of %s", "the alert", extra={"object": "the alert"})
        logging.getLogger(name).info("frame of %s", "the alert", exc_info=ValueError("the alert"))
        logging.getLogger(name).warning("the watch of %s ended", name)
    output = capsys.readouterr().err
    assert "the alert" not in output
    assert output.count("the library's message is not shown") == 8
    assert output.count("the watch of") == 4
