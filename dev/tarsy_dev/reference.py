"""The reference page of the platform file, made of its JSON Schema and of a file that has every key once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from tarsy.config.model import json_schema

from tarsy_dev import errors, tools

EXAMPLES = tools.ROOT / "config" / "reference.yaml"
PAGE = tools.ROOT / "docs" / "platform-file.md"
SCHEMA = tools.ROOT / "config" / "tarsy.schema.json"

JSON = dict[str, Any]

_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "x-least": "≥ {}",
    "x-most": "≤ {}",
    "minLength": "≥ {} characters",
    "maxLength": "≤ {} characters",
    "maxItems": "≤ {} entries",
}
_INTRODUCTION = """\
# The platform file: every key

Generated from the models by `make generate`; the examples are those of `config/reference.yaml`, which a test loads.
`tarsy config check FILE` (else the file that `TARSY_CONFIG` names) says what is wrong with it, by line; with
`--servers` it connects to the MCP servers, too.

An editor that knows the YAML language server completes and checks keys by a first line such as
`# yaml-language-server: $schema=tarsy.schema.json`; `tarsy config schema` prints that schema.

A running operator reads its file again when it changes; `queue` and `api` hold until the next start, and one that is
invalid changes nothing (`/readyz` and `system/warnings` say so).

In any string, but not in keys, `{{.VAR}}` is what the operator's environment says; a variable that is not set is an
error. `${VAR}` is text. `{{"{{.VAR}}"}}` is `{{.VAR}}` as text. Keys of providers are better named by `api_key_env` or
`api_key_file`. Durations are a number and `ms`, `s`, `m`, `h` or `d`. Agents, providers and servers are laid over those
that are built in, the same name replacing whole; `defaults` key by key. `mcp_servers: {kubernetes-server: null}` takes
the built-in server out, and from the built-in agent that has it.
"""


def pages() -> dict[Any, str]:
    """The files and what they should hold."""
    schema = json_schema.schema()
    example = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    text = _INTRODUCTION + "".join(_sections(schema, schema, place=(), instances=[example], seen=[]))
    return {PAGE: text, SCHEMA: json.dumps(json_schema.for_validators(schema), indent=2, ensure_ascii=False) + "\n"}


def _sections(
    node: JSON, schema: JSON, *, place: tuple[str, ...], instances: Sequence[JSON], seen: list[JSON]
) -> Iterator[str]:
    """A section for each kind of mapping, but for those that were `seen`: its keys, then what stands below them."""
    if node in seen:
        return
    seen.append(node)
    below: list[tuple[JSON, tuple[str, ...], list[Any]]] = []
    rows = []
    for key, value in node["properties"].items():
        found = _resolved(value, schema)
        there = [one[key] for one in instances if key in one]
        if not there:
            raise errors.Error(f"{EXAMPLES.name} has no {'.'.join((*place, key))}")
        names = _resolved(_values(found), schema)
        if _is_mapping(found):
            below.append((found, (*place, key), there))
        elif _is_mapping(entries := _resolved(found.get("items", {}), schema)):
            below.append((entries, (*place, f"{key}[]"), [one for entry in there for one in entry]))
        elif _is_mapping(names):
            below.append((names, (*place, key, "NAME"), [one for entry in there for one in entry.values()]))
        if place or not below or below[-1][1][:1] != (key,):
            rows.append(_row(key, value, found, schema, required=key in node.get("required", ()), example=there[0]))
    if place:
        told = node.get("description", "")
        yield f"\n## `{'.'.join(place)}`\n\n{told}\n\n" if told else f"\n## `{'.'.join(place)}`\n\n"
        yield "| key | type | default | bounds | example | |\n|---|---|---|---|---|---|\n" + "".join(rows)
    for found, inner, there in below:
        if "discriminator" not in found:
            inner = tuple(step.partition(" (")[0] for step in inner)
            yield from _sections(found, schema, place=inner, instances=[one for one in there if one], seen=seen)
            continue
        for kind, target in found["discriminator"]["mapping"].items():
            found = _resolved({"$ref": target}, schema)
            one_kind = [one for one in there if one["type"] == kind]
            one_place = (*inner[:-1], f"{inner[-1]} (type: {kind})")
            yield from _sections(found, schema, place=one_place, instances=one_kind, seen=seen)


def _row(key: str, value: JSON, found: JSON, schema: JSON, *, required: bool, example: Any) -> str:
    default = "required" if required else f"`{flow(value['default'])}`" if "default" in value else ""
    bounds = ", ".join(words.format(found[name]) for name, words in _BOUNDS.items() if name in found)
    words = value.get("description") or found.get("description", "")
    cells = [f"`{key}`", type_of(value, schema), default, bounds, f"`{flow(example)}`", words]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def type_of(node: JSON, schema: JSON) -> str:
    """A type in words."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(type_of(option, schema) for option in node["anyOf"]))
    found = _resolved(node, schema)
    if "const" in found or "enum" in found:
        return " or ".join(f"`{one}`" for one in found.get("enum", [found.get("const")]))
    if "x-least" in found:
        return "duration"
    if found.get("format", "").startswith("ip"):
        return "address or network"
    match found.get("type"):
        case "array":
            return f"list of {type_of(found['items'], schema)}"
        case "object" if _values(found):
            return f"mapping of names to {type_of(_values(found), schema)}"
        case "null":
            return "`null`"
        case str(name):
            return {"object": "mapping", "integer": "whole number"}.get(name, name)
    return "mapping" if "discriminator" in found else "anything"


def _values(node: JSON) -> JSON:
    """What a mapping of names holds."""
    values = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return next((one for one in values if isinstance(one, dict)), {})


def _is_mapping(node: JSON) -> bool:
    return "properties" in node or "discriminator" in node


def _resolved(node: JSON, schema: JSON) -> JSON:
    """What a reference, or a choice between something and nothing, leads to."""
    if "$ref" in node:
        return _resolved(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    return _resolved(options[0], schema) if len(options) == 1 else node


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
