"""Mappings of Kubernetes' objects, and the rules by which their entries hold secrets.

`json_reader` and `yaml_reader` each read a text in their own way and report here. Neither builds a tree: a text is
often cut, wrapped in prose or only nearly well-formed, and a parser that gives up would let all of it pass.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from tarsy.masking import secret_names

Span: TypeAlias = tuple[int, int]

_DATA = frozenset({b"data", b"stringData"})
TYPE = (
    rb"Opaque|kubernetes\.io/(?:service-account-token|dockercfg|dockerconfigjson|basic-auth|ssh-auth|tls)"
    rb"|bootstrap\.kubernetes\.io/token|helm\.sh/release\.v1"
)
"""Types of Secrets: <https://kubernetes.io/docs/concepts/configuration/secret/#secret-types>."""
TYPE_WORDS = b"opaque|kubernetes.io/|helm.sh/release.v1"
"""Each of these types contains one of these words, in lower case."""
_TYPE = re.compile(TYPE)
_ENV = frozenset({b"env", b"environment", b"Environment"})
_NAMES = frozenset({b"name", b"Name", b"key", b"Key", b"path"})
"""The keys whose values name a value in the same mapping: a variable, a parameter, a tag, the path of a patch."""
_VALUES = frozenset({b"value", b"Value"})
_PATCH = b"/stringData/"
RELEVANT = (
    *sorted(_NAMES),
    b"apiVersion",
    b"kind",
    b"env",
    b"environment",
    b"Environment",
    b"client-key-data",
    b"stringData",
)
"""Names; a text without any of them has nothing to find."""
READ = frozenset({*_DATA, *_ENV, b"apiVersion", b"kind", b"items", b"type", b"client-key-data", *_NAMES, *_VALUES})
CUT = b"?"
"""The key of the beginning of a text, if that is no key."""
_VARIABLE = re.compile(rb"[A-Za-z_]\w*+")
_SCALAR = re.compile(rb"(?:[\s>|+]|\\++[nrt](?=[\s\\\"']))*+(?:!!str\s++)?\\*+[\"']?([-./\w]*+)")


def scalar(text: bytes) -> bytes:
    """Return the scalar value of an entry's text, without quotes, escapes and comments."""
    match = _SCALAR.match(text)
    return b"" if match is None else match[1]


_STAMP = rb"\d{4}-\d\d-\d\d[T ][\d:.,]++(?:Z|[+-]\d\d:\d\d)?+[ ]"
LOGGED = (
    rb"(?:\[pod/[^\]\s]++\][ ])?+(?:%b(?:std(?:out|err)[ ][FP][ ]|(?:INFO|WARN|WARNING|DEBUG|ERROR)[ ][ ]?+)?+"
    rb"|[IWEF]\d{4}[ ][\d:.]{8,}+[ ]++\d++[ ][\w./-]++:\d++\][ ]"
    rb"|[A-Z][a-z][a-z][ ]++\d++[ ]\d\d:\d\d:\d\d[ ][\w.-]++[ ][\w./-]++(?:\[\d++\])?+:[ ]"
    rb"|[\w.-]++[ ]++\|[ ])?+" % _STAMP
)
"""The prefixes of lines in a log: kubectl's and a node's stamps, klog's and syslog's heads, a container's name."""


class Mapping:
    """A mapping (or, in JSON, a list) that is being read.

    A hostile text has a million irrelevant ones, so defaults are attributes of the class.
    """

    key: bytes | None = None
    """The key of the current entry; b"" is an irrelevant one."""
    kind = name = b""
    value: Span | None = None
    data: list[Span]
    cut: list[Span]
    """The beginning of the text, if it is the end of a Secret's data whose own key was cut off."""
    orphans: list[Span]
    """The data of nested mappings without a kind, such as items of a SecretList."""
    seen: frozenset[bytes] = frozenset()
    is_variable = False
    """Whether `name` is the name of a container's variable."""
    is_relevant = False
    """Whether it has a relevant entry, or a nested one has."""
    is_torn = False
    """Whether its beginning was cut off, so it may be a list."""

    def __init__(self, mark: int, *, parent: Mapping | None, is_list: bool = False, column: int = 0) -> None:
        self.mark = mark
        self.column = column
        self.is_list = is_list
        self.is_env = parent is not None and bool(parent.key) and parent.key in _ENV

    def add_keys(self, *keys: bytes) -> None:
        """Make it relevant, because of entries with these keys or of a nested mapping."""
        if not self.is_relevant:
            self.is_relevant, self.data, self.cut, self.orphans = True, [], [], []
        self.seen |= frozenset(keys)

    def is_relevant_key(self, key: bytes) -> bool:
        """Return whether an entry with this key is relevant for this mapping."""
        return key in READ or (
            self.is_env and _VARIABLE.fullmatch(key) is not None and secret_names.is_secret_variable(key)
        )


def _is_secret(name: bytes, *, is_variable: bool) -> bool:
    """Return whether the value with this name is a secret."""
    if is_variable or name.isupper():
        return secret_names.is_secret_variable(name)
    return name.startswith(_PATCH) or secret_names.kind_of(name) is not None


class Findings:
    """The spans to be masked: single values, and mappings whose values are all masked."""

    def __init__(self) -> None:
        self.values: list[Span] = []
        self.data: list[Span] = []

    def entry(self, mapping: Mapping, *, span: Span, scalar: bytes) -> None:
        """End the current entry of `mapping`, whose value is at `span`; `scalar` is the value without quotes."""
        key, mapping.key = mapping.key, None
        if key is None:
            return
        mapping.add_keys(key)
        if key in _DATA:
            mapping.data.append(span)
            if key == b"stringData":
                mapping.kind = mapping.kind or b"Secret"
        elif key == CUT:
            mapping.cut.append(span)
        elif key == b"type":
            if not mapping.kind and _TYPE.fullmatch(scalar):
                mapping.kind = b"Secret"
        elif key == b"kind":
            mapping.kind = scalar
        elif key in _NAMES:
            mapping.name = scalar if key == b"name" or not mapping.name else mapping.name
            mapping.is_variable = mapping.is_variable or key == b"name"
        elif key in _VALUES:
            mapping.value = span
        elif key == b"client-key-data" or (mapping.is_env and key not in READ):
            self.values.append(span)

    def end(self, mapping: Mapping, *, parent: Mapping | None) -> None:
        """End `mapping`: all its entries are read, so it is known whether it is a Secret or a container's variable.

        An object without a kind was cut: `data` and `items` come before `kind`, so it may have been a Secret or a list
        of them. A Secret without an apiVersion, which comes first, was cut too: the beginning of the text may be its
        data. The kind may be cut itself.
        """
        if not mapping.is_relevant:
            return
        if mapping.value and _is_secret(mapping.name, is_variable=mapping.is_variable):
            self.values.append(mapping.value)
        is_cut = b"apiVersion" in mapping.seen and not mapping.kind
        if is_cut or (mapping.kind and b"secretlist".startswith(mapping.kind.lower())):
            self.data += mapping.data
            if is_cut or len(mapping.kind) > len(b"Secret"):
                self.data += mapping.orphans
            elif b"apiVersion" not in mapping.seen and (mapping.is_torn or not _DATA & mapping.seen):
                self.data += mapping.cut
        elif not mapping.kind and parent is not None:
            if parent.is_torn:
                parent.add_keys()
                parent.orphans += mapping.orphans + mapping.data + mapping.cut
            elif parent.is_list or parent.key == b"items":
                parent.add_keys()
                parent.orphans += mapping.orphans if mapping.is_list else mapping.data
