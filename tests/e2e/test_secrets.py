"""Secrets of an operator stay where they belong: a corpus of values, spelt in many ways, over every sink.

The values stand in the alert, in what tools, models and errors say, in instructions and in a question; 750 canaries in
objects and lines stand next to them, in alert and results. They are looked for, as this module spells them and without
any code of the masker, in model requests, in all tables, in logs, Events, statuses, in the answers of the API and in
the messages to a watcher. Texts that only look like secrets stay.
"""

from __future__ import annotations

import asyncio
import base64
import html
import itertools
import json
import random
import string
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support import apis, manifests, queue, watching
from tarsy_dev import mcp_server, model, patience, tools

if TYPE_CHECKING:
    from support.operators import Operator, Process
    from tarsy.store.base import databases

pytestmark = pytest.mark.once

_CHANCE = random.Random(17)  # noqa: S311 - a fixed seed, and nobody's secrets


def drawn(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(_CHANCE.choices(letters, k=length))


LINES = [drawn(64, string.ascii_letters + string.digits + "+/") for _ in range(6)]
PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *LINES, "-----END PRIVATE KEY-----"])
GIVEN = {
    "MODEL_KEY": f"sk-{drawn(40)}",
    "SHOP_API_TOKEN": drawn(24),
    "RUNBOOK_TOKEN": f"ghp_{drawn(36)}",
    "DB_PASSWORD": drawn(12) + "+/&'\"<é\\ " + drawn(8),
    "SIGNING_PRIVATE_KEY": PEM,
}
OF_URL = drawn(20)
VALUES = [*(value for value in GIVEN.values() if value != PEM), OF_URL, *LINES]


def core(value: str, before: int) -> str:
    """Return the base64 of a value behind so many bytes, without what the bytes around it have a part in."""
    encoded = base64.b64encode(b"x" * before + value.encode())
    return encoded[(0, 2, 3)[before] : (before + len(value.encode())) // 3 * 4].decode()


SPELT: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": json.dumps,
    "JSON in JSON": lambda value: json.dumps(json.dumps({"token": value})),
    "a flag": lambda value: f"--set key={value}",
    "a URL": lambda value: f"https://web:{urllib.parse.quote(value, safe='')}@db/x",
    "a form": lambda value: urllib.parse.urlencode({"q": value}),
    "HTML": lambda value: f"<b>{html.escape(value)}</b>",
    "hex": lambda value: value.encode().hex(),
    "capital hex": lambda value: value.encode().hex().upper(),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of a pair": lambda value: base64.b64encode(f"u:{value}".encode()).decode(),
    "base64 of URLs": lambda value: base64.urlsafe_b64encode(f"k={value}\n".encode()).decode(),
}
SOUGHT = {
    form
    for value in VALUES
    for form in (
        *(value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], html.escape(value)),
        *(urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value), value.encode().hex()),
        *(core(value, before) for before in range(3)),
        *(core(value, before).translate(str.maketrans("+/", "-_")) for before in range(3)),
    )
}
CORPUS = "\n".join(f"{name}: {spell(value)}" for name, spell in SPELT.items() for value in (*GIVEN.values(), OF_URL))
STAYS = {
    "a ConfigMap": "kind: ConfigMap\ndata:\n  level: debug\n  TOKEN_PATH: /var/run/token\n",
    "a digest": "nginx@sha256:9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c",
    "a UUID": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
    "a commit": "9b7c1f0d8a6e5b4c3d2e1f0a9b8c7d6e5f4a3b2c",
}
TEXT = f"{CORPUS}\nAnd this stays:\n" + "\n".join(STAYS.values())


def secret(canaries: list[str]) -> dict[str, Any]:
    """A Secret as the API server has it."""
    encoded = {f"key-{at}": base64.b64encode(canary.encode()).decode() for at, canary in enumerate(canaries)}
    return {"apiVersion": "v1", "data": encoded, "kind": "Secret", "metadata": {"name": "db"}, "type": "Opaque"}


def written(canaries: list[str]) -> dict[str, Any]:
    """A Secret as people write it, with what kubectl remembers of it."""
    applied = {"kind": "Secret", "stringData": {"password": canaries[0]}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    named = dict(zip(("config.yaml", "user", "tls.key"), canaries[1:], strict=False))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": annotations}, "stringData": named}


STRUCTURAL: dict[str, Callable[[list[str]], str]] = {
    "JSON": lambda canaries: json.dumps(secret(canaries)),
    "JSON in lines": lambda canaries: json.dumps(secret(canaries), indent=2),
    "YAML": lambda canaries: yaml.safe_dump(secret(canaries)),
    "YAML of people": lambda canaries: yaml.safe_dump(written(canaries)),
    "a list": lambda canaries: json.dumps(
        {"kind": "SecretList", "items": [secret(canaries[:2]), secret(canaries[2:])]}
    ),
    "in a log record": lambda canaries: json.dumps({"level": "info", "msg": json.dumps(secret(canaries))}),
    "YAML in a log record": lambda canaries: json.dumps({"level": "info", "msg": yaml.safe_dump(written(canaries))}),
    "a patch": lambda canaries: json.dumps({"kind": "Secret", "stringData": {"a": canaries[0], "b": canaries[1:]}}),
}
PATTERNS: dict[str, Callable[[list[str]], str]] = {
    "a shell's": lambda canaries: "\n".join(f"export DB_PASSWORD={canary}" for canary in canaries),
    "headers": lambda canaries: "\n".join(f"authorization: Bearer {canary}" for canary in canaries),
    "URLs": lambda canaries: "\n".join(f"connecting to postgres://web:{canary}@db:5432/shop" for canary in canaries),
    "flags": lambda canaries: "\n".join(f"exec: app --api-token={canary} --v=2" for canary in canaries),
}


def planted(ways: dict[str, Callable[[list[str]], str]], number: int) -> tuple[str, list[str]]:
    """So many canaries of each way, four by four, as one text."""
    groups = [[f"cnry{drawn(14)}" for _ in range(4)] for _ in range(len(ways) * number // 4)]
    texts = [way(group) for way, group in zip(itertools.cycle(ways.values()), groups, strict=False)]
    return "\n---\n".join(texts), list(itertools.chain.from_iterable(groups))


OBJECTS, OF_OBJECTS = planted(STRUCTURAL, 44)
MORE_OBJECTS, OF_MORE = planted(STRUCTURAL, 20)
LINES_OF, OF_LINES = planted(PATTERNS, 60)
PODS = ((drawn(9, "0123456789abcdf"), uuid.UUID(int=_CHANCE.getrandbits(128))) for _ in range(200))
BENIGN = "\n".join(f"pod/web-{name} uid {uid} is Running" for name, uid in PODS)


def reveal() -> str:
    """Tell all there is. Reads only."""
    return f"{TEXT}\n{BENIGN}\n---\n{MORE_OBJECTS}\n---\n{LINES_OF}\n"


def script(attended: asyncio.Event) -> model.Script:
    """Return a script: an error, a look around, and an analysis in small pieces once a watcher is there; all of them
    talk.
    """

    async def reply(model_call: model.Turn) -> model.Reply:
        if model_call.iteration == 0:
            if not model_call.earlier:
                return model.HttpError(status=503, message=CORPUS[:4000])
            calls = [model.Call(name="tools__reveal"), model.Call(name="tools__lookup", args={"name": CORPUS[:2000]})]
            return model.Answer(text=TEXT, thoughts=CORPUS, calls=model.keyed(model_call, calls))
        await attended.wait()
        return model.Answer(text=TEXT, thoughts=CORPUS, chunk=37, pause=0.01 if model_call.key.stage == "look" else 0.0)

    return reply


def leaked_forms(text: str) -> list[str]:
    """Return the spellings of the values that are in a text."""
    lower = text.lower()
    return [form for form in SOUGHT if form in text or (len(form) > 24 and form.lower() in lower)]


def left(text: str, canaries: Iterable[str]) -> list[str]:
    """The canaries that are in a text, plain or as a Secret has them."""
    return [canary for canary in canaries if canary in text or base64.b64encode(canary.encode()).decode() in text]


async def tables(database: databases.Database) -> Iterator[tuple[str, str]]:
    """All tables, whole."""
    names = await queue.rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    contents = [(name, await queue.rows(database, f'SELECT CAST(one AS text) FROM "{name}" one')) for (name,) in names]  # noqa: S608
    return ((name, "\n".join(row for (row,) in rows)) for name, rows in contents)


REQUIRED = {
    "/api/v1/chain-match": "?alert_type=kubernetes",
    "/api/v1/investigations/{identity}/trace/search": "?q=password",
}
"""The parameters without which a path answers nothing."""


async def answers(process: Process, uid: str) -> list[tuple[str, str]]:
    """Return all answers of the API to a GET about this investigation, or about none."""
    paths = json.loads((tools.ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    bodies = []
    for path in (path for path, methods in paths.items() if "get" in methods and "{namespace}" not in path):
        for n in ("1", "2", "3") if "{n}" in path else ("",):
            asked = path.replace("{identity}", uid).replace("{n}", n)
            if "watch" not in path and "stream" not in path and "ws" not in path:
                status, answer = await process.request("GET", asked + REQUIRED.get(path, ""))
                assert status in (200, 404), (asked, answer)
                bodies.append((asked, json.dumps(answer, ensure_ascii=False)))
    assert len(bodies) > 20
    return bodies


async def begun(operator: Operator, process: Process) -> str:
    """The uid of the investigation, once it can be read."""
    manifest = json.loads(await operator.kubectl("get", "inv", "web-crash", "-o", "json"))
    uid = str(manifest["metadata"]["uid"])
    async with patience.limit():
        while (await process.request("GET", f"/api/v1/investigations/{uid}"))[0] != 200:
            pass  # the look itself gives way to the others
    return uid


async def watched(operator: Operator, process: Process, attended: asyncio.Event) -> tuple[str, list[dict[str, Any]]]:
    """Have it run while a watcher is connected; return its uid, and the messages that the watcher got."""
    async with watching.watching(process.url, headers=apis.bearer(process.editor)) as watcher:
        await operator.apply(manifests.investigation(alertData=f"{TEXT}\n---\n{OBJECTS}"))
        uid = await begun(operator, process)
        await watcher.answer(action="subscribe", channel=f"investigation:{uid}")
        attended.set()
        await watcher.until_type("investigation.completed")
        return uid, watcher.messages


async def ask_question(process: Process, uid: str) -> None:
    """Have a question answered."""
    path = f"/api/v1/investigations/{uid}"
    status, _ = await process.request("POST", f"{path}/chat", body=json.dumps({"question": CORPUS[:8000]}).encode())
    assert status == 202
    async with patience.limit():
        while not (await process.request("GET", path))[1]["runs"][-1]["ending"]:
            pass  # the look itself gives way to the others


async def test_secrets_are_nowhere_and_texts_that_only_look_like_them_stay(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, database: databases.Database
) -> None:
    toolbox.mcp.add_tool(reveal, annotations=mcp_server.READ_ONLY, structured_output=False)
    toolbox.mcp.add_tool(lambda: "", name="told", description=CORPUS[:3000], annotations=mcp_server.READ_ONLY)
    llm.script = script(attended := asyncio.Event())
    operator.configure(
        mcp_servers={
            "tools": {
                "transport": {"type": "http", "url": f"{toolbox.url}?api_key={OF_URL}"},
                "instructions": f"Say {CORPUS[:3000]}",
            }
        },
        agents={"KubernetesAgent": {"mcp_servers": ["tools"], "custom_instructions": CORPUS[:3000]}},
        defaults={"runbook": CORPUS[:3000]},
        runbooks={"token_env": "RUNBOOK_TOKEN"},
    )
    own = {"name": "Own", "mcpServers": ["tools"], "customInstructions": CORPUS[:3000]}
    stages = [manifests.stage("look"), manifests.stage("think", agent="Own")]
    process = await operator.start(env=GIVEN)
    await operator.apply(
        manifests.chain(agents=[own], stages=stages, description=CORPUS[:900], executiveSummary={"enabled": True})
    )
    uid, seen = await watched(operator, process, attended)
    await ask_question(process, uid)
    await operator.finished("web-crash")  # its status is written behind what who watches is told
    objects = json.loads(await operator.kubectl("get", "inv,chain", "-o", "json"))["items"]
    requests = "\n".join(json.dumps(request.body, ensure_ascii=False) for request in llm.requests)
    sinks = {
        "what models are asked": requests,
        "the log": operator.log,
        "Events": await operator.kubectl("get", "events", "-o", "json"),
        "statuses": json.dumps([manifest.get("status") for manifest in objects], ensure_ascii=False),
        "what is watched": json.dumps(seen, ensure_ascii=False),
        **{f"table {name}": rows for name, rows in await tables(database)},
        **{f"GET {path}": answer for path, answer in await answers(process, uid)},
    }
    assert len(leaked_forms(CORPUS)) > 50, "they can be found"
    assert set(VALUES) <= set(leaked_forms(TEXT))
    assert {name: forms[:3] for name, text in sinks.items() if (forms := leaked_forms(text))} == {}
    objects_of = {*OF_OBJECTS, *OF_MORE}
    assert {name: canaries[:3] for name, text in sinks.items() if (canaries := left(text, objects_of))} == {}
    assert all(len(left(text, OF_LINES)) <= 0.05 * len(OF_LINES) for text in sinks.values())
    assert len([line for line in BENIGN.splitlines() if line not in requests]) <= 2, "one of a hundred at most"
    for name in ("what models are asked", "what is watched", "table entries", "table investigations", "statuses"):
        assert "[MASKED:secret]" in sinks[name], f"there were some on the way to {name}"

    assert len(llm.requests) >= 8
    chunks = [message for message in seen if message["type"] == "stream.chunk"]
    assert chunks, "it was streamed"
    assert "[MASKED:secret]" in json.dumps(chunks)
    for name in ("what models are asked", "table entries", f"GET /api/v1/investigations/{uid}/timeline"):
        for what, text in STAYS.items():
            assert json.dumps(text)[1:-1] in sinks[name].replace("\\\\", "\\"), f"{what} in {name}"
    (investigation,) = (manifest for manifest in objects if manifest["kind"] == "AlertInvestigation")
    assert investigation["status"]["phase"] == "Completed", investigation["status"]
    await process.stop()
