"""The tokens of webhooks: which are in force, for which namespaces, and what is told of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.auth import webhook_tokens
from tarsy.config.model import webhooks

OWN = "the token of TARSY_WEBHOOK_TOKEN"


def load(*entries: tuple[Path, list[str]]) -> webhook_tokens.Tokens:
    settings = webhooks.Ingest.model_validate(
        {"tokens": [{"token_file": path, "namespaces": namespaces} for path, namespaces in entries]}
    )
    return webhook_tokens.load(OWN, settings, default_namespace="tarsy")


def namespaces(tokens: webhook_tokens.Tokens, token: str) -> set[str] | None:
    owner = tokens.owner(webhook_tokens.digest(token.encode()))
    return None if owner is None else set(owner.namespaces)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "team-a"
    path.write_text("team-a's-token\n")
    return path


def test_token_is_valid_for_its_listed_namespaces_and_environment_token_for_default(token_file: Path) -> None:
    tokens = load((token_file, ["team-a", "shop"]))
    assert namespaces(tokens, OWN) == {"tarsy"}
    assert namespaces(tokens, "team-a's-token") == {"team-a", "shop"}
    for unknown in ("", "team-a's-token\n", "team-a's-toke", "TEAM-A'S-TOKEN"):
        assert namespaces(tokens, unknown) is None
    assert list(tokens.problems) == []


@given(st.text(max_size=40))
def test_no_other_text_is_a_token(text: str) -> None:
    owners = {webhook_tokens.digest(OWN.encode()): webhook_tokens.Webhook(name="x", namespaces=frozenset())}
    owner = webhook_tokens.Tokens(owners=owners).owner(webhook_tokens.digest(text.encode("utf-8", "replace")))
    assert (owner is not None) == (text == OWN)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"two words", "it has characters that no token has, such as spaces"),
        (b"\xff", "no file of UTF-8 text"),
        (b"x" * 65537, "more than 64 KiB: no secret is that long"),
        (OWN.replace(" ", "-").encode(), None),
    ],
)
def test_file_without_a_token_leaves_out_that_token_alone(
    tmp_path: Path, token_file: Path, content: bytes | None, reason: str | None
) -> None:
    path = tmp_path / "team-b"
    if content is not None:
        path.write_bytes(content)
    tokens = load((path, ["team-b"]), (token_file, ["team-a"]))
    assert namespaces(tokens, "team-a's-token") == {"team-a"}
    assert list(tokens.problems) == (
        [f"ingest.tokens.0.token_file: no token is in force: {path}: {reason}"] if reason else []
    )
    assert (namespaces(tokens, (content or b"").decode("utf-8", "replace")) == {"team-b"}) == (reason is None)


def test_token_of_two_entries_keeps_the_namespaces_of_the_first(tmp_path: Path, token_file: Path) -> None:
    copy, own = tmp_path / "copy", tmp_path / "own"
    copy.write_text("team-a's-token")
    tokens = load((token_file, ["team-a"]), (copy, ["team-b"]))
    assert namespaces(tokens, "team-a's-token") == {"team-a"}
    (problem,) = tokens.problems
    assert problem == (
        "ingest.tokens.1.token_file: not in force: it is also the token of ingest.tokens.0.token_file: make another one"
    )
    own.write_text("secret")
    settings = webhooks.Ingest.model_validate({"tokens": [{"token_file": own, "namespaces": ["team-a"]}]})
    tokens = webhook_tokens.load("secret", settings, default_namespace="tarsy")
    assert namespaces(tokens, "secret") == {"tarsy"}, "no file widens the token that was there before"
    assert "it is also the token of TARSY_WEBHOOK_TOKEN" in tokens.problems[0]
    assert "secret" not in tokens.problems[0].replace(str(own), "")
