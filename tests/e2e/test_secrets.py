"""What an operator was given is nowhere but where it belongs: a corpus of values, spelt in many ways, over every sink.

The values stand in the alert, in what tools, models and errors say, in instructions and in a question; 750 canaries in
objects and lines stand beside them, in alert and results. They are looked for, as this module spells them and by
nothing of the masker's, in model requests, in all tables, in logs, Events, statuses, in what the API answers and in
what who watches is told. Texts that only look like secrets stay.
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
    """What base64 makes of a value that stands behind so many bytes, where the bytes around it have no part in it."""
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
    data = {f"key-{at}": base64.b64encode(one.encode()).decode() for at, one in enumerate(canaries)}
    return {"apiVersion": "v1", "data": data, "kind": "Secret", "metadata": {"name": "db"}, "type": "Opaque"}


def written(canaries: list[str]) -> dict[str, Any]:
    """A Secret as people write it, with what kubectl remembers of it."""
    applied = {"kind": "Secret", "stringData": {"password": canaries[0]}}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    named = dict(zip(("config.yaml", "user", "tls.key"), canaries[1:], strict=False))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": annotations}, "stringData": named}


STRUCTURAL: dict[str, Callable[[list[str]], str]] = {
    "JSON": lambda found: json.dumps(secret(found)),
    "JSON in lines": lambda found: json.dumps(secret(found), indent=2),
    "YAML": lambda found: yaml.safe_dump(secret(found)),
    "YAML of people": lambda found: yaml.safe_dump(written(found)),
    "a list": lambda found: json.dumps({"kind": "SecretList", "items": [secret(found[:2]), secret(found[2:])]}),
    "in a log record": lambda found: json.dumps({"level": "info", "msg": json.dumps(secret(found))}),
    "YAML in a log record": lambda found: json.dumps({"level": "info", "msg": yaml.safe_dump(written(found))}),
    "a patch": lambda found: json.dumps({"kind": "Secret", "stringData": {"a": found[0], "b": found[1:]}}),
}
PATTERNS: dict[str, Callable[[list[str]], str]] = {
    "a shell's": lambda found: "\n".join(f"export DB_PASSWORD={one}" for one in found),
    "headers": lambda found: "\n".join(f"authorization: Bearer {one}" for one in found),
    "URLs": lambda found: "\n".join(f"connecting to postgres://web:{one}@db:5432/shop" for one in found),
    "flags": lambda found: "\n".join(f"exec: app --api-token={one} --v=2" for one in found),
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
    """An error, a look around, and an analysis in small pieces once somebody is there to see it: all of them talk."""

    async def reply(turn: model.Turn) -> model.Reply:
        if turn.iteration == 0:
            if not turn.earlier:
                return model.HttpError(status=503, message=CORPUS[:4000])
            calls = [model.Call(name="tools__reveal"), model.Call(name="tools__lookup", args={"name": CORPUS[:2000]})]
            return model.Answer(text=TEXT, thoughts=CORPUS, calls=model.keyed(turn, calls))
        await attended.wait()
        return model.Answer(text=TEXT, thoughts=CORPUS, chunk=37, pause=0.01 if turn.key.stage == "look" else 0.0)

    return reply


def told(text: str) -> list[str]:
    """What of the values is in a text."""
    lower = text.lower()
    return [form for form in SOUGHT if form in text or (len(form) > 24 and form.lower() in lower)]


def left(text: str, canaries: Iterable[str]) -> list[str]:
    """The canaries that are in a text, plain or as a Secret has them."""
    return [one for one in canaries if one in text or base64.b64encode(one.encode()).decode() in text]


async def tables(database: databases.Database) -> Iterator[tuple[str, str]]:
    """All tables, whole."""
    names = await queue.rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = [(name, await queue.rows(database, f'SELECT CAST(one AS text) FROM "{name}" one')) for (name,) in names]  # noqa: S608
    return ((name, "\n".join(row for (row,) in rows)) for name, rows in found)


REQUIRED = {
    "/api/v1/chain-match": "?alert_type=kubernetes",
    "/api/v1/investigations/{identity}/trace/search": "?q=password",
}
"""The parameters without which a path answers nothing."""


async def answers(process: Process, uid: str) -> list[tuple[str, str]]:
    """Whatever the API answers to a GET that is about this investigation, or about nobody's."""
    paths = json.loads((tools.ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    found = []
    for path in (path for path, methods in paths.items() if "get" in methods and "{namespace}" not in path):
        for n in ("1", "2", "3") if "{n}" in path else ("",):
            asked = path.replace("{identity}", uid).replace("{n}", n)
            if "watch" not in path and "stream" not in path and "ws" not in path:
                status, answer = await process.request("GET", asked + REQUIRED.get(path, ""))
                assert status in (200, 404), (asked, answer)
                found.append((asked, json.dumps(answer, ensure_ascii=False)))
    assert len(found) > 20
    return found


async def begun(operator: Operator, process: Process) -> str:
    """The uid of the investigation, once it can be read."""
    found = json.loads(await operator.kubectl("get", "inv", "web-crash", "-o", "json"))
    uid = str(found["metadata"]["uid"])
    async with patience.limit():
        while (await process.request("GET", f"/api/v1/investigations/{uid}"))[0] != 200:
            pass  # the look itself gives way to the others
    return uid


async def watched(operator: Operator, process: Process, attended: asyncio.Event) -> tuple[str, list[dict[str, Any]]]:
    """Have it run under the eyes of somebody; its uid, and what he was told."""
    async with watching.watching(process.url, headers=apis.bearer(process.editor)) as watcher:
        await operator.apply(manifests.investigation(alertData=f"{TEXT}\n---\n{OBJECTS}"))
        uid = await begun(operator, process)
        await watcher.answer(action="subscribe", channel=f"investigation:{uid}")
        attended.set()
        await watcher.until_type("investigation.completed")
        return uid, watcher.told


async def asked(process: Process, uid: str) -> None:
    """Have a question answered."""
    path = f"/api/v1/investigations/{uid}"
    status, _ = await process.request("POST", f"{path}/chat", body=json.dumps({"question": CORPUS[:8000]}).encode())
    assert status == 202
    async with patience.limit():
        while not (await process.request("GET", path))[1]["runs"][-1]["ending"]:
            pass  # the look itself gives way to the others


async def test_what_was_given_is_nowhere_and_what_only_looks_like_it_stays(
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
    await asked(process, uid)
    await operator.finished("web-crash")  # its status is written behind what who watches is told
    objects = json.loads(await operator.kubectl("get", "inv,chain", "-o", "json"))["items"]
    requests = "\n".join(json.dumps(request.body, ensure_ascii=False) for request in llm.requests)
    sinks = {
        "what models are asked": requests,
        "the log": operator.log,
        "Events": await operator.kubectl("get", "events", "-o", "json"),
        "statuses": json.dumps([one.get("status") for one in objects], ensure_ascii=False),
        "what is watched": json.dumps(seen, ensure_ascii=False),
        **{f"table {name}": rows for name, rows in await tables(database)},
        **{f"GET {path}": answer for path, answer in await answers(process, uid)},
    }
    assert len(told(CORPUS)) > 50, "they can be found"
    assert set(VALUES) <= set(told(TEXT))
    assert {name: found[:3] for name, text in sinks.items() if (found := told(text))} == {}
    objects_of = {*OF_OBJECTS, *OF_MORE}
    assert {name: found[:3] for name, text in sinks.items() if (found := left(text, objects_of))} == {}
    assert all(len(left(text, OF_LINES)) <= 0.05 * len(OF_LINES) for text in sinks.values())
    assert len([line for line in BENIGN.splitlines() if line not in requests]) <= 2, "one of a hundred at most"
    for name in ("what models are asked", "what is watched", "table entries", "table investigations", "statuses"):
        assert "[MASKED:secret]" in sinks[name], f"there were some on the way to {name}"

    assert len(llm.requests) >= 8
    chunks = [one for one in seen if one["type"] == "stream.chunk"]
    assert chunks, "it was streamed"
    assert "[MASKED:secret]" in json.dumps(chunks)
    for name in ("what models are asked", "table entries", f"GET /api/v1/investigations/{uid}/timeline"):
        for what, text in STAYS.items():
            assert json.dumps(text)[1:-1] in sinks[name].replace("\\\\", "\\"), f"{what} in {name}"
    (found,) = (one for one in objects if one["kind"] == "AlertInvestigation")
    assert found["status"]["phase"] == "Completed", found["status"]
    await process.stop()
