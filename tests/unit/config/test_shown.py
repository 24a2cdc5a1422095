"""Redacted view of a platform file: canaries in every place in which a person could have written a secret."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies
from tarsy.config.load import loader
from tarsy.config.redact import view
from tarsy.masking import masker
from tarsy_dev import tools

TOKEN = "ghp_" + "0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX"
"""Text of a shape that the masker knows: for texts in which no other could be told from words."""
MASKER = masker.Masker(groups=["security"])
CANARY = "c4nary-Qw7x"
"""Text of no shape at all: for places that are hidden whatever stands there."""
FILE: dict[str, Any] = {
    "defaults": {"llm_provider": "own", "fallback_providers": ["google"], "max_iterations": 7},
    "llm_providers": {
        "google": {
            "type": "google",
            "model": "gemini-2.5-flash",
            "api_key_env": "GOOGLE_KEY",
            "api_key_file": "/run/k",
        },
        "vertex": {"type": "vertexai", "model": "gemini-2.5-pro", "project": "p", "credentials_file": "/run/sa.json"},
        "own": {
            "type": "openai",
            "model": "m",
            "base_url": "https://llm.example:8443/v1",
            "price": {"input": 1, "output": 2.5},
        },
        "chain": {
            "type": "langchain",
            "model": "m",
            "model_provider": "ollama",
            "options": {"base_url": "http://o.example/v1", "temperature": 0.2, "deep": {"list": ["x", 3, True, None]}},
        },
    },
    "mcp_servers": {
        "local": {
            "transport": {
                "type": "stdio",
                "command": "npx",
                "args": ["--read-only", "--token", "abc", "--key=abc", "serve"],
                "env": {"LOG_LEVEL": "debug", "API_TOKEN": "abc", "EMPTY": ""},
            },
            "instructions": "Ask for little.",
            "data_masking": {"enabled": False},
        },
        "remote": {
            "transport": {
                "type": "http",
                "url": "https://mcp.example/api/mcp",
                "headers": {"X-Scope": "abc", "X-Api-Key": "abc"},
                "bearer_token_env": "MCP_TOKEN",
                "bearer_token_file": "/run/token",
                "ca_file": "/run/ca.pem",
                "certificate_file": "/run/tls.crt",
                "key_file": "/run/tls.key",
                "verify": True,
                "timeout": "30s",
            }
        },
    },
    "agents": {"A": {"mcp_servers": ["local"], "custom_instructions": "Be kind."}},
    "limits": {"iteration": "90s"},
    "queue": {"slots": 3},
    "ingest": {"alert_type_label": "kind", "default_alert_type": "other"},
    "runbooks": {"allowed_domains": ["raw.githubusercontent.com"], "token_env": "GIT_TOKEN", "token_file": "/run/t"},
}


def read(text: str, folder: Path) -> loader.Loaded:
    file = folder / "tarsy.yaml"
    file.write_text(text)
    return loader.as_written(file)


def read_or_refused(text: str, folder: Path) -> loader.Loaded | str:
    """The file, or what is wrong with it."""
    try:
        return read(text, folder)
    except loader.ConfigError as error:
        return str(error)


def texts(value: Any, location: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where texts stand."""
    if isinstance(value, str):
        yield location
    elif isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(below, (*location, key))


def planted(location: tuple[str | int, ...], text: str) -> dict[str, Any]:
    """The file with `text` at that place."""
    document: dict[str, Any] = copy.deepcopy(FILE)
    *path, last = location
    inner: Any = document
    for key in path:
        inner = inner[key]
    inner[last] = text
    return document


def test_redacted_view_has_the_file_as_written_without_secrets(tmp_path: Path) -> None:
    loaded = read("# a comment with a password\n" + yaml.safe_dump(FILE), tmp_path)
    assert loaded.written == FILE
    assert "abc" not in repr(loaded).split("platform=")[0]
    expected = copy.deepcopy(FILE)
    expected["llm_providers"]["chain"]["options"]["deep"]["list"][0] = view.MASKED
    transport = expected["mcp_servers"]["local"]["transport"]
    transport["args"] = ["--read-only", "--token", view.MASKED, f"--key={view.MASKED}", view.MASKED]
    transport["env"] = {"LOG_LEVEL": view.MASKED, "API_TOKEN": view.MASKED, "EMPTY": ""}
    expected["mcp_servers"]["remote"]["transport"]["headers"] = {"X-Scope": view.MASKED, "X-Api-Key": view.MASKED}
    assert view.redact(loaded.written).written == expected


def test_the_shipped_file_hides_nothing() -> None:
    written = loader.as_written(tools.ROOT / "config/tarsy.yaml").written
    assert view.redact(written).written == written


@pytest.mark.parametrize(
    ("arguments", "as_shown"),
    [
        (["--toolsets", "core,config"], ["--toolsets", "core,config"]),
        (["--toolsets=core,helm"], ["--toolsets=core,helm"]),
        (["--log-level", 2, "--port=8080"], ["--log-level", 2, "--port=8080"]),
        (["--namespaces", "shop,web-2"], ["--namespaces", "shop,web-2"]),
        (["--request-timeout=30s", "--output", "yaml"], ["--request-timeout=30s", "--output", "yaml"]),
        (["--toolsets", CANARY, f"--tools={CANARY}"], ["--toolsets", view.MASKED, f"--tools={view.MASKED}"]),
        (["--toolsets", TOKEN, f"--output={TOKEN}"], ["--toolsets", view.MASKED, f"--output={view.MASKED}"]),
        (["--password", "core", "--token=core"], ["--password", view.MASKED, f"--token={view.MASKED}"]),
        (
            ["--pin", 4711, "--login=bob", "-p", "core"],
            ["--pin", *[view.MASKED], f"--login={view.MASKED}"] + [view.MASKED] * 2,
        ),
        (["--toolsets", "core", "serve"], ["--toolsets", "core", view.MASKED]),
        (["--read-only", "core"], ["--read-only", view.MASKED]),
        (["toolsets", "core"], [view.MASKED] * 2),
    ],
)
def test_flag_value_is_shown_only_if_flag_and_value_are_known_as_not_secret(
    arguments: list[Any], as_shown: list[Any]
) -> None:
    written = planted(("mcp_servers", "local", "transport", "command"), "npx")
    written["mcp_servers"]["local"]["transport"]["args"] = arguments
    redacted = view.redact(written)
    assert redacted.written["mcp_servers"]["local"]["transport"]["args"] == as_shown
    assert "core" in redacted.redact_text("the toolset core is unknown")


@pytest.mark.parametrize("location", list(texts(FILE)), ids=lambda location: ".".join(map(str, location)))
def test_known_secret_is_in_no_view_and_no_message(location: tuple[str | int, ...], tmp_path: Path) -> None:
    for text in (TOKEN, f"use {TOKEN}", f"https://u:{TOKEN}@llm.example/v1", f"https://llm.example/{TOKEN}?k={TOKEN}"):
        loaded = read_or_refused(yaml.safe_dump(planted(location, text)), tmp_path)
        if isinstance(loaded, str):
            assert TOKEN not in loaded
            continue
        redacted = view.redact(loaded.written)
        assert TOKEN not in json.dumps(redacted.written)
        assert TOKEN not in MASKER.text(redacted.redact_text(f"it says {text}, and {TOKEN}"))
        for provider in loaded.platform.llm_providers.values():
            assert TOKEN not in json.dumps(view.provider(provider))


def test_a_name_that_is_a_secret_is_hidden_too() -> None:
    written = copy.deepcopy(FILE)
    written["mcp_servers"]["local"]["transport"]["env"] |= {f"TOKEN={CANARY}": "", TOKEN: "x"}
    written["llm_providers"][TOKEN] = written["llm_providers"]["own"]
    answer = json.dumps(view.redact(written).written)
    assert (CANARY in answer, TOKEN in answer) == (False, False)


HIDDEN: tuple[tuple[str | int, ...], ...] = (
    *(location for location in texts(FILE) if "env" in location or "args" in location or "options" in location),
    ("mcp_servers", "local", "transport", "env", "NEW"),
    ("llm_providers", "google", "api_key_file"),
    ("llm_providers", "vertex", "credentials_file"),
    ("runbooks", "token_file"),
)


@pytest.mark.parametrize("location", HIDDEN, ids=lambda location: ".".join(map(str, location)))
def test_any_text_is_hidden_where_secrets_are_expected(location: tuple[str | int, ...]) -> None:
    for text in (CANARY, f"--flag={CANARY}", f"-p{CANARY}", f"x {CANARY}", f"{CANARY}\n", f"--{CANARY}"):
        assert CANARY not in json.dumps(view.redact(planted(location, text)).written)


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("https://mcp.example/api/mcp", "https://mcp.example/api/mcp"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        (f"https://user:{CANARY}@mcp.example:1/mcp", "https://[MASKED]@mcp.example:1/mcp"),
        (f"https://{CANARY}@mcp.example/mcp", "https://[MASKED]@mcp.example/mcp"),
        (f"https://mcp.example/mcp?key={CANARY}&x=1", "https://mcp.example/mcp?[MASKED]"),
        (f"https://mcp.example/mcp#{CANARY}", "https://mcp.example/mcp#[MASKED]"),
        ("https://mjrtbgezdgmrtg4zt.mcp.example:8443/mcp", "https://[MASKED].mcp.example:8443/mcp"),
        ("https://mcp-4d1c4c6e9a510b8f.example/", "https://[MASKED].example/"),
        (
            "https://mcp-server-us-east-1.example-company.com:443/",
            "https://mcp-server-us-east-1.example-company.com:443/",
        ),
        ("http://[2001:db8::4d1c:4c6e:9a51:b8f]:8080/mcp", "http://[2001:db8::4d1c:4c6e:9a51:b8f]:8080/mcp"),
        ("https://mcp.example/s/MjE4ZDk0YTctNGQ5/mcp", "https://mcp.example/s/[MASKED]/mcp"),
        ("https://mcp.example/218d94a7-4d1c-4c6e-9a51-0b8f7d/mcp", "https://mcp.example/[MASKED]/mcp"),
    ],
)
def test_url_is_shown_with_its_host_and_the_plain_words_of_its_path(url: str, as_shown: str) -> None:
    spoilt = planted(("mcp_servers", "remote", "transport", "url"), url)
    redacted = view.redact(spoilt)
    assert redacted.written["mcp_servers"]["remote"]["transport"]["url"] == as_shown
    assert CANARY not in url or CANARY not in redacted.redact_text(f"cannot reach {url}: {CANARY} is wrong")
    assert redacted.redact_text("cannot reach https://mcp.example: Connection refused").startswith(
        "cannot reach https://mcp"
    )


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [("GOOGLE_API_KEY", True), ("MODELKEY", True), ("AKIAIOSFODNN7EXAMPLE", False), ("Q9X8Z7W6V5U4T3S2R1", False)],
)
def test_variable_name_is_shown_unless_it_looks_like_a_key(name: str, *, is_shown: bool) -> None:
    redacted = view.redact(planted(("llm_providers", "google", "api_key_env"), name)).written
    assert (redacted["llm_providers"]["google"]["api_key_env"] == name) == is_shown


def test_server_messages_are_shown_without_the_secrets_given_to_the_server(tmp_path: Path) -> None:
    arguments = ["--token", CANARY, f"--key={CANARY}2", "serve", "core,config"]
    written = planted(("mcp_servers", "local", "transport", "command"), "npx")
    written["mcp_servers"]["local"]["transport"] |= {"args": arguments, "env": {"PIN": "ab12", "MODE": "debug"}}
    redacted = view.redact(read(yaml.safe_dump(written), tmp_path).written)
    server_message = f"unknown: --key={CANARY}2; {CANARY}!; ab12 is no PIN. Tools that serve core,config in debug"
    assert (
        redacted.redact_text(server_message)
        == "unknown: [MASKED]; [MASKED]!; [MASKED] is no PIN. Tools that serve core,config in debug"
    )


def test_digest_identifies_the_platform_file_without_depending_on_its_secrets() -> None:
    def digest(location: tuple[str | int, ...], text: str) -> str:
        return view.redact(planted(location, text)).digest

    slots, secret = ("ingest", "default_alert_type"), ("mcp_servers", "local", "transport", "env", "API_TOKEN")
    assert digest(slots, "a") != digest(slots, "b")
    assert digest(secret, "a") == digest(secret, "b")


WITHOUT_END = "{a: &a [x,x,x,x], " + "".join(
    f"{name}: &{name} [*{of},*{of},*{of},*{of},*{of},*{of},*{of}], " for of, name in itertools.pairwise("abcdefgh")
)


@pytest.mark.parametrize(
    "options",
    [
        "&a {x: *a}",
        WITHOUT_END + "}",
        "{d: 2026-11-21, n: .nan, b: !!binary Y2FuYXJ5LTQ3MTE=, s: !!set {one, two}, 3: x, 1.5: true}",
    ],
    ids=["itself", "aliases without end", "what is no JSON"],
)
def test_any_yaml_value_is_shown_as_bounded_json(options: str) -> None:
    text = f"llm_providers: {{l: {{type: langchain, model: m, model_provider: ollama, options: {options}}}}}"
    answer = json.dumps(view.redact(yaml.safe_load(text)).written, allow_nan=False)
    assert len(answer) < 2_000_000
    assert "Y2FuYXJ5" not in answer
    assert "canary" not in answer


leaves = strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text()
anything = strategies.recursive(
    leaves,
    lambda below: strategies.lists(below, max_size=4) | strategies.dictionaries(strategies.text(), below, max_size=4),
    max_leaves=12,
)


@hypothesis.given(
    written=strategies.dictionaries(strategies.sampled_from([*FILE, "x"]), anything, max_size=3),
    secret=strategies.text("abcdefgh0123456789ABCDEF/+=-_.@:?#&% é", min_size=12, max_size=40),
)
def test_any_structure_is_shown_as_json_without_secret_values(written: dict[str, Any], secret: str) -> None:
    structure = {
        **written,
        "mcp_servers": {"s": {"transport": {"env": {"A": secret}, "args": [secret, f"--k={secret}"]}}},
    }
    redacted = view.redact(structure)
    answer = json.dumps(redacted.written["mcp_servers"], allow_nan=False)
    json.dumps(redacted.written, allow_nan=False)
    assert secret not in answer
    assert view.redact(redacted.written).written["mcp_servers"] == redacted.written["mcp_servers"]
