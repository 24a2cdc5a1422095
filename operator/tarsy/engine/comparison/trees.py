"""YAML of a tool's result as a tree of texts: mappings, lists and scalars.

Kubernetes' YAML has no anchors, tags and lines of comments. A text with any is refused, because aliases can make a
small text large, and a comment says what no tree has; so are texts that are too deep, and mappings with a key twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import yaml

Tree: TypeAlias = "str | list[Tree] | dict[str, Tree]"

DEEPEST = 60
"""Levels of a tree. The deepest objects of Kubernetes, CustomResourceDefinitions aside, have about 20."""

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class UnreadableError(ValueError):
    """A text is no YAML of this kind."""


def parse(text: str) -> Tree:
    """Return the only document of `text`; raises UnreadableError."""
    if text.startswith("#") or "\n#" in text:
        raise UnreadableError("it has comments")
    try:
        return _build(yaml.parse(text, Loader=_Loader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableError(str(error)) from error


def _build(events: Iterable[yaml.Event]) -> Tree:
    root: list[Tree] = []
    open_nodes: list[tuple[list[Tree] | dict[str, Tree], list[str]]] = [(root, [])]
    for event in events:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise UnreadableError("it has anchors or tags")
        match event:
            case yaml.ScalarEvent():
                _add(open_nodes[-1], event.value)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if len(open_nodes) > DEEPEST:
                    raise UnreadableError(f"it has more than {DEEPEST} levels")
                node: list[Tree] | dict[str, Tree] = {} if isinstance(event, yaml.MappingStartEvent) else []
                _add(open_nodes[-1], node)
                open_nodes.append((node, []))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                open_nodes.pop()
    if len(root) != 1:
        raise UnreadableError("it is not one document")
    return root[0]


def _add(parent: tuple[list[Tree] | dict[str, Tree], list[str]], node: Tree) -> None:
    """Add a node to its parent: to a mapping as its next key, or as the value of that key."""
    members, pending_key = parent
    if isinstance(members, list):
        members.append(node)
    elif not pending_key:
        if not isinstance(node, str) or node in members:
            raise UnreadableError("a key is no text, or is there twice")
        pending_key.append(node)
    else:
        members[pending_key.pop()] = node


def text_at(tree: Tree, *path: str) -> str:
    """Return the text at a path of keys; "" if there is none."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return ""
        tree = tree[key]
    return tree if isinstance(tree, str) else ""
