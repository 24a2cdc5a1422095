"""Platform file in force in a process: all of a file at once, or nothing of it; and what is reported of it."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
from support import queue
from tarsy.config.load import reload
from tarsy.config.model import platforms
from tarsy.process.runtime import platform_file
from tarsy.telemetry import component_states

CANARY = "canary-7f3a9b2c41"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tarsy.yaml"
    write(path, "defaults: {llm_provider: google-default}\n")
    return path


@pytest.fixture
def now(file: Path) -> platform_file.PlatformFile:
    watch = reload.Watch(file, environment={"SECRET": CANARY})
    return platform_file.PlatformFile(
        watch, unusable=lambda platform: dict.fromkeys(platform.llm_providers, "it has no key")
    )


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def settle(now: platform_file.PlatformFile) -> None:
    await now.refresh()
    await now.refresh()


async def test_reload_exchanges_everything_at_once_and_then_notifies_followers(
    now: platform_file.PlatformFile, file: Path
) -> None:
    story: list[tuple[str, bool, int]] = []

    def add_to_story(what: str) -> None:
        story.append((what, "mine" in now.platform.agents, now.number))

    async def prepare(platform: platforms.Platform, unusable: platform_file.Unusable) -> platform_file.Prepared:
        assert "mine" in platform.agents
        assert unusable.keys() == platform.llm_providers.keys()
        add_to_story("prepared")
        return platform_file.Prepared(exchange=lambda: add_to_story("exchanged"))

    now.prepare(prepare)
    now.follow(lambda: add_to_story("followed"))
    write(file, "agents: {mine: {}}\n")
    await settle(now)
    assert story == [("prepared", False, 0), ("exchanged", True, 1), ("followed", True, 1)]
    await settle(now)
    assert len(story) == 3


async def test_chains_are_checked_by_what_is_in_force(now: platform_file.PlatformFile, file: Path) -> None:
    def problem(**unusable: str) -> str:
        (status,) = now.index(
            [queue.CHAIN], unusable_providers=unusable, namespace="tarsy", own="tarsy"
        ).statuses.values()
        return status.problem.message if status.problem else ""

    assert "google-default" in problem(**{"google-default": "no worker has a key"})
    assert problem() == "", "that this process has no key says nothing of workers"
    write(file, "llm_providers: {own: {type: openai, model: m}}\ndefaults: {llm_provider: own}\n")
    await settle(now)
    assert problem(**{"google-default": "no worker has a key"}) == ""
    assert "'own' cannot be used" in problem(own="no worker has a key")


async def test_setting_that_needs_a_restart_is_named_by_its_keys_and_holds_as_it_was(
    now: platform_file.PlatformFile, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = "queue: {slots: 3, max_running: 1}\napi: {burst: 5}\nnamespaces: [shop]\n"
    write(file, f"{started}agents: {{mine: {{}}}}\ningest: {{namespace: shop, cooldown: 1m}}\n")
    await settle(now)
    message = (
        "changes of the platform file to namespaces, queue.slots, queue.max_running, api.burst, ingest.namespace come "
        "into force at the next start"
    )
    assert now.notes() == [message]
    assert caplog.messages.count(message) == 1
    assert (now.platform.queue.slots, now.platform.api.burst, "mine" in now.platform.agents) == (50, 2000, True)
    assert (now.platform.namespaces, now.platform.ingest.namespace) == ([], None)
    assert now.platform.ingest.cooldown == timedelta(minutes=1)
    (fact,) = now.facts()
    assert isinstance(fact.detail, component_states.Configuration)
    assert [problem.message for problem in fact.detail.problems] == [message]
    write(file, "agents: {mine: {}}\n")
    await settle(now)
    assert now.notes() == []


async def test_invalid_platform_file_is_reported_once_in_each_channel_without_its_content(
    now: platform_file.PlatformFile, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = now.platform
    lines = "".join(f"unknown{number}: '{CANARY} {{{{.SECRET}}}}'\n" for number in range(30))
    write(file, lines)
    for _ in range(5):
        await now.refresh()
    assert (now.platform, now.number) == (before, 0)
    (note,) = now.notes()
    assert "/api/v1/system/warnings" in note
    assert str(file) not in note, "the answer is for everybody"
    (fact,) = now.facts()
    assert isinstance(fact.detail, component_states.Configuration)
    messages = [problem.message for problem in fact.detail.problems]
    assert len(messages) == platform_file.PROBLEMS_MAX + 1
    assert f"{file}:1: " in messages[0]
    assert messages[-1].endswith("and 10 more: tarsy config check lists all")
    (message,) = (candidate for candidate in caplog.messages if "not in force" in candidate)
    assert f"{file}:1: " in message
    assert CANARY not in f"{messages} {note} {caplog.text}"
    write(file, "agents: {mine: {}}\n")
    await settle(now)
    assert (now.notes(), now.problem, "mine" in now.platform.agents) == ([], "", True)
    assert "the platform file is valid again" in caplog.messages


async def test_platform_file_that_cannot_be_put_in_force_changes_nothing_and_is_reported(
    now: platform_file.PlatformFile, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients made for it meanwhile are let go, and a later file is put in force as if nothing had been."""
    story: list[str] = []

    async def made(platform: platforms.Platform, unusable: platform_file.Unusable) -> platform_file.Prepared:
        return platform_file.Prepared(exchange=lambda: story.append("exchanged"), drop=lambda: story.append("dropped"))

    async def fails(platform: platforms.Platform, unusable: platform_file.Unusable) -> platform_file.Prepared:
        if "bad" in platform.agents:
            raise LookupError(f"what nobody expected, with {CANARY}")
        return platform_file.Prepared(exchange=lambda: story.append("exchanged as well"))

    for prepare in (made, fails):
        now.prepare(prepare)
    before = now.platform
    write(file, "agents: {bad: {}}\n")
    await settle(now)
    await settle(now)
    assert story == ["dropped"]
    assert (now.platform, now.number) == (before, 0)
    (fact,) = now.facts()
    assert isinstance(fact.detail, component_states.Configuration)
    (problem,) = fact.detail.problems
    assert problem.message == (
        "the platform file is not in force as it stands now: it is valid, but failed to come into force: LookupError; "
        "see the log"
    )
    assert CANARY not in f"{now.notes()} {problem}"
    assert sum("what nobody expected" in (log_record.exc_text or "") for log_record in caplog.records) == 1

    write(file, "agents: {good: {}}\n")
    await settle(now)
    assert story == ["dropped", "exchanged", "exchanged as well"]
    assert (now.notes(), now.number, "good" in now.platform.agents) == ([], 1, True)


def test_every_configurable_log_level_belongs_to_an_existing_package() -> None:
    for room in get_args(platforms.Room):
        assert importlib.util.find_spec(f"tarsy.{room}"), room
