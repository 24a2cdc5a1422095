"""Kubernetes' mappings, as far as they are judged: which entries of which mapping hold a secret.

`flow` (JSON) and `block` (YAML) each read a text in their own way and tell what they find here. Neither builds a tree:
a text is often cut, wrapped in prose or only nearly well-formed, and a parser that gives up would let all of it pass.
"""

from __future__ import annotations

from typing import TypeAlias

from tarsy.masking import names

Span: TypeAlias = tuple[int, int]

_SECRET = (b"Secret", b"SecretList")
_DATA = frozenset({b"data", b"stringData"})
_ENV = frozenset({b"env", b"environment", b"Environment"})
_READ = frozenset({*_DATA, b"apiVersion", b"kind", b"items", b"name", b"value", b"client-key-data"})


class Mapping:
    """A mapping (or, in JSON, a list) that is being read.

    `key` is the entry under way, None for one that says nothing; `mark` is where its value begins.
    """

    __slots__ = ("column", "data", "is_env", "is_list", "key", "kind", "mark", "name", "orphans", "seen", "value")

    def __init__(self, *, mark: int, parent: Mapping | None, is_list: bool = False, column: int = 0) -> None:
        self.mark = mark
        self.column = column
        self.is_list = is_list
        self.is_env = parent is not None and parent.key in _ENV
        self.key: bytes | None = None
        self.kind = self.name = b""
        self.value: Span | None = None
        self.data: list[Span] = []
        self.orphans: list[Span] = []
        self.seen: set[bytes] = set()

    def knows(self, key: bytes) -> bool:
        """Does an entry of this name say anything about this mapping?"""
        return key in _READ or key in _ENV or (self.is_env and names.promises_in_env(key))


class Found:
    """The places that are to be masked: single values, and mappings of which every value is."""

    def __init__(self) -> None:
        self.values: list[Span] = []
        self.data: list[Span] = []

    def entry(self, mapping: Mapping, *, span: Span, scalar: bytes) -> None:
        """The entry that `mapping` was reading ends, with its value at `span`; `scalar` is that without its quotes."""
        key, mapping.key = mapping.key, None
        if key is None:
            return
        mapping.seen.add(key)
        if key in _DATA:
            mapping.data.append(span)
        elif key == b"kind":
            mapping.kind = scalar
        elif key == b"name":
            mapping.name = scalar
        elif key == b"value":
            mapping.value = span
        elif key == b"client-key-data" or (mapping.is_env and key not in _READ and key not in _ENV):
            self.values.append(span)

    def end(self, mapping: Mapping, *, parent: Mapping | None) -> None:
        """`mapping` ends: by now it is known whether it is a Secret, or the variable of a container."""
        if mapping.value and names.promises_in_env(mapping.name):
            self.values.append(mapping.value)
        if mapping.kind in _SECRET:
            self.data += mapping.data
            if mapping.kind == b"SecretList":
                self.data += mapping.orphans
        elif not mapping.kind and parent is not None and (parent.is_list or parent.key == b"items"):
            parent.orphans += mapping.orphans if mapping.is_list else mapping.data
