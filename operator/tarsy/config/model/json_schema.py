"""The platform file's JSON Schema, with the words that the models are explained with in their source."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tarsy.config.model import fields, platforms

JSON = dict[str, Any]


def schema() -> JSON:
    """A JSON Schema of the platform file, for editors and for the reference page."""
    made = platforms.Platform.model_json_schema()
    classes = {cls.__name__: cls for cls in _subclasses(fields.Part)}
    for name, definition in [("Platform", made), *made["$defs"].items()]:
        words = field_docs(classes[name], root=fields.Part)
        definition.pop("title")
        for key, described in definition.get("properties", {}).items():
            described.pop("title", None)
            if key in words:
                described["description"] = words[key]
    servers = made["properties"]["mcp_servers"]["patternProperties"]
    for pattern, server in servers.items():
        servers[pattern] = {"anyOf": [server, {"type": "null"}]}  # see `load`
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "TARSy's platform file"} | made


def for_validators(node: Any) -> Any:
    """Return a JSON Schema that says the same by conditions, where `node` has unions told apart by `type`, or null.

    Of a union that nothing fits, validators (Helm's, editors') list what is wrong with each of its members. Of a
    condition they list what is wrong with the one that is meant.
    """
    if isinstance(node, list):
        return [for_validators(child) for child in node]
    if not isinstance(node, dict):
        return node
    made = {key: for_validators(child) for key, child in node.items()}
    if "discriminator" in made and "oneOf" in made:
        kinds = made.pop("discriminator")["mapping"]
        del made["oneOf"]
        of_kind = [
            {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": {"$ref": target}}
            for kind, target in kinds.items()
        ]
        made |= {"type": "object", "required": ["type"], "properties": {"type": {"enum": [*kinds]}}, "allOf": of_kind}
    elif len(options := made.get("anyOf", ())) == 2 and options[1] == {"type": "null"}:
        del made["anyOf"]
        made |= {"if": {"not": {"type": "null"}}, "then": options[0]}
    return made


def _subclasses(cls: type[fields.Part]) -> Iterator[type[fields.Part]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)


def field_docs(cls: type[BaseModel], *, root: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the fields of a model and of its bases, up to `root`.

    The model's own docstrings win.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(root)]):
        tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    descriptions[name] = _in_yaml(" ".join(words.split()))
    return descriptions


def _in_yaml(words: str) -> str:
    """Python's words for nothing and no, as YAML has them."""
    return re.sub(r"\b(None|False)\b", lambda match: {"None": "null", "False": "false"}[match[0]], words)
