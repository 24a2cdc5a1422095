"""Objects that the API server accepts are read by our models: one that is not could neither run nor be explained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from support import manifests
from tarsy.kube import calls, client, objects
from tarsy.resources import chains, investigations, schema
from tarsy_dev import patience

TIMES = [
    *("2026-11-21T20:26:18Z", "2026-11-21T20:26:18.5+02:00", "2026-11-21T20:26:18-23:59", "2026-11-21T20:26:18,5Z"),
    *("2026-11-21T20:26:18+24:00", "2026-11-21T20:26:18+23:60", "2026-11-21T20:26:18-24:60", "2026-11-21T20:26:18x5Z"),
    *("2026-11-21T20:26:18+99:99", "2026-11-21t20:26:18z", "2026-11-21T20:26:18ZTZ", "2026-11-21T24:00:00Z"),
    *("2026-11-21T23:59:60Z", "2026-02-30T00:00:00Z", "2026-11-21T20:26:18", "2026-11-21", "1700000000", "", "T"),
    *("0000-01-01T00:00:00Z", "0000-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"),
    *("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59+23:59"),
    *(
        "10000-01-01T00:00:00Z",
        "2026-11-21T20:26:18." + "1" * 40 + "Z",
        "2026-11-21T20:26:18.Z",
        "\u0662026-11-21T00:00:00Z",
    ),
]
CHARACTERS = st.one_of(
    st.characters(codec="utf-8"), st.sampled_from("\0\x1b\u2028\ud800\udfff\ufeff\U0001f4a5 .*?[]-a0")
)


def strategy(node: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a node of a structural schema, at its bounds and a little outside of them."""
    if "enum" in node:
        return st.sampled_from([*node["enum"]])
    match node["type"]:
        case "string" if node.get("format") == "date-time":
            return st.sampled_from(TIMES)
        case "string":
            longest = node["maxLength"]
            texts = [st.text(CHARACTERS, min_size=node.get("minLength", 0), max_size=min(longest, 20))]
            texts.append(st.sampled_from(["a", "\U0001f4a5", "\0"]).map(lambda character: character * longest))
            if "pattern" in node:
                texts = [st.from_regex(node["pattern"]).filter(lambda match: len(match) <= longest), st.just("a")]
            return st.one_of(texts)
        case "integer":
            low, high = node.get("minimum", -(2**63)), node.get("maximum", 2**63 - 1)
            return st.sampled_from([low, high, max(low, 1), float(max(low, 1)), 1e2])
        case "boolean":
            return st.booleans()
        case "array":
            shortest = node.get("minItems", 0)
            return st.lists(strategy(node["items"]), min_size=shortest, max_size=min(node["maxItems"], shortest + 2))
        case _ if "additionalProperties" in node:
            names = st.one_of(st.text(CHARACTERS, max_size=10), st.sampled_from(["x" * 253, "x" * 254, *_native()]))
            return st.dictionaries(names, strategy(node["additionalProperties"]), max_size=3)
        case _:
            wanted = {name: strategy(child) for name, child in node.get("properties", {}).items()}
            required = {name: wanted.pop(name) for name in node.get("required", ())}
            return st.fixed_dictionaries(required, optional={name: st.none() | field for name, field in wanted.items()})


def with_one_field(valid: Mapping[str, Any], specs: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The valid spec with one generated field, beside whole generated specs, of which few are accepted."""
    fields = specs.flatmap(lambda spec: st.sampled_from(sorted(spec)).map(lambda name: {name: spec[name]}))
    return st.one_of(specs, fields.map(lambda field: {**valid, **field}))


def _native() -> tuple[str, ...]:
    return ("google_search", "url_context")


def spec_of(crd: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    (version,) = crd["spec"]["versions"]
    return strategy(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


CHAIN = manifests.chain()
KINDS = {
    investigations.PLURAL: (
        manifests.investigation(),
        spec_of(schema.alert_investigation()).map(
            lambda spec: spec | {"alertData": "web-0 restarts", "alertDataRef": None}
        ),
    ),
    chains.PLURAL: (CHAIN, with_one_field(CHAIN["spec"], spec_of(schema.agent_chain()))),
}


@pytest.mark.parametrize("plural", KINDS)
async def test_object_that_the_api_server_accepts_is_read(admin: client.Cluster, plural: str) -> None:
    manifest, specs = KINDS[plural]
    loop = asyncio.get_running_loop()
    path = objects.path(plural, admin.served.own)
    outcomes = {"accepted": 0, "refused": 0}

    async def create(spec: Mapping[str, Any]) -> Any:
        async with calls.errors():
            return await calls.request(admin, "POST", path, query={"dryRun": "All"}, body={**manifest, "spec": spec})

    @hypothesis.settings(max_examples=80, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(specs)
    def read(spec: Mapping[str, Any]) -> None:
        try:
            made = asyncio.run_coroutine_threadsafe(create(spec), loop).result(patience.PATIENCE)
        except objects.RefusedError:
            outcomes["refused"] += 1
            return
        outcomes["accepted"] += 1
        if plural == chains.PLURAL:
            assert objects._chain(admin, made) is not None
        else:
            starts_at = objects._investigation(admin, made).spec.starts_at
            assert starts_at is None or starts_at.astimezone(UTC)

    await asyncio.to_thread(read)
    print(outcomes)
    assert outcomes["accepted"] > 5
