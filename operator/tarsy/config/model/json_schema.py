"""The platform file's JSON Schema, with the docstrings of the models' fields as descriptions."""

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

_IN_YAML = {"None": "null", "False": "false"}


def schema() -> JSON:
    """Return the JSON Schema of the platform file, for editors and for the reference page."""
    result = platforms.Platform.model_json_schema()
    classes = {cls.__name__: cls for cls in _subclasses(fields.Part)}
    for name, definition in [("Platform", result), *result["$defs"].items()]:
        docs = field_docs(classes[name], root=fields.Part)
        definition.pop("title")
        for key, field_schema in definition.get("properties", {}).items():
            field_schema.pop("title", None)
            if key in docs:
                field_schema["description"] = docs[key]
    servers = result["properties"]["mcp_servers"]["patternProperties"]
    for pattern, server in servers.items():
        servers[pattern] = {"anyOf": [server, {"type": "null"}]}  # see `load`
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "TARSy's platform file"} | result


def for_validators(node: Any) -> Any:
    """Return an equivalent JSON Schema with conditions in place of discriminated unions and of unions with null.

    If a value matches no member of a union, validators (Helm's, editors') list the errors of all members. For a
    condition they list the errors of the chosen member only.
    """
    if isinstance(node, list):
        return [for_validators(child) for child in node]
    if not isinstance(node, dict):
        return node
    result = {key: for_validators(child) for key, child in node.items()}
    if "discriminator" in result and "oneOf" in result:
        kinds = result.pop("discriminator")["mapping"]
        del result["oneOf"]
        conditions = [
            {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": {"$ref": target}}
            for kind, target in kinds.items()
        ]
        properties = {"type": {"enum": [*kinds]}}
        result |= {"type": "object", "required": ["type"], "properties": properties, "allOf": conditions}
    elif len(options := result.get("anyOf", ())) == 2 and options[1] == {"type": "null"}:
        del result["anyOf"]
        result |= {"if": {"not": {"type": "null"}}, "then": options[0]}
    return result


def _subclasses(cls: type[fields.Part]) -> Iterator[type[fields.Part]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def field_docs(cls: type[BaseModel], *, root: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the fields of a model and of its bases, up to `root`.

    The model's own docstrings win.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(root)]):
        tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        for statement, following in itertools.pairwise(body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    text = re.sub(r"\b(None|False)\b", lambda match: _IN_YAML[match[0]], text)
                    descriptions[name] = " ".join(text.split())
    return descriptions
