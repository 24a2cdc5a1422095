from __future__ import annotations

import logging

import pytest
from support import clocks, steps
from tarsy.masking import masker
from tarsy.telemetry import logs
from tarsy.tools.transports import stderr


@pytest.fixture
def clock() -> clocks.Clock:
    return clocks.Clock()


@pytest.fixture
def spoken(clock: clocks.Clock, caplog: pytest.LogCaptureFixture) -> stderr.StandardError:
    caplog.set_level(logging.INFO)
    return stderr.StandardError("k8s", mask=masker.Masker(groups=["security"]).text, clock=clock)


def test_a_line_is_a_line_of_our_log_with_the_servers_name(
    spoken: stderr.StandardError, caplog: pytest.LogCaptureFixture
) -> None:
    for part in (b"rea", b"dy\nlisten", b"ing\n", b"\n", b"bye"):
        spoken.write(part)
    assert caplog.messages == ["ready", "listening"]
    spoken.close()
    assert caplog.messages == ["ready", "listening", "bye"]
    assert {(vars(record)["action"], vars(record)["server"]) for record in caplog.records} == {("mcp_stderr", "k8s")}


@pytest.mark.parametrize(
    "written",
    [b"a\x1b[31mb\x00c\x9b\n", b"a\rb\n", "a\u2028b\u202ec\x85d\n".encode(), b"a\xff\xfeb\n"],
    ids=["escape codes", "carriage return", "line separators and direction", "no UTF-8"],
)
def test_no_control_character_reaches_the_log(
    spoken: stderr.StandardError, caplog: pytest.LogCaptureFixture, written: bytes
) -> None:
    spoken.write(written)
    [message] = caplog.messages
    assert message.isprintable()
    [line] = logs.TextFormatter().format(caplog.records[0]).splitlines()
    assert line.isprintable()


def test_a_secret_is_masked(spoken: stderr.StandardError, caplog: pytest.LogCaptureFixture) -> None:
    spoken.write(b"connecting with password=correct-horse-battery to db\n")
    assert "correct-horse" not in caplog.text


def test_long_stderr_line_is_cut_and_endless_line_takes_bounded_memory(
    spoken: stderr.StandardError, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        spoken.write(b"word " * 20_000)
    spoken.write(b"\nnext\n")
    first, second = caplog.messages
    assert first.endswith(" [cut]")
    assert len(first) <= stderr.LINE_MAX + len(" [cut]")
    assert second == "next"
    assert len(spoken._line) == 0


def test_flood_of_lines_is_logged_as_a_burst_and_a_count(
    spoken: stderr.StandardError, clock: clocks.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        spoken.write(b"all work\n" * 1000)
    assert caplog.messages == ["all work"] * stderr.BURST
    clock.now += 1.0
    spoken.write(b"no play\n")
    assert caplog.messages[stderr.BURST :] == [f"[{10_000 - stderr.BURST} lines are not shown]", "no play"]


def test_a_flood_takes_few_steps(spoken: stderr.StandardError) -> None:
    """The loop reads what the child writes: a child that floods must not take it from others."""

    def flood() -> None:
        for line in (b"\n", b"x\n", b"x" * 2**16 + b"\n"):
            for _ in range(10):
                spoken.write(line * (2**20 // len(line)))

    assert steps.count(flood) < 50_000
