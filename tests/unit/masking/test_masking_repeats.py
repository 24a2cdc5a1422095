"""A secret that was found once is masked wherever else the text says it, plain and in base64."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies
from tarsy.masking import masker

MASKER = masker.Masker(groups=["security"], clock=lambda: 0.0)
"""One that withholds no text, however busy the machine is: what is withheld shows no secret either."""
LETTERS = string.ascii_letters + string.digits
SECRET = "cnry4Kd9xQ"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


FOUND = {
    "behind a name": f"DB_PASSWORD={SECRET}\n",
    "in a URL": f"dialing postgres://web:{SECRET}@db/shop\n",
    "in a header": f"Authorization: Basic {encoded(f'web:{SECRET}')}\n",
    "in a Secret": json.dumps({"apiVersion": "v1", "data": {"a": encoded(SECRET)}, "kind": "Secret"}) + "\n",
    "in a Secret, with a newline": f"apiVersion: v1\ndata:\n  a: {encoded(SECRET + chr(10))}\nkind: Secret\n---\n",
    "in a Secret's stringData": f"kind: Secret\nstringData:\n  a: '{SECRET}'\n---\n",
    "in a file in a Secret": json.dumps(
        {"kind": "Secret", "data": {".env": encoded(f"HOST=db\nUSER=web\n{SECRET}\n")}, "apiVersion": "v1"}
    )
    + "\n",
    "in a variable": json.dumps({"env": [{"name": "DB_PASSWORD", "value": SECRET}]}) + "\n",
}
SAID = [
    f"connecting as web with {SECRET}",
    f'level=info args="[-x {SECRET}]"',
    json.dumps({"argv": ["run", SECRET]}),
    f"dump: {encoded(SECRET)}",
    f"dump: {encoded(f'web:{SECRET}')}",
    f"dump: {encoded(f'{SECRET}:1')}",
    f"x{SECRET}y",
]


@pytest.mark.parametrize("repeat", SAID)
@pytest.mark.parametrize("form", FOUND)
def test_secret_found_once_is_masked_everywhere_in_the_text(form: str, repeat: str) -> None:
    for text in (f"{FOUND[form]}\n{repeat}\n", f"{repeat}\n\n{FOUND[form]}"):
        masked = MASKER.text(text)
        assert SECRET not in masked
        for start in range(3):
            core = encoded("x" * start + SECRET)[4 * ((start + 2) // 3) : (start + len(SECRET)) // 3 * 4]
            assert core not in masked
        assert MASKER.text(masked) == masked


WORDS = [
    *("postgres", "postgres12", "web-7f9c9d6b5-xk2lp", "Production", "12345678", "2026-10-01T12:00:00Z"),
    "READ_WRITE",
]
WORDS += ["10.0.0.12:5432", "db.shop.svc.cluster.local", "https://db.shop/x", "/var/run/secrets/db"]
WORDS += ["registry.io/web:1.2.3"]
WORDS += ["2048-game", "1password-connect", "3scale-operator", "OrdersV2", "orders.V2", "Shop_Orders_v2", "WEB_7d9f8c"]
WORDS += ["KubeStatefulSetReplicasMismatch", "CreateContainerConfigError", "CrashLoopBackOff", "ContainerCreating"]
WORDS += ["web-0.web.shop.svc:8080", "node1.Example.com", "fd00:10:96::/112", "admin@shop", "CN=web,O=shop"]
WORDS += ["org.hibernate.dialect.PostgreSQL95Dialect", "en_US.UTF-8", "-Xmx1024m", "utf8mb4_unicode_ci", "v1.28.3+k3s1"]
WORDS += ["AES256-GCM", "TLSv1.2+TLSv1.3", "arn:aws:iam::123456789012:role/web", "NODE_ENV=production", "a.b=x&c=1"]


@pytest.mark.parametrize("value", WORDS)
def test_a_word_and_a_name_are_masked_where_they_are_secret_and_nowhere_else(value: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": value}})
    assert MASKER.text(f"{text}\n\nsaw {value} here\n").endswith(f"\n\nsaw {value} here\n")


DRAWN: dict[str, Callable[[random.Random], str]] = {
    "letters and digits": lambda chance: "".join(chance.choices(LETTERS, k=12)) + "7q",
    "hex": lambda chance: chance.randbytes(16).hex(),
    "base64": lambda chance: base64.b64encode(chance.randbytes(18)).decode().lstrip("/"),
    "with signs": lambda chance: "".join(chance.choices(LETTERS, k=5)) + "!7-p" + "".join(chance.choices(LETTERS, k=5)),
    "named": lambda chance: "DB_PASS=" + "".join(chance.choices(LETTERS, k=12)) + "7q",
}


@pytest.mark.parametrize("kind", DRAWN)
def test_random_text_is_no_word(kind: str) -> None:
    chance = random.Random(8)  # noqa: S311 - a fixed seed, no secret
    taken_for_words = [value for value in (DRAWN[kind](chance) for _ in range(500)) if not said_of(value)]
    assert len(taken_for_words) <= 2, taken_for_words


def said_of(value: str) -> bool:
    text = json.dumps({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": value}})
    return not MASKER.text(f"{text}\n\nsaw {value} here\n").endswith(f"{value} here\n")


def test_a_secret_shorter_than_eight_characters_is_not_looked_for() -> None:
    assert MASKER.text("password=ab12xyz\nab12xyz") == "password=[MASKED:password]\nab12xyz"


def test_kubernetes_secrets_alone_are_masked_without_groups() -> None:
    structure = masker.Masker()
    assert structure.text(f"password={SECRET} {SECRET}") == f"password={SECRET} {SECRET}"
    assert SECRET not in structure.text(FOUND["in a Secret"] + SECRET)


@hypothesis.given(
    values=strategies.lists(strategies.text(LETTERS + "!$%&+=-_", min_size=8, max_size=40), max_size=5),
    around=strategies.lists(strategies.sampled_from(["[MASKED:token]", " ", "\n", "x", '"', "=", "[", "é", "]"])),
    seed=strategies.integers(0, 1000),
)
def test_masking_twice_changes_nothing_in_repeated_text(values: list[str], around: list[str], seed: int) -> None:
    pieces = [f"PASSWORD={value}\n" for value in values] + values + [encoded(value) for value in values] + around
    random.Random(seed).shuffle(pieces)  # noqa: S311 - a fixed seed, no secret
    masked = MASKER.text("".join(pieces))
    assert MASKER.text(masked) == masked


def test_repeats_of_three_thousand_secrets_in_one_text_are_masked() -> None:
    chance = random.Random(7)  # noqa: S311 - a fixed seed, no secret
    values = ["".join(chance.choices(LETTERS, k=12)) + "7q" for _ in range(3_000)]
    masked = MASKER.text("".join(f"PASSWORD={value}\n" for value in values) + "\n" + " ".join(values))
    assert not [value for value in values if value in masked]


def test_masker_searches_one_text_for_repeats_of_a_bounded_amount_of_secrets() -> None:
    """Each value is looked for in four forms, and 500 KB in all bound the automaton."""
    chance = random.Random(8)  # noqa: S311 - a fixed seed, no secret
    values = ["".join(chance.choices(LETTERS, k=900)) + "7q" for _ in range(200)]
    masked = MASKER.text("".join(f"PASSWORD={value}\n" for value in values) + "\n" + "\n".join(values))
    left = [value in masked for value in values]
    assert left == sorted(left)
    assert 80 < left.count(False) < 140
