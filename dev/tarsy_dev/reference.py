"""The reference page of the platform file, made of its JSON Schema and of a file that has every key once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

This page is for platform admins. `make generate` makes it from the models and from `config/reference.yaml`, whose
examples a test loads.

- **Check a file**: `tarsy config check FILE` names what is wrong, by line. Without FILE it checks the file that
  `TARSY_CONFIG` names. `--servers` also connects to the MCP servers.
- **Edit with completion**: begin the file with `# yaml-language-server: $schema=tarsy.schema.json`.
  `tarsy config schema` prints that schema.
- **Change a running operator**: it reads the file again when it changes. `namespaces`, `ingest.namespace`, `queue`,
  `api`, `web` and `traces` need a restart. A file with an error changes nothing, and `/readyz` and `system/warnings`
  report it.
- **Overrides**: agents, providers and servers are added to the built-in ones. An entry with the name of a built-in one
  replaces all of it; `defaults` are replaced key by key. `mcp_servers: {kubernetes-server: null}` removes the built-in
  server, also from the built-in agent that has it.
- **Variables**: in a string, `{{.VAR}}` is replaced by the operator's environment variable. A variable that is not set
  is an error. Keys of mappings are not replaced, and `${VAR}` is plain text. Write `{{"{{.VAR}}"}}` for the text
  `{{.VAR}}`. Give keys of providers by `api_key_env` or `api_key_file` instead.
- **Durations** are a number and `ms`, `s`, `m`, `h` or `d`.

## Limits

- A change is in force after two to three seconds, in each process by itself. TARSy waits up to 10 s more for new MCP
  servers.
- Write a file elsewhere and rename it, as kubelet and editors do. A file that is written in place for longer than a
  second, and is valid half-way, is in force half-way until the rest is there. An empty file is valid.
- If a valid file fails while it is put in force, the former file stays in force until the file or one of its key files
  changes again. The log and the warnings say so.
- All processes on one database need the same file. A process whose file lacks a provider, server or agent of a chain
  fails the investigations that it claims, as in a rollout that adds one. Add it everywhere first, then use it.
- Work that has begun keeps its limits. Only `provider_calls` and `server_calls` change for all at once. A worker that
  takes over uses the settings in the log, with the servers and providers that its own file has under those names.
- A key file is read again when it changes; work that has begun keeps the former key. A key file that is gone makes its
  provider unusable for new work. `DATABASE_URL_FILE`, `TARSY_WEBHOOK_TOKEN_FILE` and variables are read at the start
  only. A secret's file has at most 64 KiB; pipes and devices are refused.
- A file has at most 1 MiB. Quote a value that YAML 1.1 takes for a date or a boolean (`yes`, `2026-01-01`) where a text
  is meant. For a file that is not YAML, only the first problem is reported.
- An editor with the JSON Schema marks `{{.VAR}}` where a number belongs. `config check` accepts it.
- Names of providers, servers, agents, models and variables are shown in logs and statuses: a key that was written there
  by mistake is visible.
"""


def pages() -> dict[Any, str]:
    """The files and their text."""
    schema = json_schema.schema()
    example = yaml.safe_load(EXAMPLES.read_text(encoding="utf-8"))
    text = _INTRODUCTION + "".join(_Page(schema).sections(example))
    return {PAGE: text, SCHEMA: json.dumps(json_schema.for_validators(schema), indent=2, ensure_ascii=False) + "\n"}


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A key of a mapping, as the page shows it."""

    key: str
    type: str
    default: str
    bounds: str
    example: str
    description: str

    def __str__(self) -> str:
        cells = (f"`{self.key}`", self.type, self.default, self.bounds, self.example, self.description)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A mapping that gets a section of its own, with its examples."""

    node: JSON
    path: tuple[str, ...]
    examples: Sequence[JSON]


class _Page:
    """The sections of the page. A mapping that has had its section gets no second one."""

    def __init__(self, schema: JSON) -> None:
        self._schema = schema
        self._seen: list[JSON] = []

    def sections(self, example: JSON) -> Iterator[str]:
        """The sections of the whole file."""
        rows, parts = self._rows(_Part(node=self._schema, path=(), examples=[example]))
        yield _section((), "", rows)
        for part in parts:
            yield from self._sections(part)

    def _sections(self, part: _Part) -> Iterator[str]:
        """The section of a mapping, then those of the mappings below it."""
        if part.node in self._seen:
            return
        self._seen.append(part.node)
        if "discriminator" in part.node:
            yield from self._sections_by_type(part)
            return
        rows, parts = self._rows(part)
        yield _section(part.path, part.node.get("description", ""), rows)
        for below in parts:
            yield from self._sections(below)

    def _sections_by_type(self, part: _Part) -> Iterator[str]:
        """A section for the keys that several types share, then one for each type's own, then the mappings below."""
        tables: dict[str, list[_Row]] = {}
        descriptions: dict[str, str] = {}
        parts: list[_Part] = []
        for name, reference in part.node["discriminator"]["mapping"].items():
            node = _resolved({"$ref": reference}, self._schema)
            examples = [example for example in part.examples if example["type"] == name]
            rows, below = self._rows(_Part(node=node, path=part.path, examples=examples))
            tables[name] = [row for row in rows if row.key != "type"]
            descriptions[name] = node.get("description", "")
            parts += below
        types = {
            row: [name for name, rows in tables.items() if any(_is_same(row, other) for other in rows)]
            for rows in tables.values()
            for row in rows
        }
        shared: list[_Row] = []
        for row, names in types.items():
            if len(names) > 1 and not any(_is_same(row, other) for other in shared):
                shared.append(row)
        named = [replace(row, description=_for_types(row.description, types[row], list(tables))) for row in shared]
        kind = _Row(
            key="type",
            type=" or ".join(f"`{name}`" for name in tables),
            default="required",
            bounds="",
            example=f"`{next(iter(tables))}`",
            description="Which of the following it is. Each type also has the keys of its own table.",
        )
        yield _section(part.path, part.node.get("description", ""), [kind, *named])
        for name, rows in tables.items():
            own = [row for row in rows if len(types[row]) == 1]
            yield _section((*part.path[:-1], f"{part.path[-1]} (type: {name})"), descriptions[name], own)
        for inner in parts:
            yield from self._sections(inner)

    def _rows(self, part: _Part) -> tuple[list[_Row], list[_Part]]:
        """The rows of a mapping, and the mappings below it. The file itself has no rows for its parts."""
        rows: list[_Row] = []
        parts: list[_Part] = []
        for key, value in part.node["properties"].items():
            node = _resolved(value, self._schema)
            examples = [example[key] for example in part.examples if key in example]
            if not examples:
                raise errors.Error(f"{EXAMPLES.name} has no {'.'.join((*part.path, key))}")
            below = self._below(node, (*part.path, key), [example for example in examples if example is not None])
            parts += below
            if part.path or not below:
                is_required = key in part.node.get("required", ())
                rows.append(self._row(key, value, node, is_required=is_required, example=examples[0]))
        return rows, parts

    def _below(self, node: JSON, path: tuple[str, ...], examples: Sequence[Any]) -> list[_Part]:
        """The mapping that a key holds, alone, in a list or by name; nothing if it holds none."""
        entry = _resolved(node.get("items", {}), self._schema)
        value = _resolved(_values(node), self._schema)
        if _is_mapping(node):
            return [_Part(node=node, path=path, examples=[example for example in examples if example])]
        if _is_mapping(entry):
            entries = [entry for example in examples for entry in example]
            return [_Part(node=entry, path=(*path[:-1], f"{path[-1]}[]"), examples=entries)]
        if _is_mapping(value):
            values = [value for example in examples for value in example.values() if value]
            return [_Part(node=value, path=(*path, "NAME"), examples=values)]
        return []

    def _row(self, key: str, value: JSON, node: JSON, *, is_required: bool, example: Any) -> _Row:
        return _Row(
            key=key,
            type=type_of(value, self._schema),
            default="required" if is_required else f"`{flow(value['default'])}`" if "default" in value else "",
            bounds=", ".join(words.format(node[name]) for name, words in _BOUNDS.items() if name in node),
            example=f"`{flow(example)}`",
            description=value.get("description") or node.get("description", ""),
        )


def _section(path: tuple[str, ...], description: str, rows: Sequence[_Row]) -> str:
    heading = f"`{'.'.join(path)}`" if path else "Keys without a section"
    text = f"\n## {heading}\n\n" + (f"{description}\n" if description else "")
    if not rows:
        return text
    head = "| key | type | default | bounds | example | |\n|---|---|---|---|---|---|\n"
    return text + ("\n" if description else "") + head + "".join(str(row) for row in rows)


def _is_same(row: _Row, other: _Row) -> bool:
    """Whether two rows differ in nothing but their examples."""
    return replace(row, example="") == replace(other, example="")


def _for_types(description: str, names: Sequence[str], all_names: Sequence[str]) -> str:
    """The description, with the types that have the key, unless all have it."""
    others = [name for name in all_names if name not in names]
    if not others:
        return description
    if len(others) < len(names):
        return f"{description} Not for {_listed(others)}."
    return f"For {_listed(names)}: {description}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def type_of(node: JSON, schema: JSON) -> str:
    """A type in words."""
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(type_of(option, schema) for option in node["anyOf"]))
    resolved = _resolved(node, schema)
    if "const" in resolved or "enum" in resolved:
        return " or ".join(f"`{constant}`" for constant in resolved.get("enum", [resolved.get("const")]))
    if "x-least" in resolved:
        return "duration"
    if resolved.get("format", "").startswith("ip"):
        return "address or network"
    match resolved.get("type"):
        case "array":
            return f"list of {type_of(resolved['items'], schema)}"
        case "object" if _values(resolved):
            return f"mapping of names to {type_of(_values(resolved), schema)}"
        case "null":
            return "`null`"
        case str(name):
            return {"object": "mapping", "integer": "whole number"}.get(name, name)
    return "mapping" if "discriminator" in resolved else "anything"


def _values(node: JSON) -> JSON:
    """Return the schema of the values in a mapping of names."""
    values = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return next((schema for schema in values if isinstance(schema, dict)), {})


def _is_mapping(node: JSON) -> bool:
    return "properties" in node or "discriminator" in node


def _resolved(node: JSON, schema: JSON) -> JSON:
    """Return the schema to which a reference, or a choice between something and nothing, leads."""
    if "$ref" in node:
        return _resolved(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    return _resolved(options[0], schema) if len(options) == 1 else node


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
